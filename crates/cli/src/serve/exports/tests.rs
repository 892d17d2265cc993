//! What is exported together, and what is served late.

use std::ffi::OsStr;
use std::fs;

use super::*;

fn open(configured: &[config::Export]) -> Result<vfs::Exports> {
    let state = tempfile::tempdir().unwrap();
    ExportOpener::new(state.path(), None, 64).open(configured, START_MAX)
}

#[test]
fn two_copies_of_one_file_system_are_refused() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir_in("/dev/shm").unwrap());
    let export = |dir: &tempfile::TempDir, id| config::Export {
        filesystem_id: Some(id),
        ..config::Export::of(dir.path().to_owned())
    };
    let error = open(&[export(&one, 7), export(&two, 7)]).err().unwrap().to_string();
    assert!(error.contains("set a `filesystem_id`"), "{error}");
    assert!(open(&[export(&one, 7), export(&two, 8)]).is_ok());
    let inner = config::Export {
        filesystem_id: Some(7),
        ..config::Export::of(tempfile::tempdir_in(one.path()).unwrap().keep())
    };
    assert!(open(&[export(&one, 7), inner]).is_ok());
}

/// B6.82
#[test]
fn a_pair_needs_an_id_that_both_assign() {
    let (dir, state) = (tempfile::tempdir_in("/dev/shm").unwrap(), tempfile::tempdir().unwrap());
    let without = config::Export::of(dir.path().to_owned());
    let with = config::Export { filesystem_id: Some(7), ..without.clone() };
    let opener = || ExportOpener::new(state.path(), None, 64);
    assert!(opener().open(std::slice::from_ref(&without), START_MAX).is_ok());
    // An id from a time when no UUID was visible: another server has another one.
    let table = state.path().join("filesystems");
    let text = fs::read_to_string(&table).unwrap();
    let changed = text.lines().map(|line| {
        let (id, key) = line.split_once(' ').unwrap();
        format!("{:016x} {key}\n", u64::from_str_radix(id, 16).unwrap() ^ 1)
    });
    fs::write(&table, changed.collect::<String>()).unwrap();
    let error =
        opener().for_pair(true).open(std::slice::from_ref(&without), START_MAX).err().unwrap();
    assert!(error.to_string().contains("the same `filesystem_id`"), "{error}");
    assert!(opener().for_pair(true).open(&[with], START_MAX).is_ok());
    assert!(opener().open(&[without], START_MAX).is_ok());
}

/// B1.51
#[test]
fn directories_and_file_systems_in_memory_are_exported_together() {
    let dir = tempfile::tempdir().unwrap();
    let memory = |path: &str| config::Export::of(path.into());
    let both = [config::Export::of(dir.path().to_owned()), memory("memory:"), memory("memory:/b")];
    let state = tempfile::tempdir().unwrap();
    let mut opener = ExportOpener::new(state.path(), None, 64);
    let exports = opener.open(&both, START_MAX).unwrap();
    let paths: Vec<&[u8]> = exports.iter().map(|export| &export.path[..]).collect();
    assert_eq!(paths[1..], [&b"/memory"[..], b"/b"]);
    let filesystem = |exports: &vfs::Exports, path: &[u8]| {
        let found = exports.iter().find(|export| export.path == path);
        found.map(|export| export.filesystem.root())
    };
    let before = filesystem(&exports, b"/b").unwrap();
    assert_ne!(filesystem(&exports, b"/memory").unwrap(), before);
    let again = opener.open(&both[1..], START_MAX).unwrap();
    assert_eq!(filesystem(&again, b"/b").unwrap(), before, "a reload keeps its files");
    let error = open(&[memory("memory:"), memory("memory:/memory")]).err().unwrap().to_string();
    assert_eq!(error, "/memory is exported twice");
}

#[test]
fn clients_mount_what_was_configured() {
    let path = |configured: &str| {
        let path = mount_path(Path::new(configured), Path::new("/real"));
        String::from_utf8(path.to_vec()).unwrap()
    };
    assert_eq!(path("/data"), "/data");
    assert_eq!(path("/data//x/./"), "/data/x");
    assert_eq!(path("/"), "/");
    assert_eq!(path("./share"), "/real");
    assert_eq!(path("/a/../b"), "/real");
}

/// An opener that waits for its directories, and the attempts to open them.
fn waiting(state: &Path, configured: &[config::Export]) -> (ExportOpener, Vec<Arc<Opening>>) {
    let attempts = configured.iter().map(|export| Opening::pending(Wanted::of(export)));
    let attempts: Vec<Arc<Opening>> = attempts.collect();
    let mut opener = ExportOpener::new(state, None, 64);
    let late = attempts.iter().map(|attempt| Late::new(attempt.clone(), Instant::now()));
    (opener.late, opener.attempts) = (late.collect(), attempts.clone());
    opener.configured = configured.to_vec();
    (opener, attempts)
}

fn answer(opener: &ExportOpener, attempt: &Opening) {
    let opened = Opening::begin(attempt.wanted.clone(), opener.place(1), &[]);
    attempt.end(opened.wait(Instant::now() + START_MAX).unwrap());
}

fn paths(exports: &vfs::Exports) -> Vec<PathBuf> {
    exports.iter().map(|export| Path::new(OsStr::from_bytes(&export.path)).to_owned()).collect()
}

/// B8.82
#[test]
fn a_late_export_that_is_refused_keeps_no_other_from_being_served() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir_in("/dev/shm").unwrap());
    let (three, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let export = |dir: &tempfile::TempDir, id| config::Export {
        filesystem_id: Some(id),
        ..config::Export::of(dir.path().to_owned())
    };
    // The second has the id of the first, as a copy would.
    let configured = [export(&one, 7), export(&two, 7), export(&three, 8)];
    let (mut opener, attempts) = waiting(state.path(), &configured);
    assert!(opener.retry().is_none());
    answer(&opener, &attempts[0]);
    answer(&opener, &attempts[1]);
    let exports = opener.retry().unwrap();
    assert_eq!(paths(&exports), [one.path()]);
    let refused = exports.opening()[0].problem.clone().unwrap();
    assert!(refused.contains("copies of one file system"), "{refused}");
    assert!(opener.retry().is_none(), "said once");
    answer(&opener, &attempts[2]);
    let exports = opener.retry().unwrap();
    assert_eq!(paths(&exports), [one.path(), three.path()]);
    assert_eq!(exports.opening()[0].problem, Some(refused));
    let changed = [export(&one, 7), export(&two, 9), export(&three, 8)];
    let exports = opener.open(&changed, START_MAX).unwrap();
    assert_eq!((paths(&exports).len(), exports.opening().len()), (3, 0));
}

#[test]
fn a_late_export_that_cannot_be_opened_is_tried_again() {
    let (one, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let configured = [config::Export::of(one.path().to_owned())];
    let (mut opener, attempts) = waiting(state.path(), &configured);
    attempts[0].end(Err("the daemon has ended".into()));
    let exports = opener.retry().unwrap();
    assert_eq!(exports.opening()[0].problem.as_deref(), Some("the daemon has ended"));
    assert!(opener.retry().is_none() && opener.is_waiting());
}

/// B8.82
#[test]
fn a_file_system_that_hangs_has_one_thread_however_often_exports_are_reloaded() {
    let (one, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let export = config::Export::of(one.path().to_owned());
    let mut opener = ExportOpener::new(state.path(), None, 64);
    opener.open(std::slice::from_ref(&export), START_MAX).unwrap();
    // It is open, and hangs from now on.
    let hung = Opening::pending(Wanted::of(&export));
    opener.attempts = vec![hung.clone()];
    let is_hung = |opener: &ExportOpener| {
        opener.attempts.len() == 1 && Arc::ptr_eq(&opener.attempts[0], &hung)
    };
    for _ in 0..3 {
        let exports = opener.open(std::slice::from_ref(&export), Duration::ZERO).unwrap();
        assert_eq!((paths(&exports).len(), exports.opening().len()), (1, 0));
        assert!(is_hung(&opener));
    }
    let missing = config::Export::of(one.path().join("missing"));
    assert!(opener.open(&[export.clone(), missing], RELOAD_MAX).is_err());
    opener.forget_ended();
    assert!(is_hung(&opener), "also after a reload that failed");
    answer(&opener, &hung);
    opener.forget_ended();
    assert!(opener.attempts.is_empty() && !opener.is_waiting());
}

/// B1.84
#[test]
fn a_late_export_has_the_id_that_it_has_when_it_is_open() {
    let (dir, state) = (tempfile::tempdir_in(".").unwrap(), tempfile::tempdir().unwrap());
    let name = dir.path().file_name().unwrap();
    let deep = dir.path().join("sub");
    fs::create_dir(&deep).unwrap();
    let relative = Path::new(".").join(name);
    for path in [relative.clone(), relative.join("sub/.."), deep.join("../sub"), deep] {
        let configured = [config::Export::of(path)];
        let (mut opener, attempts) = waiting(state.path(), &configured);
        let late = opener.assemble(&configured, &[], &opener.late).unwrap().exports;
        answer(&opener, &attempts[0]);
        let exports = opener.retry().unwrap();
        let open = exports.iter().next().unwrap();
        let late = &late.opening()[0];
        assert_eq!((late.id, &late.path), (open.id, &open.path));
    }
}

//! Listings and object ids on file systems whose cookies are positions in a list that was read when the
//! directory was opened, and whose kernel handles do not outlive a daemon: overlayfs and FUSE, beside
//! disks and tmpfs.
#![allow(clippy::unwrap_used, clippy::panic)]

mod fixture;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use fixture::*;
use lockkeeper_vfs::{Error, FileSystem, ObjectId, local::HandleChoice, local::LocalFs};
use tempfile::TempDir;
use testbed::mounts::{self, Fuse, Mount};

const ENTRIES: usize = 1_000;
/// Entries in a reply.
const REPLY: usize = 20;
const FUSE: [Fuse; 2] = [Fuse::Bindfs, Fuse::Unionfs];

/// A mounted file system with the directory `d`, and what is beneath it.
struct Host {
    name: String,
    // The mount goes before the directories that it is on.
    mount: Mount,
    _layers: Vec<Mount>,
    source: PathBuf,
    state: PathBuf,
    _dir: TempDir,
}

/// What is mounted, and where the entries of `d` are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Ext4,
    Xfs,
    Tmpfs,
    /// `d` is in the lower layer until its first change copies it up.
    OverlayLower,
    /// `d` is in both layers, half of the entries in each.
    OverlayMerged,
    /// The layers are on two file systems that number their inodes alike, half of the entries in each.
    OverlayAcross,
    Fuse(Fuse),
}

const POSITIONS: [Kind; 5] = [
    Kind::OverlayLower,
    Kind::OverlayMerged,
    Kind::OverlayAcross,
    Kind::Fuse(Fuse::Bindfs),
    Kind::Fuse(Fuse::Unionfs),
];

const OTHERS: [Kind; 3] = [Kind::Ext4, Kind::Xfs, Kind::Tmpfs];

impl Host {
    /// With these files in `d`, each with its name as content.
    fn new(kind: Kind, files: &[String]) -> Self {
        testbed::packages::install(mounts::PACKAGES).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let (source, upper, image, at) = (path("source"), path("upper"), path("image"), path("at"));
        fs::create_dir(path("state")).unwrap();
        fs::create_dir(&source).unwrap();
        let mut layers = Vec::new();
        if kind == Kind::OverlayAcross {
            layers = [&source, &path("top")].map(|layer| Mount::tmpfs(layer).unwrap()).into();
        }
        let upper = if kind == Kind::OverlayAcross { path("top/upper") } else { upper };
        let halves = match kind {
            Kind::OverlayMerged | Kind::OverlayAcross => files.split_at(files.len() / 2),
            Kind::OverlayLower | Kind::Fuse(_) => (files, &[][..]),
            Kind::Ext4 | Kind::Xfs | Kind::Tmpfs => (&[][..], &[][..]),
        };
        fill(&source.join("d"), halves.0);
        if matches!(kind, Kind::OverlayMerged | Kind::OverlayAcross) {
            fill(&upper.join("d"), halves.1);
        }
        let mounted = match kind {
            Kind::Ext4 => mounts::make_ext4(&image, 64).and_then(|()| Mount::image(&image, &at)),
            Kind::Xfs => mounts::make_xfs(&image).and_then(|()| Mount::image(&image, &at)),
            Kind::Tmpfs => Mount::tmpfs(&at),
            Kind::OverlayLower | Kind::OverlayMerged | Kind::OverlayAcross => {
                Mount::overlay(&source, &upper, &at)
            }
            Kind::Fuse(program) => Mount::fuse(program, &source, &at),
        };
        let mount = mounted.unwrap();
        if OTHERS.contains(&kind) {
            fill(&at.join("d"), files);
        }
        Self {
            name: format!("{kind:?}"),
            mount,
            _layers: layers,
            source,
            state: path("state"),
            _dir: dir,
        }
    }

    fn open(&self) -> LocalFs {
        open(self.mount.at(), &self.state, HandleChoice::Auto)
    }

    /// The names in `d`, as a local program lists them.
    fn names(&self) -> BTreeSet<String> {
        let entries = fs::read_dir(self.mount.at().join("d")).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}

fn fill(dir: &Path, names: &[String]) {
    fs::create_dir_all(dir).unwrap();
    names.iter().for_each(|name| fs::write(dir.join(name), name).unwrap());
}

fn numbered(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{prefix}-{number:04}")).collect()
}

/// A client's listing of one directory: the cookie and the verifier of its last reply.
#[derive(Default)]
struct Listing {
    cookie: u64,
    verifier: [u8; 8],
    eof: bool,
    /// Begins again if the server no longer knows the cookie, as after its restart.
    may_begin_again: bool,
}

impl Listing {
    /// The next reply.
    fn next(&mut self, by: CallerView<'_>, dir: &ObjectId, plus: bool) -> Vec<String> {
        loop {
            let mut names = Vec::new();
            let (mut count, mut next) = (0, self.cookie);
            let mut sink = |entry: lockkeeper_vfs::DirEntry<'_>| {
                if count == REPLY {
                    return false;
                }
                count += 1;
                next = entry.cookie;
                if entry.name != b"." && entry.name != b".." {
                    names.push(String::from_utf8(entry.name.to_vec()).unwrap());
                }
                true
            };
            let (context, fs) = (by.context(), by.fs);
            match fs.read_dir(&context, dir, self.cookie, self.verifier, plus, &mut sink) {
                Ok(reply) => {
                    (self.cookie, self.verifier, self.eof) = (next, reply.verifier, reply.eof);
                    return names;
                }
                Err(Error::BadCookie) if self.may_begin_again && self.cookie != 0 => {
                    (self.cookie, self.verifier) = (0, [0; 8]);
                }
                Err(error) => panic!("READDIR after cookie {}: {error}", self.cookie),
            }
        }
    }

    /// The rest, one reply after another.
    fn finish(&mut self, by: CallerView<'_>, dir: &ObjectId, mut each: impl FnMut(Vec<String>)) {
        while !self.eof {
            each(self.next(by, dir, true));
        }
    }
}

fn remove_all(by: CallerView<'_>, dir: &ObjectId, names: &[String]) {
    names.iter().for_each(|name| by.remove(dir, name).unwrap());
}

/// What a listing had of the names that stayed: each exactly once.
fn assert_once(what: &str, stayed: &[String], seen: &[String]) {
    let mut times: BTreeMap<&str, usize> = BTreeMap::new();
    seen.iter().for_each(|name| *times.entry(name).or_default() += 1);
    let count = |wanted: fn(usize) -> bool| {
        stayed.iter().filter(|name| wanted(times.get(name.as_str()).copied().unwrap_or(0))).count()
    };
    let (skipped, doubled) = (count(|times| times == 0), count(|times| times > 1));
    assert!(
        skipped + doubled == 0,
        "{what}: of {} entries that stayed {skipped} were skipped and {doubled} listed twice",
        stayed.len()
    );
}

/// Runs `test` for each kind, in one mount namespace, and names all that failed.
fn on_each(name: &str, kinds: &[Kind], test: fn(Kind)) {
    if !mounts::in_own_namespace(name).unwrap() {
        return;
    }
    let failed = kinds.iter().filter(|kind| {
        let kind = **kind;
        std::panic::catch_unwind(|| test(kind)).is_err()
    });
    let failed: Vec<_> = failed.collect();
    assert!(failed.is_empty(), "failed on {failed:?}");
}

#[test]
fn removing_what_each_reply_lists_leaves_nothing() {
    let kinds = [&POSITIONS[..], &OTHERS[..]].concat();
    on_each("removing_what_each_reply_lists_leaves_nothing", &kinds, |kind| {
        for plus in [false, true] {
            let host = Host::new(kind, &numbered("file", ENTRIES));
            let (fs, root) = (host.open(), root());
            let by = CallerView::new(&fs, &root);
            let dir = by.lookup(&fs.root(), "d").unwrap();
            let mut listing = Listing::default();
            while !listing.eof {
                let names = listing.next(by, &dir, plus);
                remove_all(by, &dir, &names);
            }
            let left = host.names().len();
            assert_eq!(left, 0, "{}, plus {plus}: of {ENTRIES} entries left", host.name);
            by.rmdir(&fs.root(), "d").unwrap();
        }
    });
}

#[test]
fn entries_that_stay_are_listed_once_while_another_thread_creates_and_removes() {
    let name = "entries_that_stay_are_listed_once_while_another_thread_creates_and_removes";
    on_each(name, &POSITIONS, |kind| {
        let stayed = numbered("stay", ENTRIES);
        let gone = numbered("gone", ENTRIES);
        let host = Host::new(kind, &[&stayed[..], &gone[..]].concat());
        let (fs, root) = (host.open(), root());
        let by = CallerView::new(&fs, &root);
        let dir = by.lookup(&fs.root(), "d").unwrap();
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let at = host.mount.at().join("d");
                for (number, name) in gone.iter().enumerate() {
                    if over.load(Ordering::Relaxed) {
                        break;
                    }
                    fs::remove_file(at.join(name)).unwrap();
                    fs::write(at.join(format!("new-{number}")), "new").unwrap();
                }
            });
            for round in 0..3 {
                let mut seen = Vec::new();
                Listing::default().finish(by, &dir, |names| {
                    seen.extend(names);
                    thread::yield_now();
                });
                assert_once(&format!("{}, listing {round}", host.name), &stayed, &seen);
            }
            over.store(true, Ordering::Relaxed);
        });
    });
}

#[test]
fn two_listings_at_once_skip_nothing() {
    on_each("two_listings_at_once_skip_nothing", &POSITIONS, |kind| {
        let (stayed, gone) = (numbered("stay", ENTRIES / 2), numbered("gone", ENTRIES / 2));
        let host = Host::new(kind, &[&stayed[..], &gone[..]].concat());
        let (fs, root) = (host.open(), root());
        let by = CallerView::new(&fs, &root);
        let dir = by.lookup(&fs.root(), "d").unwrap();
        let mut listings = [Listing::default(), Listing::default()];
        let mut seen = [Vec::new(), Vec::new()];
        while listings.iter().any(|listing| !listing.eof) {
            for (listing, seen) in listings.iter_mut().zip(&mut seen) {
                if !listing.eof {
                    let names = listing.next(by, &dir, false);
                    for name in names.iter().filter(|name| name.starts_with("gone")) {
                        // The other listing may have had it before.
                        let removed = by.remove(&dir, name);
                        assert!(matches!(removed, Ok(()) | Err(Error::NotFound)), "{removed:?}");
                    }
                    seen.extend(names);
                }
            }
        }
        for seen in &seen {
            assert_once(&host.name, &stayed, seen);
        }
        assert_eq!(host.names().len(), stayed.len(), "{}", host.name);
    });
}

#[test]
fn a_listing_older_than_another_one_skips_nothing() {
    on_each("a_listing_older_than_another_one_skips_nothing", &POSITIONS, |kind| {
        let (stayed, gone) = (numbered("stay", ENTRIES / 2), numbered("gone", ENTRIES / 2));
        let host = Host::new(kind, &[&gone[..], &stayed[..]].concat());
        let (fs, root) = (host.open(), root());
        let by = CallerView::new(&fs, &root);
        let dir = by.lookup(&fs.root(), "d").unwrap();
        let (mut older, mut seen_by_older) = (Listing::default(), Vec::new());
        for _ in 0..5 {
            seen_by_older.extend(older.next(by, &dir, false));
        }
        let mut seen = Vec::new();
        Listing::default().finish(by, &dir, |names| {
            for name in names.iter().filter(|name| name.starts_with("gone")) {
                by.remove(&dir, name).unwrap();
            }
            seen.extend(names);
        });
        assert_once(&format!("{}, the newer", host.name), &stayed, &seen);
        older.finish(by, &dir, |names| seen_by_older.extend(names));
        assert_once(&format!("{}, the older", host.name), &stayed, &seen_by_older);
    });
}

/// A restart of the server: cookies may have become bad, and the client begins again.
#[test]
fn a_listing_goes_on_after_the_file_system_was_opened_again() {
    let name = "a_listing_goes_on_after_the_file_system_was_opened_again";
    on_each(name, &[&POSITIONS[..], &OTHERS[..]].concat(), |kind| {
        let host = Host::new(kind, &numbered("file", ENTRIES));
        let root = root();
        let mut fs = host.open();
        let mut dir = CallerView::new(&fs, &root).lookup(&fs.root(), "d").unwrap();
        let mut listing = Listing { may_begin_again: true, ..Listing::default() };
        let mut reply = 0;
        while !listing.eof {
            let by = CallerView::new(&fs, &root);
            let names = listing.next(by, &dir, false);
            remove_all(by, &dir, &names);
            reply += 1;
            if reply % 10 == 0 {
                drop(fs);
                fs = host.open();
                let by = CallerView::new(&fs, &root);
                // On overlayfs a directory that was copied up may have got another id.
                if by.attributes(&dir) == Err(Error::Stale) {
                    dir = by.lookup(&fs.root(), "d").unwrap();
                }
            }
        }
        assert_eq!(host.names().len(), 0, "{}: of {ENTRIES} entries left", host.name);
    });
}

/// What a FUSE daemon, killed and started again, has in the place of its files.
#[derive(Debug, Clone, Copy)]
enum Meanwhile {
    /// The same.
    Nothing,
    /// Names were exchanged, so that each leads to another file.
    Renamed,
    /// Files were removed and new ones made under their names.
    Replaced,
}

/// How the server and the FUSE daemon are used.
#[derive(Debug, Clone, Copy)]
struct Restart {
    program: Fuse,
    handles: HandleChoice,
    meanwhile: Meanwhile,
    /// The names are looked up again in this order, by which the daemon numbers its nodes.
    reversed: bool,
    /// The server is restarted too. Otherwise it still serves what was mounted before.
    reopened: bool,
}

#[test]
fn an_id_never_leads_to_another_file_after_a_fuse_daemon_was_restarted() {
    let name = "an_id_never_leads_to_another_file_after_a_fuse_daemon_was_restarted";
    on_each(name, &FUSE.map(Kind::Fuse), |kind| {
        let Kind::Fuse(program) = kind else { unreachable!() };
        let mut failed = Vec::new();
        for meanwhile in [Meanwhile::Nothing, Meanwhile::Renamed, Meanwhile::Replaced] {
            for handles in [HandleChoice::Auto, HandleChoice::InodeMap] {
                for (reversed, reopened) in
                    [(false, true), (true, true), (false, false), (true, false)]
                {
                    let case = Restart { program, handles, meanwhile, reversed, reopened };
                    let wrong = restart(case);
                    if let Some(one) = wrong.first() {
                        failed.push(format!("{case:?}: {} wrong, such as: {one}", wrong.len()));
                    }
                }
            }
        }
        assert!(failed.is_empty(), "{}", failed.join("\n"));
    });
}

/// Which ids led to another file.
fn restart(case: Restart) -> Vec<String> {
    let Restart { program, handles, meanwhile, reversed, reopened } = case;
    let names = numbered("file", 12);
    let mut host = Host::new(Kind::Fuse(program), &names);
    let root = root();
    let mut fs = open(host.mount.at(), &host.state, handles);
    let ids: Vec<ObjectId> = {
        let by = CallerView::new(&fs, &root);
        let dir = by.lookup(&fs.root(), "d").unwrap();
        names.iter().map(|name| by.lookup(&dir, name).unwrap()).collect()
    };
    host.mount.kill_daemon();
    let (at, d) = (host.mount.at().to_path_buf(), host.source.join("d"));
    host.mount.detach().unwrap();
    match meanwhile {
        Meanwhile::Nothing => {}
        Meanwhile::Renamed => {
            fs::rename(d.join(&names[0]), d.join("aside")).unwrap();
            for pair in names.windows(2) {
                fs::rename(d.join(&pair[1]), d.join(&pair[0])).unwrap();
            }
            fs::rename(d.join("aside"), d.join(&names[11])).unwrap();
        }
        Meanwhile::Replaced => {
            // The new ones first, so that no inode number is used again.
            for name in &names {
                fs::write(d.join(format!("{name}.new")), "new").unwrap();
            }
            for name in &names {
                fs::rename(d.join(format!("{name}.new")), d.join(name)).unwrap();
            }
        }
    }
    host.mount = Mount::fuse(program, &host.source, &at).unwrap();
    let look_up = |name: &String| assert!(at.join("d").join(name).exists());
    if reversed {
        names.iter().rev().for_each(look_up);
    } else {
        names.iter().for_each(look_up);
    }
    if reopened {
        drop(fs);
        fs = open(&at, &host.state, handles);
    }
    let by = CallerView::new(&fs, &root);
    let mut wrong = Vec::new();
    for (name, id) in names.iter().zip(&ids) {
        match by.read(id, 0, 100) {
            Ok((data, _)) if data == name.as_bytes() => {}
            Ok((data, _)) => {
                wrong.push(format!("{name} reads {}", String::from_utf8_lossy(&data)));
            }
            Err(Error::Stale | Error::Io) => {}
            Err(error) => wrong.push(format!("{name}: {error}")),
        }
        let _ = by.write(id, 0, name.as_bytes());
    }
    for entry in fs::read_dir(&d).unwrap() {
        let path = entry.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        let own = match meanwhile {
            Meanwhile::Nothing => path.file_name().unwrap().to_string_lossy().into_owned(),
            Meanwhile::Renamed => renamed_from(&path, &names),
            Meanwhile::Replaced => "new".to_owned(),
        };
        if text != own {
            wrong.push(format!("{} contains {text} instead of {own}", path.display()));
        }
    }
    wrong
}

/// B1.68. A client that is asked to come again later would do so for ever.
#[test]
fn the_files_of_a_daemon_that_ended_are_stale() {
    on_each("the_files_of_a_daemon_that_ended_are_stale", &FUSE.map(Kind::Fuse), |kind| {
        let mut host = Host::new(kind, &numbered("file", 1));
        let (fs, root) = (host.open(), root());
        let by = CallerView::new(&fs, &root);
        let dir = by.lookup(&fs.root(), "d").unwrap();
        let file = by.lookup(&dir, "file-0000").unwrap();
        by.write(&file, 0, b"not committed").unwrap();
        host.mount.kill_daemon();
        // At once, while the kernel knows attributes, and later.
        for round in ["at once", "later"] {
            let context = by.context();
            let spaces = [fs.root(), dir, file].map(|object| fs.space(&context, &object).err());
            assert_eq!(spaces, [Some(Error::Stale); 3], "{} {round}", host.name);
            let committed = fs.commit(&context, &file, 0, 0).err();
            assert_eq!(committed, Some(Error::Stale), "{} {round}", host.name);
            let written = by.write(&file, 0, b"x").err();
            assert_eq!(written, Some(Error::Stale), "{} {round}", host.name);
            thread::sleep(std::time::Duration::from_millis(1_500));
        }
        assert_eq!(by.attributes(&file).err(), Some(Error::Stale), "{}", host.name);
        assert_eq!(by.lookup(&dir, "file-0000").err(), Some(Error::Stale), "{}", host.name);
        assert_eq!(by.read(&file, 0, 9).err(), Some(Error::Stale), "{}", host.name);
    });
}

/// The name, and so the content, that a file had before the names were exchanged.
fn renamed_from(path: &Path, names: &[String]) -> String {
    let name = path.file_name().unwrap().to_string_lossy();
    let place = names.iter().position(|known| *known == name).unwrap();
    names[(place + 1) % names.len()].clone()
}

#[test]
fn no_two_files_have_one_id() {
    on_each("no_two_files_have_one_id", &[&POSITIONS[..], &OTHERS[..]].concat(), |kind| {
        let names = numbered("file", 40);
        let host = Host::new(kind, &names);
        let root = root();
        for handles in [HandleChoice::Auto, HandleChoice::InodeMap] {
            let state = tempfile::tempdir().unwrap();
            let fs = open(host.mount.at(), state.path(), handles);
            let by = CallerView::new(&fs, &root);
            let dir = by.lookup(&fs.root(), "d").unwrap();
            let ids: Vec<_> = names.iter().map(|name| by.lookup(&dir, name).unwrap()).collect();
            let mut distinct: BTreeSet<_> = ids.iter().map(|id| id.as_bytes().to_vec()).collect();
            distinct.insert(dir.as_bytes().to_vec());
            distinct.insert(fs.root().as_bytes().to_vec());
            let doubled = ids.len() + 2 - distinct.len();
            assert_eq!(doubled, 0, "{}, {handles:?}: ids that are another file's too", host.name);
            for (name, id) in names.iter().zip(&ids) {
                let read = by.read(id, 0, 99).map(|(data, _)| data);
                assert_eq!(read.as_deref(), Ok(name.as_bytes()), "{}, {handles:?}", host.name);
            }
        }
    });
}

/// Their inode numbers are not unique then, and change with the first write.
#[test]
fn files_of_layers_on_different_file_systems_are_refused_without_xino() {
    if !mounts::in_own_namespace(
        "files_of_layers_on_different_file_systems_are_refused_without_xino",
    )
    .unwrap()
    {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    fill(&path("lower"), &numbered("file", 1));
    fs::create_dir_all(path("state")).unwrap();
    let top = Mount::tmpfs(&path("top")).unwrap();
    let upper = path("top/upper");
    let over = Mount::overlay_with("xino=off", &path("lower"), &upper, &path("at")).unwrap();
    let (served, root) = (open(over.at(), &path("state"), HandleChoice::Auto), root());
    let by = CallerView::new(&served, &root);
    assert_eq!(by.lookup(&served.root(), "file-0000"), Err(Error::NotSupported));
    assert_eq!(by.create(&served.root(), "new", 0o644), Err(Error::NotSupported));
    assert!(!path("at/new").exists());
    drop((served, over, top));
}

/// Locks are held on ids: with a second id, a file could be locked twice.
#[test]
fn a_file_keeps_its_id_when_it_is_copied_up() {
    on_each("a_file_keeps_its_id_when_it_is_copied_up", &POSITIONS, |kind| {
        let host = Host::new(kind, &numbered("file", 4));
        let root = root();
        let fs = host.open();
        let by = CallerView::new(&fs, &root);
        let dir = by.lookup(&fs.root(), "d").unwrap();
        let id = by.lookup(&dir, "file-0000").unwrap();
        by.write(&id, 0, b"copied up").unwrap();
        assert_eq!(by.lookup(&dir, "file-0000"), Ok(id), "{}: looked up again", host.name);
        drop(fs);
        let fs = host.open();
        let by = CallerView::new(&fs, &root);
        let read = by.read(&id, 0, 9).map(|(data, _)| data);
        assert_eq!(read.as_deref(), Ok(&b"copied up"[..]), "{}: opened again", host.name);
    });
}

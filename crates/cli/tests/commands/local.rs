//! The commands that need no daemon.

use std::fs;
use std::io::Write as _;
use std::process::{Command, Stdio};

use crate::run::{Ended, PROGRAM, ended};

fn lockkeeper(arguments: &[&str]) -> Ended {
    ended(Command::new(PROGRAM).args(arguments))
}

const FILE: &str = r#"
[store]
url = "postgres://keeper:s3cret@db/locks?password=s3cret2"
[recovery]
window = "45s"
[recovery.protocol.nsm]
window = "1500ms"
[limits]
idle = "2m"
[[export]]
path = "/srv/a"
clients = ["10.0.0.0/24"]
"#;

#[test]
fn a_configuration_is_checked_and_its_errors_have_lines() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("lockkeeper.toml");
    let path = file.to_str().unwrap();
    // The directory is one that exists.
    fs::write(&file, FILE.replace("/srv/a", dir.path().to_str().unwrap())).unwrap();
    let ended = lockkeeper(&["config", "check", "-c", path]);
    assert_eq!((ended.code, ended.out), (Some(0), format!("ok: {path}\n")));
    fs::write(&file, "[rpc]\nlisten = \"[::]:2049\"\nrpcbnd = \"off\"\n").unwrap();
    for verb in ["check", "show"] {
        let ended = lockkeeper(&["config", verb, "-c", path]);
        assert_eq!((ended.code, ended.out.as_str()), (Some(78), ""));
        let start = format!("error: {path}: line 3: unknown key `rpcbnd`");
        assert!(ended.err.starts_with(&start), "{}", ended.err);
        assert!(ended.err.ends_with("did you mean `rpcbind`?\n"), "{}", ended.err);
    }
    let ended = lockkeeper(&["config", "check", "-c", "/nowhere/x.toml"]);
    assert_eq!(ended.code, Some(78));
    assert!(ended.err.starts_with("error: /nowhere/x.toml: No such file"), "{}", ended.err);
}

/// B1.50
#[test]
fn a_link_local_network_is_warned_of() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("lockkeeper.toml");
    let path = file.to_str().unwrap();
    for (network, warned) in [
        ("fe80::/10", true),
        ("fe80::1", true),
        ("169.254.7.0/24", true),
        ("fd00::/8", false),
        ("::/0", false),
    ] {
        let export = dir.path();
        let text = format!("[[export]]\npath = {export:?}\nclients = [{network:?}]\n");
        fs::write(&file, text).unwrap();
        let ended = lockkeeper(&["config", "check", "-c", path]);
        assert_eq!((ended.code, ended.out), (Some(0), format!("ok: {path}\n")));
        let start = format!("warning: export {}: clients: {network}", export.display());
        assert_eq!(ended.err.starts_with(&start), warned, "{network}: {}", ended.err);
        assert_eq!(ended.err.contains("never calls such an address back"), warned);
    }
}

#[test]
fn the_settings_that_hold_are_shown_with_defaults_and_without_passwords() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("lockkeeper.toml");
    fs::write(&file, FILE).unwrap();
    let ended = lockkeeper(&["config", "show", "-c", file.to_str().unwrap()]);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    let out = ended.out;
    for line in [
        "url = \"postgres://keeper@db/locks\"",
        "durability = \"process\"",
        "idle = \"120s\"",
        "window = \"45s\"",
        "window = \"1500ms\"",
        "listen = \"[::]:2049\"",
        "unreachable = \"on-demand\"",
        "locks = 10000000",
        "clients = [\"10.0.0.0/24\"]",
        "squash = \"root\"",
    ] {
        assert!(out.lines().any(|found| found == line), "no {line} in {out}");
    }
    assert!(!out.contains("s3cret"), "{out}");
    // What is shown can be used, and comes to the same.
    let again = dir.path().join("again.toml");
    fs::write(&again, &out).unwrap();
    let shown = lockkeeper(&["config", "show", "-c", again.to_str().unwrap()]).out;
    assert_eq!(shown.split_once('\n').unwrap().1, out.split_once('\n').unwrap().1);
}

#[test]
fn shells_get_completions_that_they_understand() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let ended = lockkeeper(&["completions", shell]);
        assert_eq!(ended.code, Some(0), "{}", ended.err);
        assert!(ended.out.contains("confirm-reboot"), "{shell}");
    }
    let script = lockkeeper(&["completions", "bash"]).out;
    let mut bash = Command::new("bash").arg("-n").stdin(Stdio::piped()).spawn().unwrap();
    bash.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    assert!(bash.wait().unwrap().success());
}

#[test]
fn every_command_has_a_manual_page() {
    let dir = tempfile::tempdir().unwrap();
    let ended = lockkeeper(&["man", dir.path().to_str().unwrap()]);
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""));
    let help = lockkeeper(&["--help"]).out;
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let mut count = 0;
    for line in listed.take_while(|line| !line.is_empty()) {
        let name = line.split_whitespace().next().unwrap();
        if name != "help" {
            let page = fs::read_to_string(dir.path().join(format!("lockkeeper-{name}.1")));
            assert!(page.unwrap().contains(".SH SYNOPSIS"), "{name}");
            count += 1;
        }
    }
    assert!(count >= 14, "{help}");
    assert!(dir.path().join("lockkeeper-store-copy.1").exists());
    assert!(!help.contains(" man "), "it is for those who make packages");
    let ended = lockkeeper(&["man", "/nowhere/at/all"]);
    assert_eq!(ended.code, Some(1));
    assert!(ended.err.contains("cannot write manual pages into /nowhere/at/all"), "{}", ended.err);
}

/// B8.76
#[test]
fn a_node_name_with_other_letters_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("lockkeeper.toml");
    for name in ["", "a b", "a;reboot", "$(id)", "a/b", "\u{fc}"] {
        let refused = lockkeeper(&["serve", "--node", name, "/nowhere"]);
        assert_eq!(refused.code, Some(2), "{name:?}");
        assert!(refused.err.contains("is no node name"), "{}", refused.err);
        fs::write(&file, format!("[standby]\nnode = '{name}'\n")).unwrap();
        let refused = lockkeeper(&["config", "check", "-c", file.to_str().unwrap()]);
        assert_eq!(refused.code, Some(78), "{name:?}");
        assert!(
            refused.err.contains("line 2") && refused.err.contains("is no node name"),
            "{name:?}"
        );
    }
    fs::write(&file, "[standby]\nnode = 'filer_a.example-1'\n").unwrap();
    assert_eq!(lockkeeper(&["config", "check", "-c", file.to_str().unwrap()]).code, Some(0));
}

//! The machine and the server's process.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde_json::json;
use testbed::namespace::Namespace;
use testbed::ports::free_port;
use testbed::wait::until_blocking;

use crate::patient::{PROGRAM, Patient, admin, status};

#[test]
fn without_a_server_the_host_is_examined_and_the_code_is_3() {
    let patient = Patient::new();
    let said = patient.examine(&[]);
    assert_eq!(said.code, 3);
    assert_eq!(said.report["asked_server"], false);
    said.has("LK203", "fail", &["no server at", "skipped"], &["lockkeeper"]);
    said.is_fine("will be created at the first start");
    said.is_fine("open files limit");
    said.lacks(&["LK201", "LK210", "LK212", "LK213", "LK214", "LK220", "LK221", "LK225"]);
}

#[test]
fn lines_are_for_people_and_each_finding_has_its_fix_below() {
    let patient = Patient::new();
    let output = Command::new(PROGRAM)
        .args(["doctor", "--state"])
        .arg(patient.state())
        .env("LOCKKEEPER_ADMIN", &patient.socket)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(3));
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let place = lines.iter().position(|line| line.starts_with("FAIL LK203 ")).unwrap();
    assert!(lines[place + 1].starts_with("     fix: "), "{text}");
    for (number, line) in lines.iter().enumerate() {
        let wrong = line.starts_with("warn") || line.starts_with("FAIL");
        let known = wrong || line.starts_with("ok   ") || line.starts_with("     fix: ");
        assert!(known && !line.contains('\x1b'), "{line}");
        assert!(!wrong || lines[number + 1].starts_with("     fix: "), "{line} has no fix");
    }
}

#[test]
fn a_server_that_answers_makes_the_code_0_or_1() {
    let patient = Patient::in_network(&Arc::new(Namespace::new().unwrap()));
    admin(&patient.socket, vec![("/v1/status", 200, status())]);
    let said = patient.examine(&[]);
    said.is_fine("the server answers");
    said.is_fine("was exact at start, commit p99 0.2 ms");
    said.is_fine("programs on this host neither see nor share them");
    // Fails, since port 2049 has no listener here.
    assert_eq!(said.code, 1, "{:#}", said.report);
}

#[test]
fn a_wrong_configuration_is_told_with_its_line() {
    let patient = Patient::new();
    let file = patient.path("x.toml");
    fs::write(&file, "[rpc]\nlisten = \"[::]:2049\"\nrpcbnd = \"auto\"\n").unwrap();
    let file = file.to_str().unwrap();
    let said = patient.examine(&["-c", file]);
    said.has("LK201", "fail", &["line 3", "did you mean `rpcbind`"], &["config check -c", file]);
    fs::write(file, "[[export]]\npath = \"/no/such/place\"\n").unwrap();
    let said = patient.examine(&["-c", file]);
    said.has("LK202", "fail", &["/no/such/place"], &["mkdir -p /no/such/place"]);
    said.lacks(&["LK201"]);
}

#[test]
fn another_version_and_the_server_s_own_worries_are_told() {
    let patient = Patient::new();
    let mut other = status();
    other["version"] = "0.0.1".into();
    let worry = json!({ "code": "LK103", "severity": "warning", "status": "bob is silent",
        "action": "lockkeeper doctor --client bob", "see": "" });
    let worse = json!({ "code": "LK112", "severity": "error", "status": "stalled",
        "action": "df", "see": "" });
    other["health"] = json!([worry, worse]);
    admin(&patient.socket, vec![("/v1/status", 200, other)]);
    let said = patient.examine(&[]);
    said.has("LK204", "warn", &["version 0.0.1"], &["restart"]);
    said.has("LK103", "warn", &["bob is silent"], &["lockkeeper doctor --client bob"]);
    said.has("LK112", "fail", &["stalled"], &["df"]);
}

#[test]
fn a_state_directory_in_memory_or_in_a_layer_is_told() {
    let patient = Patient::new();
    fs::create_dir(patient.state()).unwrap();
    let tmpfs = "mount -t tmpfs -o size=600m,mode=700 tmpfs \"$1/state\"";
    let said = patient.examine_after(tmpfs, &[]);
    said.has("LK210", "fail", &["tmpfs", "lost at reboot"], &["--state /var/lib/lockkeeper"]);
    said.lacks(&["LK213"]);
    // One that would be made there, too.
    fs::remove_dir(patient.state()).unwrap();
    let above = "mount -t tmpfs -o size=600m tmpfs \"$1\"";
    patient.examine_after(above, &[]).has("LK210", "fail", &["tmpfs"], &[]);
    fs::create_dir(patient.state()).unwrap();
    let ramfs = "mount -t ramfs -o mode=700 ramfs \"$1/state\"";
    patient.examine_after(ramfs, &[]).has("LK210", "fail", &["ramfs"], &[]);
    for name in ["upper", "work"] {
        fs::create_dir(patient.path(name)).unwrap();
    }
    let overlay = "mount -t overlay -o lowerdir=$1/export,upperdir=$1/upper,workdir=$1/work \
                   overlay \"$1/state\"";
    patient.examine_after(overlay, &[]).has("LK211", "warn", &["container"], &["-v lockkeeper:"]);
    patient.examine(&[]).lacks(&["LK210", "LK211"]);
}

#[test]
fn a_disk_without_room_is_told_before_locks_stall() {
    let patient = Patient::new();
    fs::create_dir(patient.state()).unwrap();
    for (options, level, told) in [
        ("size=100m", "warn", "nearly full"),
        ("size=8m", "fail", "MiB left"),
        ("size=600m,nr_inodes=20", "fail", "files left"),
    ] {
        let mount = format!("mount -t tmpfs -o {options},mode=700 tmpfs \"$1/state\"");
        let said = patient.examine_after(&mount, &[]);
        said.has("LK213", level, &[told], &["df -h"]);
    }
}

#[test]
fn a_state_directory_that_is_none_is_told() {
    let patient = Patient::new();
    fs::write(patient.state(), "a file").unwrap();
    patient.examine(&[]).has("LK216", "fail", &["cannot read", "state"], &["--state DIR"]);
}

#[test]
fn a_state_directory_that_others_may_write_is_told() {
    let patient = Patient::new();
    fs::create_dir(patient.state()).unwrap();
    fs::set_permissions(patient.state(), fs::Permissions::from_mode(0o777)).unwrap();
    patient.examine(&[]).has("LK212", "fail", &["will not start"], &["chmod 700"]);
}

#[test]
fn a_mark_on_a_disk_is_told_and_one_on_tmpfs_is_fine() {
    let patient = Patient::new();
    fs::create_dir(patient.path("run")).unwrap();
    let said = patient.examine_after("mount --bind \"$1/run\" /run", &[]);
    said.has("LK215", "warn", &["/run/lockkeeper", "not on tmpfs"], &["mount -t tmpfs"]);
    let said = patient.examine_after("mount -t tmpfs tmpfs /run", &[]);
    said.lacks(&["LK215"]);
    said.is_fine("mark /run/lockkeeper (tmpfs)");
}

#[test]
fn a_clock_behind_what_was_written_is_told() {
    let patient = Patient::new();
    fs::create_dir_all(patient.path("state/store")).unwrap();
    let file = patient.path("state/epoch");
    let write = |ahead: Duration| {
        File::create(&file).unwrap().set_modified(SystemTime::now() + ahead).unwrap();
    };
    write(Duration::from_secs(60));
    patient.examine(&[]).lacks(&["LK221"]);
    write(Duration::from_secs(600));
    patient.examine(&[]).has("LK221", "warn", &["9 min behind", "epoch"], &["timedatectl"]);
    write(Duration::from_secs(86_400 * 3));
    let said = patient.examine(&[]);
    said.has("LK221", "fail", &["2 days behind", "state/epoch"], &["set-ntp true", "touch"]);
}

#[test]
fn a_clock_that_was_never_set_is_told() {
    testbed::packages::install(&["faketime"]).unwrap();
    let patient = Patient::new();
    let said = patient.examine_by("faketime", &["--exclude-monotonic", "2001-02-03"], &[]);
    said.has("LK220", "fail", &["before 2026"], &["timedatectl"]);
}

#[test]
fn too_few_descriptors_are_told_for_this_shell_and_for_the_running_server() {
    let patient = Patient::new();
    let said = patient.examine_by("prlimit", &["--nofile=1000:1000"], &[]);
    said.has("LK225", "fail", &["limit 1000", "4096 connections"], &["LimitNOFILE"]);
    let file = patient.path("few.toml");
    fs::write(&file, "[limits]\nconnections = 300\n").unwrap();
    let few = ["-c", file.to_str().unwrap()];
    patient.examine_by("prlimit", &["--nofile=1000:1000"], &few).lacks(&["LK225"]);
    let options = ["--listen", "127.0.0.1:0", "--rpcbind", "off"];
    let server = patient.serve_by("prlimit", &["--nofile=900:900"], &options);
    let said = patient.examine(&[]);
    let raise = format!("prlimit --pid {} --nofile=5802:5802", server.id());
    said.has("LK225", "fail", &["limit 900"], &[&raise]);
}

#[test]
fn descriptors_that_are_nearly_used_up_are_told() {
    let patient = Patient::new();
    let port = free_port().unwrap();
    let server = patient.serve(&["--listen", &format!("127.0.0.1:{port}"), "--rpcbind", "off"]);
    let file = patient.path("few.toml");
    fs::write(&file, "[limits]\nconnections = 1\n").unwrap();
    let few = ["-c", file.to_str().unwrap()];
    patient.examine(&few).lacks(&["LK225", "LK226"]);
    let connections: Vec<_> =
        (0..350).map(|_| TcpStream::connect(("127.0.0.1", port)).unwrap()).collect();
    let pid = server.id().to_string();
    // A connection is established before the server accepts it.
    let descriptors = PathBuf::from(format!("/proc/{pid}/fd"));
    let open = || fs::read_dir(&descriptors).unwrap().count();
    until_blocking("every connection is accepted", || open() > connections.len());
    let lowered = Command::new("prlimit").args(["--pid", &pid, "--nofile=380:380"]).status();
    assert!(lowered.unwrap().success());
    patient.examine(&few).has("LK226", "warn", &["of 380 file"], &["LimitNOFILE"]);
    drop(connections);
}

#[test]
fn who_else_uses_the_state_directory_is_told() {
    let patient = Patient::new();
    let hidden = patient.path("hidden.sock");
    let hidden = ["--admin-socket", hidden.to_str().unwrap()];
    let quiet = ["--listen", "127.0.0.1:0", "--rpcbind", "off"];
    let server = patient.serve(&[&quiet[..], &hidden].concat());
    let pid = server.id().to_string();
    let said = patient.examine(&[]);
    assert_eq!(said.code, 3);
    let told = format!("lockkeeper (pid {pid})");
    said.has("LK214", "fail", &[&told, "which does not answer"], &["--server", &pid]);
    // How it was started is seen in its command line.
    said.has("LK240", "warn", &["rpcbind is off"], &["--rpcbind off"]);
    // So is its socket, if none is named.
    let said = patient.examine_by("env", &["-u", "LOCKKEEPER_ADMIN"], &[]);
    said.is_fine("hidden.sock");
    said.is_fine("is in use by the server only");
    said.lacks(&["LK203", "LK214"]);
    admin(&patient.socket, vec![("/v1/status", 200, status())]);
    let said = patient.examine(&[]);
    said.has("LK214", "fail", &[&told, "not by the server that answers"], &["kill", &pid]);
    drop(server);
    patient.examine(&[]).lacks(&["LK214"]);
}

/// Every number that the doctor can say is explained, and nothing else is.
#[test]
fn the_documentation_has_every_number() {
    let crate_directory = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut said = BTreeSet::new();
    for file in fs::read_dir(crate_directory.join("src/doctor")).unwrap() {
        let text = fs::read_to_string(file.unwrap().path()).unwrap();
        let quoted = text.split('"').filter(|part| part.len() == 5 && part.starts_with("LK2"));
        said.extend(quoted.map(str::to_owned).filter(|code| code != "LK299"));
    }
    let text = fs::read_to_string(crate_directory.join("../../docs/doctor.md")).unwrap();
    let headings = text.lines().filter_map(|line| line.strip_prefix("### "));
    let explained: BTreeSet<String> = headings.map(str::to_owned).collect();
    assert!(said.len() > 40, "{said:?}");
    assert_eq!(said, explained);
}

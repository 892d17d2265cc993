//! The sockets of a server: which files they replace and leave behind, who can connect, and that no
//! user can occupy all connections.

use std::fs;
use std::net::TcpListener;
use std::ops::Range;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use testbed::process::Process;

use crate::support::PROGRAM;
use crate::support::live::Live;

const NOBODY: [&str; 4] = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
const PATIENCE: Duration = Duration::from_secs(30);
/// A directory of sockets and marks that only this process and its children see.
const OWN_RUN: &str = "mkdir -p /run/lockkeeper && \
    mount -t tmpfs -o mode=0700 run /run/lockkeeper && umask 077 && exec \"$@\"";

fn home() -> TempDir {
    let home = tempfile::tempdir().unwrap();
    fs::create_dir(home.path().join("export")).unwrap();
    home
}

/// The words that start a server in this home.
fn serve(home: &Path, options: &[&str]) -> Vec<String> {
    let at = |name: &str| home.join(name).to_str().unwrap().to_owned();
    let mut words = vec![PROGRAM.into(), "serve".into(), at("export")];
    words.extend(["--state".into(), at("state"), "--run-directory".into(), at("run")]);
    let fixed = ["--rpcbind", "off", "--ports", "any", "--listen", "127.0.0.1:0"];
    words.extend(fixed.iter().chain(options).map(ToString::to_string));
    words
}

fn command(words: &[String]) -> Command {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).env_remove("NOTIFY_SOCKET").env_remove("LOCKKEEPER_ADMIN");
    command.stdin(Stdio::null());
    command
}

fn spawn(command: &mut Command, home: &Path) -> Process {
    Process::start(command, &home.join("log")).unwrap()
}

/// Repeats it until it works.
fn until_done(home: &Path, mut run: impl FnMut() -> Output) -> String {
    let start = Instant::now();
    loop {
        let output = run();
        if output.status.success() {
            return String::from_utf8(output.stdout).unwrap();
        }
        let log = fs::read_to_string(home.join("log")).unwrap();
        assert!(start.elapsed() < PATIENCE, "{output:?}\n{log}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A server that must not start; its output.
fn fails(home: &Path, options: &[&str]) -> String {
    let mut server = spawn(&mut command(&serve(home, options)), home);
    assert!(!server.wait().unwrap().success());
    server.output()
}

#[test]
fn a_file_at_the_place_of_the_socket_stays() {
    let home = home();
    let precious = home.path().join("precious");
    fs::write(&precious, "mine").unwrap();
    let path = precious.to_str().unwrap();
    let said = fails(home.path(), &["--admin", "off", "--admin-socket", path]);
    assert!(said.contains(path), "{said}");
    assert_eq!(fs::read_to_string(&precious).unwrap(), "mine");
}

#[test]
fn a_start_that_fails_leaves_no_socket() {
    let home = home();
    let socket = home.path().join("admin.sock");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let options = ["--admin", &address, "--admin-socket", socket.to_str().unwrap()];
    let said = fails(home.path(), &options);
    assert!(said.contains(&address), "{said}");
    assert!(!socket.exists());
    drop(taken);
    fs::create_dir_all(home.path().join("state/admin-token")).unwrap();
    let said = fails(home.path(), &options);
    assert!(said.contains("admin-token"), "{said}");
    assert!(!socket.exists());
}

#[test]
fn a_token_that_cannot_be_had_stops_only_what_nobody_asked_for() {
    let home = home();
    let state = home.path().join("state");
    fs::create_dir(&state).unwrap();
    fs::set_permissions(&state, fs::Permissions::from_mode(0o700)).unwrap();
    fs::create_dir(state.join("admin-token")).unwrap();
    let socket = home.path().join("admin.sock");
    let options = ["--admin-socket", socket.to_str().unwrap()];
    let _server = spawn(&mut command(&serve(home.path(), &options)), home.path());
    until_done(home.path(), || {
        let mut curl = Command::new("curl");
        curl.args(["-sf", "-m", "20", "--unix-socket"]).arg(&socket);
        curl.arg("http://localhost/ready").output().unwrap()
    });
}

#[test]
fn a_token_that_a_power_cut_left_empty_is_replaced() {
    let mut live = Live::start(&[]);
    live.kill();
    fs::write(live.home.path().join("state/admin-token"), "").unwrap();
    live.start_again();
    let right = format!("Authorization: Bearer {}", live.token());
    let answer = live.ask_web("DELETE", "/v1/locks/kzzz", &["-H", &right]);
    assert_eq!(answer.status, 404, "{answer:?}");
}

/// Connections of the user nobody, opened at once, which read almost nothing.
fn crowd(live: &Live, size: usize, path: &str) -> Process {
    let home = live.home.path();
    fs::set_permissions(home, fs::Permissions::from_mode(0o755)).unwrap();
    let url = format!("http://localhost{path}");
    let mut curl = Command::new(NOBODY[0]);
    curl.args(&NOBODY[1..]).args(["curl", "-s", "-N", "--limit-rate", "1"]);
    curl.args(["--parallel", "--parallel-immediate", "--parallel-max", "300"]);
    curl.arg("--unix-socket").arg(live.socket());
    for _ in 0..size {
        curl.args(["-o", "/dev/null", &url]);
    }
    Process::start(&mut curl, Path::new("/dev/null")).unwrap()
}

/// How many connections it has open.
fn sockets_of(process: &Process) -> usize {
    let Ok(files) = fs::read_dir(format!("/proc/{}/fd", process.id())) else { return 0 };
    let links = files.flatten().filter_map(|file| fs::read_link(file.path()).ok());
    links.filter(|link| link.to_string_lossy().starts_with("socket:")).count()
}

/// Waits until the number of connections is stable and in this range.
fn settles(crowd: &Process, left: Range<usize>) {
    let start = Instant::now();
    let mut before = 0;
    loop {
        let open = sockets_of(crowd);
        if open == before && left.contains(&open) {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "{open} connections of one user");
        before = open;
        std::thread::sleep(Duration::from_secs(1));
    }
}

#[test]
fn a_user_who_takes_all_connections_leaves_some_to_root() {
    let live = Live::start(&[]);
    let crowd = crowd(&live, 280, "/docs/swagger-ui-bundle.js");
    settles(&crowd, 60..100);
    for _ in 0..10 {
        assert_eq!(live.ask("GET", "/health").status, 200);
    }
    // Only some get a reply with the reason; meanwhile other connections are just closed.
    let start = Instant::now();
    loop {
        let theirs = live.curl(&NOBODY, &[], "http://localhost/health", true);
        assert_ne!(theirs.status, 200);
        if theirs.body.contains("too-many") {
            break;
        }
        assert!(start.elapsed() < PATIENCE, "{theirs:?}");
    }
}

#[test]
fn a_user_who_reads_all_events_leaves_some_to_root() {
    let live = Live::start(&[]);
    let crowd = crowd(&live, 40, "/v1/events");
    // Refused clients are slow to read the error.
    settles(&crowd, 40..50);
    let url = "http://localhost/v1/events?last=1";
    // Connections are counted when the server has read their request.
    let start = Instant::now();
    while live.curl(&NOBODY, &["-N", "-m", "1"], url, true).status != 503 {
        assert!(start.elapsed() < PATIENCE, "the user is never refused");
    }
    let mine = live.curl(&[], &["-N", "-m", "5"], url, true);
    assert_eq!(mine.status, 200, "{mine:?}");
}

#[test]
fn everybody_reaches_the_systems_socket_and_nobody_lists_its_directory() {
    let home = home();
    let mut words: Vec<String> =
        ["unshare", "--mount", "sh", "-c", OWN_RUN, "sh"].map(String::from).to_vec();
    words.extend(serve(home.path(), &["--admin", "off"]));
    let server = spawn(&mut command(&words), home.path());
    let pid = server.id().to_string();
    let as_nobody = |words: &[&str]| {
        let mut inside = Command::new("nsenter");
        inside
            .args(["--target", &pid, "--mount", "--root"])
            .args(NOBODY)
            .args(words)
            .output()
            .unwrap()
    };
    let url = "http://localhost/health";
    let socket = "/run/lockkeeper/admin.sock";
    until_done(home.path(), || as_nobody(&["curl", "-sf", "--unix-socket", socket, url]));
    assert!(!as_nobody(&["ls", "/run/lockkeeper"]).status.success());
    let inside = format!("/proc/{pid}/root/run/lockkeeper");
    assert_eq!(fs::metadata(inside).unwrap().mode() & 0o777, 0o711);
}

#[test]
fn commands_find_the_server_of_their_own_user() {
    let home = home();
    let path = home.path();
    for name in [".", "export"] {
        std::os::unix::fs::chown(path.join(name), Some(65_534), Some(65_534)).unwrap();
    }
    let program = path.join("lockkeeper");
    testbed::process::install_program(PROGRAM.as_ref(), &program).unwrap();
    let program = program.to_str().unwrap().to_owned();
    let alone = || ["unshare", "--mount", "sh", "-c", OWN_RUN, "sh"].into_iter().chain(NOBODY);
    let as_nobody = |words: &[String]| {
        let all: Vec<String> = alone().map(String::from).chain(words.iter().cloned()).collect();
        let mut command = command(&all);
        command.env("HOME", path).env_remove("XDG_RUNTIME_DIR").env_remove("XDG_STATE_HOME");
        command
    };
    let mut words = serve(path, &["--admin", "off", "--store", "memory:"]);
    words[0].clone_from(&program);
    let _server = spawn(&mut as_nobody(&words), path);
    let ask = [program, "status".into()];
    let start = Instant::now();
    loop {
        let said = until_done(path, || as_nobody(&ask).output().unwrap());
        if said.contains("memory:") {
            break;
        }
        assert!(said.contains("STARTING") && start.elapsed() < PATIENCE, "{said}");
    }
}

//! Every block of the documentation marked `console` is run as printed: each line that begins with
//! `$ ` in a shell on a terminal, against a server that was killed and is in its grace period, with
//! the clients and locks that the pages speak of.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use testbed::source_tree;
use tokio::task::JoinSet;

use crate::support::live::{Live, bytes};

/// The lock id on the pages; stands for a lock of bob's.
const LOCK_ID: &str = "k7f2";
const DATABASE: &str = "postgres://lockkeeper@db/lockkeeper";
/// Fills the database where a block expects one with a store in it.
const COPY: &str = "lockkeeper store copy embedded:/var/lib/lockkeeper/store";
/// A command that repeats itself is interrupted after this many seconds.
const WATCHED_S: &str = "2";
const COMMAND_MAX_S: &str = "60";

/// One block: where it is, its commands, and the column headings that it shows.
struct Block {
    at: String,
    commands: Vec<String>,
    headings: Vec<String>,
}

/// Four blocks at a time: they mostly wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_console_block_runs_as_printed() {
    let is_page = |path: &String| path == "README.md" || path.starts_with("docs/");
    let pages = source_tree::files().into_iter().filter(|path| path.ends_with(".md"));
    let blocks: Vec<Block> = pages.filter(is_page).flat_map(|page| blocks_of(&page)).collect();
    assert!(blocks.len() > 25, "{} blocks", blocks.len());
    let mut running: JoinSet<()> = blocks.into_iter().map(run_block).collect();
    while let Some(ended) = running.join_next().await {
        ended.unwrap();
    }
}

fn blocks_of(page: &str) -> Vec<Block> {
    let text = fs::read_to_string(source_tree::root().join(page)).unwrap();
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    for (number, line) in text.lines().enumerate() {
        match (&mut open, line) {
            (None, "```console") => {
                let at = format!("{page}:{}", number + 1);
                open = Some(Block { at, commands: Vec::new(), headings: Vec::new() });
            }
            (Some(_), "```") => blocks.extend(open.take()),
            (Some(block), _) => match line.strip_prefix("$ ") {
                Some(command) => block.commands.push(command.to_string()),
                None if is_heading(line) => block.headings.push(line.to_string()),
                None => {}
            },
            (None, _) => {}
        }
    }
    blocks
}

fn is_heading(line: &str) -> bool {
    line.split_whitespace().count() > 2 && line.chars().all(|c| c.is_ascii_uppercase() || c == ' ')
}

async fn run_block(block: Block) {
    let (mut server, lock) = in_grace(&block.commands).await;
    if block.commands.iter().any(|command| command.starts_with("lockkeeper store")) {
        // A clean stop, after which the store is known to be complete.
        server.stop();
    }
    let database = block.commands.iter().any(|command| command.contains(DATABASE));
    let options = testbed::postgres::Options { tcp: true, ..Default::default() };
    let database = database.then(|| testbed::postgres::Server::start_with(&options).unwrap());
    let url = database.as_ref().and_then(|database| database.tcp_url()).unwrap_or_default();
    let stubs = stubs(&server);
    let run = |command: &str| {
        let real = command
            .replace("/var/lib/lockkeeper", server.home.path().join("state").to_str().unwrap())
            .replace("/backup/lockkeeper", server.home.path().join("backup").to_str().unwrap())
            .replace(DATABASE, &format!("'{url}'"))
            .replace(LOCK_ID, &lock);
        run_on_terminal(&real, &server, &stubs)
    };
    if database.is_some() && !block.commands[0].starts_with(COPY) {
        let (code, output) = run(&format!("{COPY} {DATABASE}"));
        assert_eq!(code, 0, "{output}");
    }
    let mut printed = String::new();
    for command in &block.commands {
        let (code, output) = run(command);
        let may = permitted(command);
        assert!(may.contains(&code), "{}: {command} ended with {code}:\n{output}", block.at);
        printed += &output;
    }
    for heading in &block.headings {
        let columns: Vec<&str> = heading.split_whitespace().collect();
        let shown = printed.lines().any(|line| line.split_whitespace().eq(columns.iter().copied()));
        assert!(shown, "{}: no heading {heading:?} in\n{printed}", block.at);
    }
}

/// Exit codes with which a command on the pages may end.
fn permitted(command: &str) -> &'static [i32] {
    match command {
        _ if command.contains("--watch") => &[0, 124, 130],
        // It has findings: the server is in grace.
        _ if command.starts_with("lockkeeper doctor") => &[0, 1],
        _ => &[0],
    }
}

/// A server after `kill -9`, in grace, with locks of alice and bob; and the id of bob's lock. A block
/// that deals with a fenced client finds bob fenced.
async fn in_grace(commands: &[String]) -> (Live, String) {
    let mut server = Live::start(&[]);
    let mut clients = Vec::new();
    fs::create_dir(server.home.path().join("export/projects")).unwrap();
    for (name, last, first_byte) in [("alice", 2, 0), ("bob", 3, 4096)] {
        let source = [127, 0, 0, last].into();
        let (locker, file) = server.client_from(name, "projects/a.db", source).await;
        locker.lock(&file, bytes(first_byte, first_byte + 4095)).await.unwrap();
        clients.push(locker);
    }
    let locks = server.get("/v1/locks?client=bob");
    let lock = locks["items"][0]["id"].as_str().unwrap().to_string();
    let fenced = commands.iter().position(|command| command == "lockkeeper fence bob");
    let unfenced = commands.iter().position(|command| command == "lockkeeper unfence bob");
    if unfenced.is_some() && fenced.is_none() {
        let (code, output) = run_on_terminal("lockkeeper fence bob", &server, &stubs(&server));
        assert_eq!(code, 0, "{output}");
    }
    server.kill();
    server.start_again();
    (server, lock)
}

/// A directory with the program under its name, and stand-ins for systemd's commands, which accept
/// what the pages may ask of the unit and nothing else.
fn stubs(server: &Live) -> PathBuf {
    let directory = server.home.path().join("bin");
    fs::create_dir_all(&directory).unwrap();
    let program = crate::support::PROGRAM;
    let stubs = [
        ("lockkeeper", format!("exec {program} \"$@\"")),
        ("systemctl", "case \"$*\" in\n\"start lockkeeper\"|\"stop lockkeeper\"|\"restart lockkeeper\"|\"reload lockkeeper\") ;;\n*) exit 1 ;;\nesac".to_string()),
        ("journalctl", "[ \"$1 $2\" = \"-u lockkeeper\" ]".to_string()),
    ];
    for (name, body) in stubs {
        let path = directory.join(name);
        fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    directory
}

/// Runs a command on a pseudo-terminal and confirms whatever it asks; its exit code and output.
fn run_on_terminal(command: &str, server: &Live, stubs: &Path) -> (i32, String) {
    let seconds = if command.contains("--watch") { WATCHED_S } else { COMMAND_MAX_S };
    let path = format!("{}:{}", stubs.display(), std::env::var("PATH").unwrap());
    let mut child = Command::new("timeout")
        .args(["--signal=INT", "--kill-after=5", seconds])
        .args(["script", "--quiet", "--return", "--command", command, "/dev/null"])
        .env("PATH", path)
        .env("LOCKKEEPER_ADMIN", server.socket())
        .env("NO_COLOR", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Open until the command has ended: at an end of file `script` waits for some seconds. The
    // command may have ended without asking.
    let mut terminal = child.stdin.take().unwrap();
    let _ = terminal.write_all(b"y\n");
    let output = child.wait_with_output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).replace('\r', "");
    (output.status.code().unwrap_or(-1), printed)
}

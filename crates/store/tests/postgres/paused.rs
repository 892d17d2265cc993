//! A leader in a process of its own, which is paused (SIGSTOP), continued and killed.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use lockkeeper_store::conformance::lock;
use lockkeeper_store::postgres::TakeoverDecision;
use lockkeeper_store::{CommitOutcome, Durability, PostgresSettings, Store};
use testbed::postgres::Server;

use crate::driver::taken;
use crate::leadership::take_when_free;

const URL: &str = "LOCKKEEPER_STORE_LEADER_URL";
const LEASE: Duration = Duration::from_secs(1);

fn settings(url: &str, node: &str) -> PostgresSettings {
    PostgresSettings { lease: LEASE, ..PostgresSettings::new(url, node, Durability::Process) }
}

fn now_ms() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()
}

/// Prints all the time whether it holds the lease, and whether there is a standby; commits until that
/// fails, and prints why.
#[test]
#[ignore = "the process that is paused; the other tests start it"]
fn leader() {
    let url = std::env::var(URL).unwrap();
    let (mut store, lease) = taken(&settings(&url, "a"));
    let watched = lease.clone();
    thread::spawn(move || {
        let mut out = std::io::stdout();
        loop {
            let now = now_ms();
            let (held, standby) = (watched.is_held(), watched.has_standby());
            if writeln!(out, "\nat {now} {held} {standby}").is_err() {
                std::process::exit(0);
            }
            thread::sleep(Duration::from_millis(2));
        }
    });
    let mut token = store.last_token().unwrap();
    loop {
        token.0 += 1;
        match store.commit(&[lock(token.0, 1)], token) {
            CommitOutcome::Done => thread::sleep(Duration::from_millis(1)),
            CommitOutcome::NotWritten(error) | CommitOutcome::Unknown(error) => {
                println!("\nended {error}");
                thread::sleep(Duration::from_millis(200));
                std::process::exit(0);
            }
        }
    }
}

struct Report {
    at: u128,
    held: bool,
    standby: bool,
}

struct LeaderProcess {
    child: Child,
    lines: Receiver<String>,
}

impl LeaderProcess {
    fn start(server: &Server) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "paused::leader", "--ignored", "--nocapture"])
            .env(URL, server.url())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (to, lines) = mpsc::channel();
        let output = BufReader::new(child.stdout.take().unwrap());
        thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if to.send(line).is_err() {
                    return;
                }
            }
        });
        Self { child, lines }
    }

    fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }

    /// The next report; `Err` with its last line when it has ended.
    fn next(&self) -> Result<Report, String> {
        loop {
            let line = self.lines.recv_timeout(Duration::from_secs(20)).unwrap();
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["at", at, held, standby] => {
                    return Ok(Report {
                        at: at.parse().unwrap(),
                        held: held == "true",
                        standby: standby == "true",
                    });
                }
                ["ended", ..] => return Err(line),
                _ => {}
            }
        }
    }

    fn until(&self, holds: impl Fn(&Report) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !self.next().is_ok_and(|line| holds(&line)) {
            assert!(Instant::now() < deadline);
        }
    }
}

impl Drop for LeaderProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_leader_that_was_paused_over_its_lease_does_not_hold_it_afterwards() {
    let server = Server::start().unwrap();
    let leader = LeaderProcess::start(&server);
    leader.until(|line| line.held && !line.standby);
    let url = server.url();
    let standby = thread::spawn(move || take_when_free(&settings(&url, "b")));
    leader.until(|line| line.held && line.standby);

    let stopped = Instant::now();
    leader.signal("-STOP");
    let (mut b, _lease, decision, _) = standby.join().unwrap();
    let took = stopped.elapsed();
    assert_eq!(decision, TakeoverDecision::LeaderDead);
    assert!(took > LEASE * 3 / 4 && took < 5 * LEASE, "{took:?}");
    let before = (b.last_token().unwrap(), b.load().unwrap());

    let continued = now_ms();
    leader.signal("-CONT");
    let mut reports = 0;
    let ended = loop {
        match leader.next() {
            Ok(line) if line.at >= continued => {
                assert!(!line.held, "{} ms after it continued", line.at - continued);
                reports += 1;
            }
            Ok(_) => {}
            Err(ended) => break ended,
        }
    };
    assert!(reports > 0);
    assert!(ended.contains("another server took over: b since 2"), "{ended}");
    assert_eq!((b.last_token().unwrap(), b.load().unwrap()), before);
}

#[test]
fn a_killed_leader_need_not_wait_for_its_own_lease() {
    let server = Server::start().unwrap();
    let mut leader = LeaderProcess::start(&server);
    leader.until(|line| line.held);
    leader.child.kill().unwrap();
    leader.child.wait().unwrap();
    let long = PostgresSettings { lease: 100 * LEASE, ..settings(&server.url(), "a") };
    let (_store, lease, decision, took) = take_when_free(&long);
    assert_eq!(decision, TakeoverDecision::LeaderDead);
    assert!(took < 20 * LEASE, "{took:?}");
    assert!(lease.is_held());
}

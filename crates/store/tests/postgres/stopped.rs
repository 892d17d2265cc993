//! A holder in a process of its own, that is stopped, continued and killed.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use lockkeeper_store::conformance::lock;
use lockkeeper_store::postgres::Verdict;
use lockkeeper_store::{Committed, Durability, PostgresSettings, Store};
use testbed::postgres::Server;

use crate::seat::take_when_free;
use crate::world::taken;

const URL: &str = "LOCKKEEPER_STORE_HOLDER_URL";
const LEASE: Duration = Duration::from_secs(1);

fn settings(url: &str, node: &str) -> PostgresSettings {
    PostgresSettings { lease: LEASE, ..PostgresSettings::new(url, node, Durability::Process) }
}

fn now_ms() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()
}

/// Says all the time whether it holds the lease, and whether somebody waits; commits until it may
/// not, and says why.
#[test]
#[ignore = "the process that is stopped; the other tests start it"]
fn holder() {
    let url = std::env::var(URL).unwrap();
    let (mut store, lease) = taken(&settings(&url, "a"));
    let asked = lease.clone();
    thread::spawn(move || {
        let mut out = std::io::stdout();
        loop {
            let now = now_ms();
            let (held, standby) = (asked.is_held(), asked.has_standby());
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
            Committed::Done => thread::sleep(Duration::from_millis(1)),
            Committed::NotWritten(error) | Committed::Unknown(error) => {
                println!("\nended {error}");
                thread::sleep(Duration::from_millis(200));
                std::process::exit(0);
            }
        }
    }
}

struct Line {
    at: u128,
    held: bool,
    standby: bool,
}

struct Holder {
    child: Child,
    lines: Receiver<String>,
}

impl Holder {
    fn start(server: &Server) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "stopped::holder", "--ignored", "--nocapture"])
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

    /// The next line, and what it said when it ended.
    fn next(&self) -> Result<Line, String> {
        loop {
            let line = self.lines.recv_timeout(Duration::from_secs(20)).unwrap();
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["at", at, held, standby] => {
                    return Ok(Line {
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

    fn until(&self, holds: impl Fn(&Line) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !self.next().is_ok_and(|line| holds(&line)) {
            assert!(Instant::now() < deadline);
        }
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn who_was_stopped_over_the_lease_knows_it_before_it_says_anything() {
    let server = Server::start().unwrap();
    let holder = Holder::start(&server);
    holder.until(|line| line.held && !line.standby);
    let url = server.url();
    let standby = thread::spawn(move || take_when_free(&settings(&url, "b")));
    holder.until(|line| line.held && line.standby);

    let stopped = Instant::now();
    holder.signal("-STOP");
    let (mut b, _lease, verdict, _) = standby.join().unwrap();
    let took = stopped.elapsed();
    assert_eq!(verdict, Verdict::Dead);
    assert!(took > LEASE * 3 / 4 && took < 5 * LEASE, "{took:?}");
    let before = (b.last_token().unwrap(), b.load().unwrap());

    let continued = now_ms();
    holder.signal("-CONT");
    let mut asked = 0;
    let ended = loop {
        match holder.next() {
            Ok(line) if line.at >= continued => {
                assert!(!line.held, "{} ms after it went on", line.at - continued);
                asked += 1;
            }
            Ok(_) => {}
            Err(ended) => break ended,
        }
    };
    assert!(asked > 0);
    assert!(ended.contains("another server took over: b since 2"), "{ended}");
    assert_eq!((b.last_token().unwrap(), b.load().unwrap()), before);
}

#[test]
fn who_was_killed_need_not_wait_for_its_own_lease() {
    let server = Server::start().unwrap();
    let mut holder = Holder::start(&server);
    holder.until(|line| line.held);
    holder.child.kill().unwrap();
    holder.child.wait().unwrap();
    let long = PostgresSettings { lease: 100 * LEASE, ..settings(&server.url(), "a") };
    let (_store, lease, verdict, took) = take_when_free(&long);
    assert_eq!(verdict, Verdict::Dead);
    assert!(took < 20 * LEASE, "{took:?}");
    assert!(lease.is_held());
}

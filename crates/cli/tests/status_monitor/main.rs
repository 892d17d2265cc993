//! The program as a status monitor: what its metrics, its API and its commands say about scripted
//! peers, each on an address of its own. The networks need root.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod filer;
mod metrics;
mod refusals;
mod registrations;

use std::net::IpAddr;

use client::{Connection, Locker, Options};
use testbed::namespace::Namespace;
use wire::nlm::{FreeAllArgs, Range, v4};
use wire::nsm::{self, MonArgs, MonId, MyId, NotifyArgs};

use filer::{ADDRESS, Filer};

const CLIENT: &str = "10.99.0.2";
const ALICE: &str = "10.99.0.3";
const BOB: &str = "10.99.0.4";
const CAROL: &str = "10.99.0.5";
const DAVE: &str = "10.99.0.6";
/// Not in the networks that exports admit by default.
const OUTSIDE: &str = "203.0.113.5";
/// A program number that a registrant may have called.
const PROGRAM: u32 = 200_048;

/// A server whose recovery window is this long, and the network of its peers.
fn start(window: &str) -> (Filer, Namespace) {
    let (ours, theirs) = Namespace::pair().unwrap();
    for address in [ALICE, BOB, CAROL, DAVE] {
        theirs.ip(&format!("addr add {address}/24 dev eth0")).unwrap();
    }
    theirs.ip(&format!("addr add {OUTSIDE}/32 dev eth0")).unwrap();
    ours.ip(&format!("route add {OUTSIDE} dev eth0")).unwrap();
    (Filer::start(ours, window), theirs)
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn options(from: &str, reserved_port: bool) -> Options {
    let source = Some(ip(from));
    Options { source, reserved_port, ..Options::default().user(0, 0, &[]) }
}

async fn connect(from: &str) -> Connection {
    Connection::connect(ADDRESS, &options(from, true)).await.unwrap()
}

async fn locker(from: &str, name: &str) -> Locker {
    Locker::new(connect(from).await, name, 1)
}

fn registration(watched: &str, program: u32) -> MonArgs {
    let my_id = MyId { my_name: b"watcher-1"[..].into(), program, version: 1, procedure: 1 };
    MonArgs { mon_id: MonId { mon_name: watched.to_owned().into(), my_id }, private: [0xab; 16] }
}

/// SM_NOTIFY, which must be answered.
async fn notify(from: &str, name: &str, state: i32) {
    let notice = NotifyArgs { mon_name: name.to_owned().into(), state };
    connect(from).await.call::<nsm::Notify>(&notice).await.unwrap();
}

async fn free_all(connection: &Connection, name: &str) -> Result<(), client::CallError> {
    connection.call::<v4::FreeAll>(&free_all_args(name)).await
}

fn free_all_args(name: &str) -> FreeAllArgs {
    FreeAllArgs { name: name.to_owned().into(), state: 0 }
}

fn range(offset: u64, length: u64) -> Range {
    Range { offset, length }
}

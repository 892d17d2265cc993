//! A server that restarts under another address: its clients keep their locks, find out about the
//! restart, reclaim and unlock through the new address.

use std::net::SocketAddr;

use client::Locker;
use testbed::peer::{Answer, Host, RpcbindKind, script};
use wire::Decode;
use wire::nlm::Status;
use wire::nsm::{self, NotifyArgs};

use super::support::clients::options;
use super::support::range;
use super::support::restartable::{Ending, ip, server_address};
use super::*;

const NEW: &str = "10.99.0.7";
const NEWER: &str = "10.99.0.8";

async fn locker_at(server: &str, from: &str, host_name: &str, svid: i32) -> Locker {
    let at = SocketAddr::new(ip(server), server_address().port());
    let connection = Connection::connect(at, &options(from, true)).await.unwrap();
    Locker::new(connection, host_name, svid)
}

#[test]
fn locks_follow_their_clients_to_another_address_of_the_server() {
    let (mut server, theirs, capture) = start();
    theirs.block_on(async move || {
        let mut host = Host::bind(ip(CLIENT), 111, RpcbindKind::Full).await;
        host.tcp(nsm::PROGRAM, 1, script(|_| Answer::results(&()))).await;
        let (file, old) = (server.root(), server_address().ip().to_string());
        let alice = locker(CLIENT, "alice", 0).await;
        assert_eq!(alice.lock(&file, range(0, 10)).await.unwrap(), Status::Granted);
        assert_eq!(alice.process(1).lock(&file, range(20, 10)).await.unwrap(), Status::Granted);
        let bob = locker(OTHER, "bob", 0).await;
        assert_eq!(bob.lock(&file, range(40, 10)).await.unwrap(), Status::Granted);

        server.renumber(Ending::Crash, &old, NEW);
        // The notice names the address that the client mounted, although it cannot come from there.
        let told = nth_call(&host, 1).await;
        assert_eq!(NotifyArgs::from_bytes(told.args).unwrap().mon_name, nsm::Name::from(old));
        assert_eq!(told.from.ip(), ip(NEW));
        let alice = locker_at(NEW, CLIENT, "alice", 0).await;
        assert_eq!(alice.reclaim(&file, range(0, 10)).await.unwrap(), Status::Granted);
        assert_eq!(alice.process(1).unlock(&file, range(20, 10)).await.unwrap(), Status::Granted);
        let bob = locker_at(NEW, OTHER, "bob", 0).await;
        assert_eq!(bob.unlock(&file, range(40, 10)).await.unwrap(), Status::Granted);
        // What was reclaimed is held, what was unlocked is free, and grace is over.
        let carol = locker_at(NEW, THIRD, "carol", 0).await;
        assert_eq!(carol.lock(&file, range(0, 10)).await.unwrap(), Status::Denied);
        assert_eq!(carol.lock(&file, range(20, 10)).await.unwrap(), Status::Granted);
        assert_eq!(carol.lock(&file, range(40, 10)).await.unwrap(), Status::Granted);

        // The move is durable: the same owner, after a second crash at the same address.
        server.restart(Ending::Crash);
        let alice = locker_at(NEW, CLIENT, "alice", 0).await;
        assert_eq!(alice.reclaim(&file, range(0, 10)).await.unwrap(), Status::Granted);

        // As configured, without a reclaim or UNLOCK that fits: part of a lock is enough.
        server.formerly = [(ip(NEWER), ip(NEW))].into();
        server.renumber(Ending::Stop, NEW, NEWER);
        let carol = locker_at(NEWER, THIRD, "carol", 0).await;
        assert_eq!(carol.lock(&file, range(20, 10)).await.unwrap(), Status::Granted);
    });
    capture.judge();
}

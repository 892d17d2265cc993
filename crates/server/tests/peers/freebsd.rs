//! FreeBSD: calls that are answered, the number of the process as its own, and a status monitor
//! that knows servers by name only.

use std::collections::BTreeMap;

use testbed::peer::{Answer, Host, RpcbindKind, script};
use wire::Decode;
use wire::nlm::{LockArgs, Status};
use wire::nsm::{self, NotifyArgs};

use super::support::restartable::{Ending, NAME, ip, server_address};
use super::support::{range, until};
use super::*;

/// Our names, as often as they were told.
fn told(host: &Host, state: i32) -> BTreeMap<String, usize> {
    let mut names = BTreeMap::new();
    for call in host.calls() {
        assert_eq!((call.program, call.procedure), (nsm::PROGRAM, 6));
        assert_eq!(call.from.ip(), server_address().ip());
        assert!(call.from.port() < 1024, "from a reserved port");
        let args = NotifyArgs::from_bytes(call.args).unwrap();
        if args.state == state {
            *names.entry(String::from_utf8(args.mon_name.to_vec()).unwrap()).or_default() += 1;
        }
    }
    names
}

async fn state_of_server(from: &str) -> i32 {
    let connection = connect(from).await;
    connection.call::<nsm::Stat>(&b"anybody"[..].into()).await.unwrap().state
}

#[test]
fn freebsd_hears_of_a_restart_under_the_name_it_knows_and_reclaims() {
    let (mut server, theirs, capture) = start();
    theirs.block_on(async move || {
        let file = server.root();
        let mut host = Host::bind(ip(CLIENT), 111, RpcbindKind::Full).await;
        host.udp(nsm::PROGRAM, 1, script(|_| Answer::results(&()))).await;
        let bsd = locker(CLIENT, "bsd.example.org", 4711).await;
        assert_eq!(bsd.lock(&file, range(10, 10)).await.unwrap(), Status::Granted);
        let mut state = state_of_server(CLIENT).await;
        for ending in [Ending::Crash, Ending::Stop] {
            server.restart(ending);
            let (before, now) = (state, state_of_server(CLIENT).await);
            assert!(now > before && now % 2 == 1, "{before} {now}");
            state = now;
            until("it was told by name", || told(&host, now).contains_key(NAME)).await;
            let machine = rustix::system::uname();
            let machine = machine.nodename().to_str().unwrap();
            let short = machine.split('.').next().unwrap();
            let names = [NAME, machine, short, "10.99.0.1"];
            until("it was told all names", || {
                names.iter().all(|n| told(&host, now).contains_key(*n))
            })
            .await;
            let told = told(&host, now);
            assert!(told.values().all(|count| *count == 1), "{told:?}");
            assert!(told.keys().all(|name| names.contains(&&name[..])), "{told:?}");

            let bsd = locker(CLIENT, "bsd.example.org", 4711).await;
            let other = locker(OTHER, "other", 1).await;
            // During grace no other host gets an answer about the range or a lock.
            let early = other.test(&file, range(10, 10)).await.unwrap();
            assert_eq!(early.status(), Status::DeniedGracePeriod);
            let early = LockArgs { reclaim: true, ..other.lock_args(&file, range(0, 99), true) };
            assert_ne!(other.send(&early).await.unwrap(), Status::Granted);
            assert_eq!(bsd.reclaim(&file, range(10, 10)).await.unwrap(), Status::Granted);
            // It was the only one: grace is over.
            assert_eq!(other.lock(&file, range(10, 1)).await.unwrap(), Status::Denied);
            assert_eq!(other.lock(&file, range(0, 10)).await.unwrap(), Status::Granted);
            assert_eq!(other.unlock(&file, range(0, 10)).await.unwrap(), Status::Granted);
        }
    });
    capture.judge();
}

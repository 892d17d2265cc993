//! Ports as Debian's own rpcbind knows them, over IPv6: it answers for the transport by which it is
//! asked, whatever the question says. Needs root.

use super::network::{Network, eventually};
use super::scripted::{Answer, script};
use super::*;
use client::Options;
use client::rpcbind::{Over, Rpcbind as Asked};
use wire::nlm::{self, Status, StatusReply, Version, Versioned};
use wire::rpcbind::{Binding, universal, v4};
use wire::{Encode, nsm};

const HERE: &str = "::1";

/// As a daemon does it when it starts.
async fn register(program: u32, version: u32, netid: &'static str, at: SocketAddr) {
    let options = Options { reserved_port: true, ..Options::default() };
    let rpcbind = SocketAddr::new(HERE.parse().unwrap(), 111);
    let mut rpcbind = Asked::connect(rpcbind, Over::Tcp, &options).await.unwrap();
    let binding = Binding {
        program,
        version,
        netid: netid.into(),
        address: universal(at).into(),
        owner: "superuser".into(),
    };
    assert!(rpcbind.call::<v4::Set>(&binding).await.unwrap());
}

#[test]
fn a_real_rpcbind_is_asked_over_the_transport_that_is_looked_for() {
    let network = Network::new();
    let _rpcbind = network.start("rpcbind", &["-f"]);
    let up = network.inside("run/rpcbind.sock");
    eventually("rpcbind is up", || up.exists());
    network.enter(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let ip: IpAddr = HERE.parse().unwrap();
            let mut host = Host::at(ip, 0, Rpcbind::Usual).await;
            let answer = |status| {
                let reply = StatusReply { cookie: b""[..].into(), status };
                script(move |_| Answer::Results(reply.to_bytes_as(Version::V4)))
            };
            let heard_it = || script(|_| Answer::Results(().to_bytes()));
            let by_tcp = host.tcp(nlm::PROGRAM, 4, answer(Status::Granted)).await;
            let by_udp = host.udp(nlm::PROGRAM, 4, answer(Status::Denied)).await;
            register(nlm::PROGRAM, 4, "tcp6", by_tcp).await;
            register(nlm::PROGRAM, 4, "udp6", by_udp).await;
            let by_tcp = host.tcp(nsm::PROGRAM, 1, heard_it()).await;
            let by_udp = host.udp(nsm::PROGRAM, 1, heard_it()).await;
            register(nsm::PROGRAM, 1, "tcp6", by_tcp).await;
            register(nsm::PROGRAM, 1, "udp6", by_udp).await;
            // A registrant that serves only datagrams, as lock managers do that ask for callbacks.
            let by_udp = host.udp(200_000, 1, heard_it()).await;
            register(200_000, 1, "udp6", by_udp).await;

            let mut fixture = Fixture::new(111).await;
            for (transport, expected) in
                [(Transport::Tcp, GrantAnswer::Accepted), (Transport::Udp, GrantAnswer::Denied)]
            {
                let told = grant_in(ip, Lane::new(ip, transport, 4));
                assert_eq!(fixture.grant(told).await, expected);
            }
            assert_eq!(fixture.notice(notice(ip, &[(ip, "::1")])).await, NoticeResult::Answered);
            assert!(host.calls().last().unwrap().by_tcp, "TCP comes first");
            let callback = keeper::request::Callback {
                name: Name::from("me"),
                program: 200_000,
                version: 1,
                procedure: 6,
            };
            let target =
                NoticeTarget::Registrant { callback, watched: Name::from("bob"), private: [1; 16] };
            let told = Notice { target, ..notice(ip, &[]) };
            assert_eq!(fixture.notice(told).await, NoticeResult::Answered);
        });
    });
}

//! Port lookups over IPv6 with Debian's rpcbind, which answers for the transport that carries the
//! question, whatever netid it names. Needs root.

use super::*;
use client::Options;
use client::rpcbind::{RpcTransport, Rpcbind as Asked};
use testbed::debian::Machine;
use testbed::namespace::Namespace;
use testbed::peer::{Answer, script};
use wire::nlm::{self, Status, StatusReply, Version, Versioned};
use wire::nsm;
use wire::rpcbind::{Binding, universal, v4};

const HERE: &str = "::1";

/// Registers as a daemon does at its start.
async fn register(program: u32, version: u32, netid: &'static str, at: SocketAddr) {
    let options = Options { reserved_port: true, ..Options::default() };
    let rpcbind = SocketAddr::new(HERE.parse().unwrap(), 111);
    let mut rpcbind = Asked::connect(rpcbind, RpcTransport::Tcp, &options).await.unwrap();
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
    let network = Namespace::new().unwrap();
    let machine = Machine::boot(&network).unwrap();
    let _rpcbind = machine.rpcbind().unwrap();
    network.enter(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let ip: IpAddr = HERE.parse().unwrap();
            let mut host = Host::bind(ip, 0, RpcbindKind::Full).await;
            let answer = |status| {
                let reply = StatusReply { cookie: b""[..].into(), status };
                script(move |_| Answer::Results(reply.to_bytes_as(Version::V4)))
            };
            let acknowledge = || script(|_| Answer::results(&()));
            let by_tcp = host.tcp(nlm::PROGRAM, 4, answer(Status::Granted)).await;
            let by_udp = host.udp(nlm::PROGRAM, 4, answer(Status::Denied)).await;
            register(nlm::PROGRAM, 4, "tcp6", by_tcp).await;
            register(nlm::PROGRAM, 4, "udp6", by_udp).await;
            let by_tcp = host.tcp(nsm::PROGRAM, 1, acknowledge()).await;
            let by_udp = host.udp(nsm::PROGRAM, 1, acknowledge()).await;
            register(nsm::PROGRAM, 1, "tcp6", by_tcp).await;
            register(nsm::PROGRAM, 1, "udp6", by_udp).await;
            // A registrant that serves only datagrams, as lock managers do that ask for callbacks.
            let by_udp = host.udp(200_000, 1, acknowledge()).await;
            register(200_000, 1, "udp6", by_udp).await;

            let mut fixture = Fixture::new(111).await;
            for (transport, expected) in
                [(Transport::Tcp, GrantAnswer::Accepted), (Transport::Udp, GrantAnswer::Denied)]
            {
                let told = grant_in(ip, OwnerNamespace::new(ip, transport, 4));
                assert_eq!(fixture.grant(told).await, expected);
            }
            assert_eq!(fixture.notice(notice(ip, &[(ip, "::1")])).await, NoticeResult::Answered);
            assert!(host.calls().last().unwrap().over_tcp, "TCP comes first");
            let callback = keeper::request::Callback {
                name: Name::from("me"),
                program: 200_000,
                version: 1,
                procedure: 6,
            };
            let target =
                NoticeTarget::Registrant { callback, name: Name::from("bob"), private: [1; 16] };
            let told = Notice { target, ..notice(ip, &[]) };
            assert_eq!(fixture.notice(told).await, NoticeResult::Answered);
        });
    });
}

//! Without the lease on the store nothing is sent, and nothing counts against a host.

use super::*;
use bytes::Bytes;
use store::Lease;
use store::lease::boottime;
use testbed::peer::{Answer, ReceivedCall, script};
use wire::nlm::{self, Status, StatusReply, Version, Versioned};
use wire::nsm;

use crate::peer::tests::{lease, lose};
use crate::transport::{self, Peer};

/// A host that grants everything, a fixture that calls it, and the lease that it needs.
async fn leased() -> (Host, Fixture, Lease) {
    let granted = |_: &ReceivedCall| {
        let reply = StatusReply { cookie: b""[..].into(), status: Status::Granted };
        Answer::Results(reply.to_bytes_as(Version::V4))
    };
    let mut host = a_host().await;
    host.tcp(nlm::PROGRAM, 4, script(granted)).await;
    host.udp(nlm::PROGRAM, 4, script(granted)).await;
    host.tcp(nsm::PROGRAM, 1, script(|_| Answer::results(&()))).await;
    let lease = lease();
    let service_lease = ServiceLease::new(Some(lease.clone()));
    let peers =
        peer::Settings { rpcbind_port: host.rpcbind_port, lease: service_lease, ..quick_peers() };
    (host, Fixture::calling(peers).await, lease)
}

#[tokio::test]
async fn without_the_lease_nothing_is_sent_not_even_a_lookup() {
    let (host, mut fixture, lease) = leased().await;
    lose(&lease);
    for transport in [Transport::Tcp, Transport::Udp] {
        for form in [Form::Call, Form::Message] {
            let told = Grant { form, ..grant(host.ip, transport) };
            assert_eq!(fixture.grant(told).await, GrantAnswer::Unsent, "{transport:?} {form:?}");
        }
    }
    let told = notice(host.ip, &[(OURS, "server"), ("127.0.0.2".parse().unwrap(), "server")]);
    assert_eq!(fixture.notice(told).await, NoticeResult::Unsent);
    for transport in [transport::Transport::Tcp, transport::Transport::Udp] {
        let asked = Peer::new(SocketAddr::new(host.ip, 700), fixture.listening, transport);
        fixture.callbacks.send_result(&asked, Version::V4, 12, Bytes::new());
    }
    tokio::time::sleep(MOMENT).await;
    assert!(host.calls().is_empty() && host.lookups().is_empty() && host.connections() == 0);
    lease.renew(boottime(), true);
    assert_eq!(fixture.grant(grant(host.ip, Transport::Tcp)).await, GrantAnswer::Accepted);
}

#[tokio::test]
async fn a_cached_port_or_kept_connection_is_not_used_without_the_lease() {
    let (host, mut fixture, lease) = leased().await;
    for transport in [Transport::Tcp, Transport::Udp] {
        assert_eq!(fixture.grant(grant(host.ip, transport)).await, GrantAnswer::Accepted);
    }
    lose(&lease);
    for transport in [Transport::Tcp, Transport::Udp] {
        for form in [Form::Call, Form::Message] {
            let told = Grant { form, ..grant(host.ip, transport) };
            assert_eq!(fixture.grant(told).await, GrantAnswer::Unsent, "{transport:?} {form:?}");
        }
    }
    assert_eq!(host.calls().len(), 2);
}

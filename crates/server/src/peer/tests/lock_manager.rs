//! Streams of witnesses and NULL calls: which hosts may be called, and what counts as an answer.

use super::*;
use keeper::identity::Transport;
use testbed::peer::{Answer, script};
use wire::nlm;
use wire::rpc::{Accepted, Credential};

use crate::peer::Failure;

const BOTH: [Transport; 2] = [Transport::Tcp, Transport::Udp];

/// A host whose lock manager gives that answer over both transports.
async fn host_that(answer: Answer) -> Host {
    let mut host = a_host().await;
    let script = script(move |_| answer.clone());
    host.tcp(nlm::PROGRAM, 4, script.clone()).await;
    host.udp(nlm::PROGRAM, 4, script).await;
    host
}

fn of(host: IpAddr, ours: IpAddr) -> LockManager {
    LockManager { host, ours, version: 4 }
}

#[tokio::test]
async fn a_client_on_this_machine_that_came_over_loopback_is_pinged_and_has_a_witness() {
    let host = host_that(Answer::results(&())).await;
    let (peers, to) = (peers(host.rpcbind_port), of(host.ip, OURS));
    for transport in BOTH {
        assert!(peers.answers_null(&to, transport, soon()).await, "{transport:?}");
    }
    let stream = peers.stream(&to, soon()).await.unwrap();
    assert!(stream.send_null().unwrap());
    stream.socket().readable().await.unwrap();
    let call = host.calls();
    assert_eq!(call.len(), 3);
    for call in call {
        assert_eq!((call.program, call.version, call.procedure), (nlm::PROGRAM, 4, 0));
        assert_eq!((call.credential, call.from.ip()), (Credential::None, OURS));
    }
}

#[tokio::test]
async fn a_refusal_is_an_answer_and_silence_is_none() {
    let host = host_that(Answer::Status(Accepted::ProgramUnavailable)).await;
    let silent = host_that(Answer::Nothing).await;
    for transport in BOTH {
        let to = of(host.ip, OURS);
        assert!(peers(host.rpcbind_port).answers_null(&to, transport, soon()).await);
        let to = of(silent.ip, OURS);
        assert!(!peers(silent.rpcbind_port).answers_null(&to, transport, soon()).await);
    }
}

#[tokio::test]
async fn nobody_inside_is_pinged_or_has_a_witness_for_somebody_outside() {
    let host = host_that(Answer::results(&())).await;
    let outside = "198.51.100.1".parse().unwrap();
    let (peers, to) = (peers(host.rpcbind_port), of(host.ip, outside));
    assert!(!peers.may_call(host.ip, outside) && peers.may_call(host.ip, OURS));
    for transport in BOTH {
        assert!(!peers.answers_null(&to, transport, soon()).await);
    }
    assert_eq!(peers.stream(&to, soon()).await.err(), Some(Failure::Unsent));
    assert!(host.lookups().is_empty() && host.connections() == 0);
}

#[tokio::test]
async fn this_server_is_no_witness_for_a_client_on_this_machine() {
    let host = Host::bind(OURS, 0, RpcbindKind::Full).await;
    let (at, socket) = listening().await;
    for tcp in [true, false] {
        host.register(nlm::PROGRAM, 4, tcp, at.port());
    }
    let settings = Settings { rpcbind_port: host.rpcbind_port, ..quick() };
    let to = of(OURS, OURS);
    for bound in [at, SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), at.port())] {
        let peers = Peers::new(settings.clone(), &[(bound, socket.clone())]);
        assert_eq!(peers.stream(&to, soon()).await.err(), Some(Failure::Unsent));
        assert!(!peers.answers_null(&to, Transport::Udp, soon()).await);
    }
}

#[tokio::test]
async fn without_the_lease_nobody_is_pinged_and_a_witness_says_nothing() {
    let host = host_that(Answer::results(&())).await;
    let (lease, to) = (lease(), of(host.ip, OURS));
    let service_lease = ServiceLease::new(Some(lease.clone()));
    let peers = Peers::new(
        Settings { rpcbind_port: host.rpcbind_port, lease: service_lease, ..quick() },
        &[],
    );
    let stream = peers.stream(&to, soon()).await.unwrap();
    let lookups = host.lookups().len();
    lose(&lease);
    assert!(!stream.send_null().unwrap());
    assert_eq!(peers.stream(&to, soon()).await.err(), Some(Failure::Unsent));
    for transport in BOTH {
        assert!(!peers.answers_null(&to, transport, soon()).await);
    }
    assert!(host.calls().is_empty());
    assert_eq!(host.lookups().len(), lookups);
}

//! The streams of witnesses and the pings: whom they may go to, and what they take for an answer.

use super::scripted::{Answer, script};
use super::*;
use keeper::identity::Transport;
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
    let host = host_that(Answer::with(&())).await;
    let (peers, to) = (peers(host.rpcbind_port), of(host.ip, OURS));
    for transport in BOTH {
        assert!(peers.answers_null(&to, transport, soon()).await, "{transport:?}");
    }
    let stream = peers.stream(&to, soon()).await.unwrap();
    assert!(stream.send_null().unwrap());
    stream.socket().readable().await.unwrap();
    let heard = host.calls();
    assert_eq!(heard.len(), 3);
    for heard in heard {
        assert_eq!((heard.program, heard.version, heard.procedure), (nlm::PROGRAM, 4, 0));
        assert_eq!((heard.credential, heard.from.ip()), (Credential::None, OURS));
    }
}

#[tokio::test]
async fn a_refusal_is_an_answer_and_silence_is_none() {
    let host = host_that(Answer::Verdict(Accepted::ProgramUnavailable)).await;
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
    let host = host_that(Answer::with(&())).await;
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
    let host = Host::at(OURS, 0, Rpcbind::Usual).await;
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
    let host = host_that(Answer::with(&())).await;
    let (lease, to) = (lease(), of(host.ip, OURS));
    let tenure = Tenure::new(Some(lease.clone()));
    let peers = Peers::new(Settings { rpcbind_port: host.rpcbind_port, tenure, ..quick() }, &[]);
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

//! SM_STAT to scripted status monitors, and to Debian's rpc.statd.

use super::*;
use bytes::Bytes;
use testbed::debian::{Machine, state_directory};
use testbed::namespace::Namespace;
use testbed::peer::{Answer, Script, script};
use wire::nsm::{self, Name, Outcome, StatReply};
use wire::rpc::Accepted;
use wire::{Decode, Encode};

const STATE: u32 = 4_000_000_001;

fn reply(outcome: Outcome, state: u32) -> Answer {
    Answer::results(&StatReply { outcome, state: state.cast_signed() })
}

fn always(answer: Answer) -> Script {
    script(move |_| answer.clone())
}

async fn state_of(host: &Host) -> Option<u32> {
    peers(host.rpcbind_port).nsm_state(host.ip, OURS, soon()).await
}

#[tokio::test]
async fn the_state_is_that_of_the_reply_whether_or_not_the_monitor_knows_the_name() {
    for outcome in [Outcome::Success, Outcome::Failure] {
        let mut host = a_host().await;
        host.udp(nsm::PROGRAM, 1, always(reply(outcome, STATE))).await;
        assert_eq!(state_of(&host).await, Some(STATE));
        let [call] = &host.calls()[..] else { panic!("{:?}", host.calls()) };
        assert_eq!((call.program, call.version, call.procedure), (nsm::PROGRAM, 1, 1));
        assert_eq!(Name::from_bytes(call.args.clone()), Ok(Name::from("127.0.0.1")));
        assert_eq!(call.from.ip(), OURS);
    }
}

#[tokio::test]
async fn tcp_is_used_where_udp_is_not_registered_or_silent() {
    let mut host = a_host().await;
    host.tcp(nsm::PROGRAM, 1, always(reply(Outcome::Success, STATE))).await;
    assert_eq!(state_of(&host).await, Some(STATE));
    let mut host = a_host().await;
    host.udp(nsm::PROGRAM, 1, always(Answer::Nothing)).await;
    host.tcp(nsm::PROGRAM, 1, always(reply(Outcome::Success, STATE))).await;
    assert_eq!(state_of(&host).await, Some(STATE));
    let by_tcp: Vec<bool> = host.calls().iter().map(|call| call.over_tcp).collect();
    assert!(!by_tcp[0] && by_tcp.contains(&true), "{by_tcp:?}");
}

#[tokio::test]
async fn an_answer_that_comes_late_over_udp_is_an_answer() {
    let mut host = a_host().await;
    let late = StatReply { outcome: Outcome::Success, state: STATE.cast_signed() };
    let late = Answer::Delayed(Duration::from_millis(1_200), late.to_bytes());
    host.udp(nsm::PROGRAM, 1, always(late)).await;
    assert_eq!(state_of(&host).await, Some(STATE));
}

#[tokio::test]
async fn any_other_reply_is_no_state() {
    let whole = StatReply { outcome: Outcome::Success, state: 7 }.to_bytes();
    let other = Bytes::from_static(&[0, 0, 0, 2, 0, 0, 0, 7]);
    let long: Bytes = [&whole[..], b"more"].concat().into();
    let answers = [
        Answer::Nothing,
        Answer::Close,
        Answer::Status(Accepted::ProgramUnavailable),
        Answer::WrongXid(whole.clone()),
        Answer::Results(whole.slice(..4)),
        Answer::Results(long),
        Answer::Results(other),
        reply(Outcome::Failure, 0),
    ];
    for answer in answers {
        let mut host = a_host().await;
        host.udp(nsm::PROGRAM, 1, always(answer.clone())).await;
        host.tcp(nsm::PROGRAM, 1, always(answer.clone())).await;
        let begun = Instant::now();
        assert_eq!(state_of(&host).await, None, "{answer:?}");
        assert!(begun.elapsed() < Duration::from_secs(5), "{answer:?}");
    }
    assert_eq!(state_of(&a_host().await).await, None, "no status monitor");
    let nobody = peers(9).nsm_state(address(), OURS, soon()).await;
    assert_eq!(nobody, None, "no rpcbind");
}

#[tokio::test]
async fn nobody_waits_longer_than_five_seconds() {
    let host = Host::bind(address(), 0, RpcbindKind::Silent).await;
    let begun = Instant::now();
    let patient = begun + Duration::from_secs(60);
    assert_eq!(peers(host.rpcbind_port).nsm_state(host.ip, OURS, patient).await, None);
    assert!(begun.elapsed() <= Duration::from_secs(6), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn neither_a_local_address_for_a_remote_requester_nor_anything_without_the_lease_is_asked() {
    let mut host = a_host().await;
    host.udp(nsm::PROGRAM, 1, always(reply(Outcome::Success, STATE))).await;
    let lease = lease();
    let service_lease = ServiceLease::new(Some(lease.clone()));
    let peers = Peers::new(
        Settings { rpcbind_port: host.rpcbind_port, lease: service_lease, ..quick() },
        &[],
    );
    let outside = "198.51.100.1".parse().unwrap();
    assert_eq!(peers.nsm_state(host.ip, outside, soon()).await, None);
    lose(&lease);
    assert_eq!(peers.nsm_state(host.ip, OURS, soon()).await, None);
    assert!(host.lookups().is_empty() && host.calls().is_empty());
    lease.renew(boottime(), true);
    assert_eq!(peers.nsm_state(host.ip, OURS, soon()).await, Some(STATE));
}

#[tokio::test]
async fn this_server_does_not_answer_for_a_client_on_this_machine() {
    let host = Host::bind(OURS, 0, RpcbindKind::Full).await;
    let (at, socket) = listening().await;
    host.register(nsm::PROGRAM, 1, false, at.port());
    let settings = Settings { rpcbind_port: host.rpcbind_port, ..quick() };
    let begun = Instant::now();
    let peers = Peers::new(settings, &[(at, socket)]);
    assert_eq!(peers.nsm_state(OURS, OURS, soon()).await, None);
    assert!(begun.elapsed() < Duration::from_secs(1), "it was asked");
}

#[test]
fn a_real_status_monitor_answers_with_the_state_of_its_file() {
    let network = Namespace::new().unwrap();
    let dir = state_directory(4_711).unwrap();
    let machine = Machine::boot(&network).unwrap();
    let _rpcbind = machine.rpcbind().unwrap();
    let _statd = machine.statd(&dir).unwrap();
    network.enter(|| {
        let written = std::fs::read(dir.path().join("state")).unwrap();
        let written = u32::from_ne_bytes(written[..4].try_into().unwrap());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let peers = Peers::new(Settings { send_from_reserved_ports: true, ..quick() }, &[]);
            for ip in ["127.0.0.1", "::1"] {
                let ip = ip.parse().unwrap();
                assert_eq!(peers.nsm_state(ip, ip, soon()).await, Some(written), "{ip}");
                let by_tcp = peers.state_by_tcp(ip, ip, soon()).await;
                assert_eq!(by_tcp, Ok(written), "{ip}");
            }
        });
        assert_eq!(written, 4_711);
    });
}

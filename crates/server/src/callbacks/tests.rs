//! Callbacks calls against scripted hosts, each on an address of its own of loopback.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails so")]

mod grants;
mod lease;
mod many;
mod messages;
mod neighbours;
mod notices;
mod rpcbind;
mod statd;
#[allow(dead_code, reason = "the tests of the whole server use it too")]
#[path = "../../tests/support/world.rs"]
mod world;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use keeper::bytes::{Handle, Name, OwnerTag};
use keeper::identity::{ClientId, GrantId, Lane, NoticeId, Owner, Transport};
use keeper::range::Range;
use keeper::request::{Form, GrantAnswer, Mode, NoticeResult};
use keeper::step::{Grant, Notice, NoticeTarget};
use tokio::net::UdpSocket;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::{Callbacks, Report, Settings};
use crate::peer::tests::scripted::{Host, Rpcbind};
use crate::peer::tests::{OURS, a_host, address, network, quick as quick_peers, scripted};
use crate::peer::{self, Peers};
use crate::tenure::Tenure;
use crate::transport::udp::Datagrams;

/// How long anything on this machine may take before a test gives up.
const PATIENCE: Duration = Duration::from_secs(20);
/// Long enough for what must not happen to happen.
const MOMENT: Duration = Duration::from_millis(200);

struct Fixture {
    callbacks: Callbacks,
    peers: Peers,
    reports: mpsc::UnboundedReceiver<Report>,
    listening: SocketAddr,
    _sockets: Vec<(SocketAddr, Arc<Datagrams>)>,
}

impl Fixture {
    /// With hosts whose rpcbind listens on that port.
    async fn new(rpcbind_port: u16) -> Self {
        Self::calling(peer::Settings { rpcbind_port, ..quick_peers() }).await
    }

    async fn calling(peers: peer::Settings) -> Self {
        Self::with(peers, quick()).await
    }

    async fn with(peers: peer::Settings, settings: Settings) -> Self {
        let (sender, reports) = mpsc::unbounded_channel();
        let socket = UdpSocket::bind((OURS, 0)).await.unwrap();
        let listening = socket.local_addr().unwrap();
        let sockets =
            vec![(listening, Arc::new(Datagrams::new(socket, Tenure::default()).unwrap()))];
        let report = Arc::new(move |report| {
            let _ = sender.send(report);
        });
        let peers = Peers::new(peers, &sockets);
        let callbacks = Callbacks::new(settings, peers.clone(), report);
        Self { callbacks, peers, reports, listening, _sockets: sockets }
    }

    async fn report(&mut self) -> Report {
        timeout(PATIENCE, self.reports.recv()).await.expect("in vain waited for a report").unwrap()
    }

    /// Sends it and says what became of it; exactly one report comes.
    async fn grant(&mut self, grant: Grant) -> GrantAnswer {
        let sent = grant.id;
        self.callbacks.send_grant(grant);
        match self.report().await {
            Report::Granted(id, answer) if id == sent => answer,
            other => panic!("{other:?} is no report on {sent:?}"),
        }
    }

    async fn notice(&mut self, notice: Notice) -> NoticeResult {
        let sent = notice.id;
        self.callbacks.send_notice(notice);
        match self.report().await {
            Report::Noticed(id, result) if id == sent => result,
            other => panic!("{other:?} is no report on {sent:?}"),
        }
    }

    async fn no_more_reports(&mut self) {
        let more = timeout(MOMENT, self.reports.recv()).await;
        assert!(more.is_err(), "a second report: {more:?}");
    }
}

/// As in production, but with less patience.
fn quick() -> Settings {
    Settings { attempt: Duration::from_millis(2_500), ..Settings::default() }
}

fn unique() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0x0102_0304_0506_0708);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A waiter's lock in version 4, told by a call.
fn grant(to: IpAddr, transport: Transport) -> Grant {
    grant_in(to, Lane::new(OURS, transport, 4))
}

fn grant_in(to: IpAddr, lane: Lane) -> Grant {
    let tag = OwnerTag::from("7@alice");
    Grant {
        id: GrantId(unique()),
        to,
        owner: Arc::new(Owner { host: ClientId(1), lane, number: 7, tag }),
        name: Name::from("alice"),
        handle: Handle::new(&[0xfe; 28]),
        range: Range::at(100, 0).unwrap(),
        mode: Mode::Exclusive,
        form: Form::Call,
        attempt: 1,
        since: Duration::ZERO,
    }
}

/// "We restarted", under each of these names, from each of these addresses.
fn notice(to: IpAddr, pairs: &[(IpAddr, &str)]) -> Notice {
    let pairs: Vec<_> = pairs.iter().map(|(ours, name)| (*ours, Name::from(*name))).collect();
    Notice {
        id: NoticeId(unique()),
        client: ClientId(1),
        to,
        state: 4_000_000_001,
        target: NoticeTarget::Host(pairs.into()),
        attempt: 1,
    }
}

//! Callbacks to scripted hosts, each on its own loopback address.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod grants;
mod lease;
mod many;
mod messages;
mod neighbours;
mod notices;
mod rpcbind;
mod statd;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use keeper::bytes::{Handle, Name, OwnerTag};
use keeper::identity::{ClientId, GrantId, NoticeId, Owner, OwnerNamespace, Transport};
use keeper::range::Range;
use keeper::request::{Form, GrantAnswer, Mode, NoticeResult};
use keeper::step::{Grant, Notice, NoticeTarget};
use testbed::peer::{Host, RpcbindKind};
use testbed::wait::{LIMIT, bounded};
use tokio::net::UdpSocket;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::{Callbacks, Report, Settings};
use crate::peer::tests::{OURS, a_host, address, quick as quick_peers};
use crate::peer::{self, Peers};
use crate::service_lease::ServiceLease;
use crate::transport::udp::Datagrams;

/// Time enough for a forbidden effect to show.
const MOMENT: Duration = Duration::from_millis(200);

struct Fixture {
    callbacks: Callbacks,
    peers: Peers,
    reports: mpsc::UnboundedReceiver<Report>,
    listening: SocketAddr,
    _sockets: Vec<(SocketAddr, Arc<Datagrams>)>,
}

impl Fixture {
    /// For hosts whose rpcbind listens on that port.
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
            vec![(listening, Arc::new(Datagrams::new(socket, ServiceLease::default()).unwrap()))];
        let report = Arc::new(move |report| {
            let _ = sender.send(report);
        });
        let peers = Peers::new(peers, &sockets);
        let callbacks = Callbacks::new(settings, peers.clone(), report);
        Self { callbacks, peers, reports, listening, _sockets: sockets }
    }

    async fn report(&mut self) -> Report {
        bounded("a report", self.reports.recv()).await.unwrap()
    }

    /// Sends a grant and returns its outcome; exactly one report must come.
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

/// Production settings with shorter timeouts.
fn quick() -> Settings {
    Settings { attempt_max: Duration::from_millis(2_500), ..Settings::default() }
}

fn unique() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0x0102_0304_0506_0708);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A grant in version 4 by GRANTED.
fn grant(to: IpAddr, transport: Transport) -> Grant {
    grant_in(to, OwnerNamespace::new(OURS, transport, 4))
}

fn grant_in(to: IpAddr, namespace: OwnerNamespace) -> Grant {
    let tag = OwnerTag::from("7@alice");
    Grant {
        id: GrantId(unique()),
        to,
        owner: Arc::new(Owner { host: ClientId(1), namespace, number: 7, tag }),
        name: Name::from("alice"),
        handle: Handle::new(&[0xfe; 28]),
        range: Range::at(100, 0).unwrap(),
        mode: Mode::Exclusive,
        form: Form::Call,
        attempt: 1,
        since: Duration::ZERO,
    }
}

/// A notice of our restart, under each of these names from its address.
fn notice(to: IpAddr, pairs: &[(IpAddr, &str)]) -> Notice {
    let pairs: Vec<_> = pairs.iter().map(|(ours, name)| (*ours, Name::from(*name))).collect();
    Notice {
        id: NoticeId(unique()),
        client: Some(ClientId(1)),
        to,
        state: 4_000_000_001,
        target: NoticeTarget::Host(pairs.into()),
        attempt: 1,
    }
}

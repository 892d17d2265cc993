//! One attempt at a reboot notice: SM_NOTIFY to a host (B4.3, B4.4), or the status call to a
//! registrant (B3.4).
//!
//! Neither a cached port nor a kept connection is used: the peer may have restarted as well.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use keeper::identity::Transport;
use keeper::request::NoticeResult;
use keeper::step::{Notice, NoticeTarget};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};
use wire::Encode;
use wire::nsm::{self, NotifyArgs, StatusArgs};
use wire::rpc::ProcedureId;

use super::Inner;
use crate::peer::{Failure, PeerService, Purpose, remaining};

/// A task that sees its deadline later than this was not scheduled in time.
const LATE: Duration = Duration::from_millis(500);

/// The calls of one notice that are sent from one of our addresses.
struct NoticeCalls {
    to: IpAddr,
    /// Unspecified: the system chooses.
    from: IpAddr,
    procedure: ProcedureId,
    calls: Vec<NoticeCall>,
}

/// One call. A host gets one for each name under which it may know that address.
struct NoticeCall {
    args: Bytes,
    answered: AtomicBool,
}

impl NoticeCalls {
    fn service(&self, transport: Transport) -> PeerService {
        let ProcedureId { program, version, .. } = self.procedure;
        PeerService { host: self.to, program, version, transport }
    }

    /// Arguments of the calls that are not answered yet, with their indices.
    fn unanswered(&self) -> Vec<(usize, Bytes)> {
        let calls = self.calls.iter().enumerate();
        calls
            .filter(|(_, call)| !call.answered.load(Ordering::Relaxed))
            .map(|(index, call)| (index, call.args.clone()))
            .collect()
    }

    fn set_answered(&self, index: usize) {
        if let Some(call) = self.calls.get(index) {
            call.answered.store(true, Ordering::Relaxed);
        }
    }

    fn is_done(&self) -> bool {
        self.calls.iter().all(|call| call.answered.load(Ordering::Relaxed))
    }

    fn is_answered(&self) -> bool {
        self.calls.iter().any(|call| call.answered.load(Ordering::Relaxed))
    }
}

/// Whether anything was sent to the peer; its answers are recorded in the calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Attempt {
    Sent,
    /// Does not count as an attempt (B4.3).
    Unsent,
}

impl From<Failure> for Attempt {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Unsent => Self::Unsent,
            Failure::NotRegistered | Failure::Broken | Failure::NoAnswer => Self::Sent,
        }
    }
}

impl Inner {
    pub(super) async fn notice(self: &Arc<Self>, notice: Notice) -> NoticeResult {
        let until = self.deadline();
        let all = calls_of(&notice);
        if let [calls] = &all[..] {
            return self.run(calls, until).await;
        }
        let mut running = JoinSet::new();
        for calls in all {
            let inner = self.clone();
            running.spawn(async move { inner.run(&calls, until).await });
        }
        let mut result = NoticeResult::Unsent;
        while let Some(one) = running.join_next().await {
            result = match (result, one.unwrap_or(NoticeResult::Unsent)) {
                (NoticeResult::Answered, _) | (_, NoticeResult::Answered) => NoticeResult::Answered,
                (NoticeResult::Failed, _) | (_, NoticeResult::Failed) => NoticeResult::Failed,
                _ => NoticeResult::Unsent,
            };
        }
        result
    }

    async fn run(&self, calls: &NoticeCalls, until: Instant) -> NoticeResult {
        let attempt = timeout_at(until, self.send(calls, until)).await.unwrap_or({
            // If this task was delayed, answers may be unread in the socket.
            if Instant::now() > until + LATE { Attempt::Unsent } else { Attempt::Sent }
        });
        match attempt {
            _ if calls.is_answered() => NoticeResult::Answered,
            Attempt::Sent => NoticeResult::Failed,
            Attempt::Unsent => NoticeResult::Unsent,
        }
    }

    /// Sends by TCP, and by UDP if TCP is not registered, fails or does not answer soon.
    async fn send(&self, calls: &NoticeCalls, until: Instant) -> Attempt {
        let find = || self.peers.find_port(calls.service(Transport::Tcp), calls.from, until);
        // Over IPv4 one lookup says whether rpcbind answers at all; over IPv6 each transport needs a
        // lookup of its own.
        let port = match calls.to {
            IpAddr::V4(_) => match find().await {
                Err(Failure::NotRegistered) => return self.send_by_udp(calls, until).await,
                Err(failure) => return failure.into(),
                Ok(port) => Some(port),
            },
            IpAddr::V6(_) => None,
        };
        let mut by_tcp = Box::pin(async {
            let found = match port {
                Some(port) => Ok(port),
                None => find().await,
            };
            match found {
                Ok(port) => self.send_by_tcp(calls, port, until).await,
                Err(failure) => failure.into(),
            }
        });
        let fallback_after = self.peers.settings().fallback_after;
        let first = timeout(fallback_after.min(remaining(until)), &mut by_tcp).await;
        if calls.is_done() {
            return Attempt::Sent;
        }
        let mut by_udp = Box::pin(self.send_by_udp(calls, until));
        let (tcp, udp) = match first {
            Ok(tcp) => (tcp, by_udp.await),
            Err(_) => tokio::select! {
                tcp = &mut by_tcp => (tcp, if calls.is_done() { Attempt::Sent } else { by_udp.await }),
                udp = &mut by_udp => (if calls.is_done() { Attempt::Sent } else { by_tcp.await }, udp),
            },
        };
        if tcp == Attempt::Unsent { udp } else { Attempt::Sent }
    }

    async fn send_by_tcp(&self, calls: &NoticeCalls, port: u16, until: Instant) -> Attempt {
        let at = SocketAddr::new(calls.to, port);
        let (unanswered, answered) = (calls.unanswered(), |index| calls.set_answered(index));
        let sent = self
            .peers
            .call_each(at, calls.from, calls.procedure, &unanswered, until, answered)
            .await;
        sent.map_or_else(Attempt::from, |()| Attempt::Sent)
    }

    async fn send_by_udp(&self, calls: &NoticeCalls, until: Instant) -> Attempt {
        let service = calls.service(Transport::Udp);
        let port = match self.peers.find_port(service, calls.from, until).await {
            Ok(port) => port,
            Err(failure) => return failure.into(),
        };
        let (at, from, procedure) = (SocketAddr::new(calls.to, port), calls.from, calls.procedure);
        let mut running = JoinSet::new();
        for (index, args) in calls.unanswered() {
            let peers = self.peers.clone();
            running.spawn(async move {
                (index, peers.call_udp(at, from, Purpose::Status, procedure, &args, until).await)
            });
        }
        let mut attempt = Attempt::Unsent;
        while let Some(called) = running.join_next().await {
            match called {
                Ok((index, Ok(_))) => {
                    calls.set_answered(index);
                    attempt = Attempt::Sent;
                }
                Ok((_, Err(Failure::Unsent))) | Err(_) => {}
                Ok((_, Err(_))) => attempt = Attempt::Sent,
            }
        }
        attempt
    }
}

/// The calls of a notice, grouped by the address of ours that each is sent from.
fn calls_of(notice: &Notice) -> Vec<NoticeCalls> {
    let state = notice.state.cast_signed();
    let call = |args: Bytes| NoticeCall { args, answered: AtomicBool::new(false) };
    match &notice.target {
        NoticeTarget::Host(pairs) => {
            let mut by_address: BTreeMap<IpAddr, Vec<NoticeCall>> = BTreeMap::new();
            for (ours, name) in pairs.iter() {
                let args = NotifyArgs { mon_name: name.bytes().to_vec().into(), state };
                by_address.entry(*ours).or_default().push(call(args.to_bytes()));
            }
            let procedure = ProcedureId::of::<nsm::Notify>();
            by_address
                .into_iter()
                .map(|(from, calls)| NoticeCalls { to: notice.to, from, procedure, calls })
                .collect()
        }
        NoticeTarget::Registrant { callback, name, private } => {
            let args =
                StatusArgs { mon_name: name.bytes().to_vec().into(), state, private: *private };
            let any = match notice.to {
                IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
                IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
            };
            let procedure =
                ProcedureId::new(callback.program, callback.version, callback.procedure);
            let calls = vec![call(args.to_bytes())];
            vec![NoticeCalls { to: notice.to, from: any, procedure, calls }]
        }
    }
}

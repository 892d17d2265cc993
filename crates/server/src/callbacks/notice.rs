//! Notices: "the machine called so is now in that state" (R2.2 to R2.4). One attempt.
//!
//! Always over new sockets and by a new look-up: the peer may have restarted as well.

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
use wire::rpc::Procedure;

use super::Inner;
use crate::peer::{Failure, Numbers, Purpose, Service, rest};

/// A task that sees its deadline only so much later was kept from running.
const LATE: Duration = Duration::from_millis(500);

/// The calls of one notice that leave from one of our addresses.
struct NoticeCalls {
    to: IpAddr,
    /// Unspecified: the system chooses.
    from: IpAddr,
    numbers: Numbers,
    calls: Vec<NoticeCall>,
}

/// One call: a host is told each name of ours by one.
struct NoticeCall {
    args: Bytes,
    answered: AtomicBool,
}

impl NoticeCalls {
    fn service(&self, transport: Transport) -> Service {
        let (program, version, _) = self.numbers;
        Service { host: self.to, program, version, transport }
    }

    /// Those that are not answered yet, by number.
    fn unanswered(&self) -> Vec<(usize, Bytes)> {
        let calls = self.calls.iter().enumerate();
        calls
            .filter(|(_, call)| !call.answered.load(Ordering::Relaxed))
            .map(|(number, call)| (number, call.args.clone()))
            .collect()
    }

    fn set_answered(&self, number: usize) {
        if let Some(call) = self.calls.get(number) {
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

/// Whether the peer was tried over a transport; what it answered is noted in the calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Attempt {
    Made,
    /// Not an attempt (R2.2).
    Unsent,
}

impl From<Failure> for Attempt {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Unsent => Self::Unsent,
            Failure::NotRegistered | Failure::Broken | Failure::NoAnswer => Self::Made,
        }
    }
}

impl Inner {
    pub async fn notice(self: &Arc<Self>, notice: Notice) -> NoticeResult {
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
        let attempt = timeout_at(until, self.tell(calls, until)).await.unwrap_or({
            // Answers may lie unread when we are so late ourselves.
            if Instant::now() > until + LATE { Attempt::Unsent } else { Attempt::Made }
        });
        match attempt {
            _ if calls.is_answered() => NoticeResult::Answered,
            Attempt::Made => NoticeResult::Failed,
            Attempt::Unsent => NoticeResult::Unsent,
        }
    }

    /// TCP; and UDP where there is no TCP or it does not answer soon.
    async fn tell(&self, calls: &NoticeCalls, until: Instant) -> Attempt {
        let find = || self.peers.find_port(calls.service(Transport::Tcp), calls.from, until);
        // Over IPv4 a host that names no port over TCP names none over UDP either; over IPv6 each
        // transport is asked about by itself.
        let port = match calls.to {
            IpAddr::V4(_) => match find().await {
                Err(Failure::NotRegistered) => return self.tell_by_udp(calls, until).await,
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
                Ok(port) => self.tell_by_tcp(calls, port, until).await,
                Err(failure) => failure.into(),
            }
        });
        let alone = self.peers.settings().alone;
        let first = timeout(alone.min(rest(until)), &mut by_tcp).await;
        if calls.is_done() {
            return Attempt::Made;
        }
        let mut by_udp = Box::pin(self.tell_by_udp(calls, until));
        let (tcp, udp) = match first {
            Ok(tcp) => (tcp, by_udp.await),
            Err(_) => tokio::select! {
                tcp = &mut by_tcp => (tcp, if calls.is_done() { Attempt::Made } else { by_udp.await }),
                udp = &mut by_udp => (if calls.is_done() { Attempt::Made } else { by_tcp.await }, udp),
            },
        };
        if tcp == Attempt::Unsent { udp } else { Attempt::Made }
    }

    async fn tell_by_tcp(&self, calls: &NoticeCalls, port: u16, until: Instant) -> Attempt {
        let at = SocketAddr::new(calls.to, port);
        let (unanswered, answered) = (calls.unanswered(), |number| calls.set_answered(number));
        let told =
            self.peers.call_each(at, calls.from, calls.numbers, &unanswered, until, answered).await;
        told.map_or_else(Attempt::from, |()| Attempt::Made)
    }

    async fn tell_by_udp(&self, calls: &NoticeCalls, until: Instant) -> Attempt {
        let service = calls.service(Transport::Udp);
        let port = match self.peers.find_port(service, calls.from, until).await {
            Ok(port) => port,
            Err(failure) => return failure.into(),
        };
        let (at, from, numbers) = (SocketAddr::new(calls.to, port), calls.from, calls.numbers);
        let mut running = JoinSet::new();
        for (number, args) in calls.unanswered() {
            let peers = self.peers.clone();
            running.spawn(async move {
                (number, peers.call_udp(at, from, Purpose::Status, numbers, &args, until).await)
            });
        }
        let mut attempt = Attempt::Unsent;
        while let Some(called) = running.join_next().await {
            match called {
                Ok((number, Ok(_))) => {
                    calls.set_answered(number);
                    attempt = Attempt::Made;
                }
                Ok((_, Err(Failure::Unsent))) | Err(_) => {}
                Ok((_, Err(_))) => attempt = Attempt::Made,
            }
        }
        attempt
    }
}

/// One set of calls for each of our addresses that the host used.
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
            let numbers = (nsm::PROGRAM, nsm::VERSION, nsm::Notify::NUMBER);
            by_address
                .into_iter()
                .map(|(from, calls)| NoticeCalls { to: notice.to, from, numbers, calls })
                .collect()
        }
        NoticeTarget::Registrant { callback, watched, private } => {
            let args =
                StatusArgs { mon_name: watched.bytes().to_vec().into(), state, private: *private };
            let any = match notice.to {
                IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
                IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
            };
            let numbers = (callback.program, callback.version, callback.procedure);
            let calls = vec![call(args.to_bytes())];
            vec![NoticeCalls { to: notice.to, from: any, numbers, calls }]
        }
    }
}

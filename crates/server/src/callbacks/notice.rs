//! Notices: "the machine called so is now in that state" (R2.2 to R2.4). One attempt.
//!
//! Always over new sockets and by a new look-up: the peer may have restarted as well.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use client::{ConnectError, Options, Pipeline};
use keeper::identity::Transport;
use keeper::request::NoticeResult;
use keeper::step::{Notice, NoticeTarget};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};
use tracing::debug;
use wire::Encode;
use wire::nsm::{self, NotifyArgs, StatusArgs};
use wire::rpc::{Accepted, Procedure};

use super::permitted::refusal;
use super::ports::{Missing, Service};
use super::posts::Purpose;
use super::{Inner, lacks_reserved_port, rest, short_replies};

/// Whoever notices the end of its time only so much later was kept from its work.
const LATE: Duration = Duration::from_millis(500);

/// All that one of our addresses has to tell one host.
struct Errand {
    to: IpAddr,
    /// Unspecified: the system chooses.
    from: IpAddr,
    /// Program, version, procedure.
    numbers: (u32, u32, u32),
    bodies: Vec<Body>,
}

struct Body {
    args: Bytes,
    answered: AtomicBool,
}

impl Errand {
    fn service(&self, transport: Transport) -> Service {
        let (program, version, _) = self.numbers;
        Service { host: self.to, program, version, transport }
    }

    fn unanswered(&self) -> impl Iterator<Item = &Body> {
        self.bodies.iter().filter(|body| !body.answered.load(Ordering::Relaxed))
    }

    fn is_done(&self) -> bool {
        self.unanswered().next().is_none()
    }

    fn is_answered(&self) -> bool {
        self.bodies.iter().any(|body| body.answered.load(Ordering::Relaxed))
    }
}

/// What became of one way to tell; answers are noted in the bodies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tried {
    Yes,
    /// Our own trouble (R2.2: not an attempt).
    NotEven,
}

impl Inner {
    pub async fn notice(self: &Arc<Self>, notice: Notice) -> NoticeResult {
        if !self.settings.tenure.holds() {
            return NoticeResult::Unsent;
        }
        let until = self.deadline();
        let mut errands = errands(&notice);
        errands.retain(|errand| match refusal(errand.to, errand.from, &self.own) {
            Some(reason) => {
                debug!("no notice is sent from {} to {}: {reason}", errand.from, errand.to);
                false
            }
            None => true,
        });
        if let [errand] = &errands[..] {
            return self.run(errand, until).await;
        }
        let mut running = JoinSet::new();
        for errand in errands {
            let inner = self.clone();
            running.spawn(async move { inner.run(&errand, until).await });
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

    async fn run(&self, errand: &Errand, until: Instant) -> NoticeResult {
        let tried = timeout_at(until, self.tell(errand, until)).await.unwrap_or({
            // Answers may lie unread when we are so late ourselves.
            if Instant::now() > until + LATE { Tried::NotEven } else { Tried::Yes }
        });
        match tried {
            _ if errand.is_answered() => NoticeResult::Answered,
            Tried::Yes => NoticeResult::Failed,
            Tried::NotEven => NoticeResult::Unsent,
        }
    }

    /// TCP; and UDP where there is no TCP or it does not answer soon.
    async fn tell(&self, errand: &Errand, until: Instant) -> Tried {
        let find =
            || self.ports.find(&self.posts, errand.service(Transport::Tcp), errand.from, until);
        // Over IPv4 whoever names no port over TCP names none over UDP either; over IPv6 each
        // transport is asked about by itself.
        let port = match errand.to {
            IpAddr::V4(_) => match find().await {
                Err(Missing::NotRegistered) => return self.tell_by_udp(errand, until).await,
                Err(Missing::Local) => return Tried::NotEven,
                Err(Missing::NoAnswer) => return Tried::Yes,
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
                Ok(port) => self.tell_by_tcp(errand, port, until).await,
                Err(Missing::Local) => Tried::NotEven,
                Err(Missing::NotRegistered | Missing::NoAnswer) => Tried::Yes,
            }
        });
        let alone = self.settings.alone;
        let first = timeout(alone.min(rest(until)), &mut by_tcp).await;
        if errand.is_done() {
            return Tried::Yes;
        }
        let mut by_udp = Box::pin(self.tell_by_udp(errand, until));
        let (tcp, udp) = match first {
            Ok(tcp) => (tcp, by_udp.await),
            Err(_) => tokio::select! {
                tcp = &mut by_tcp => (tcp, if errand.is_done() { Tried::Yes } else { by_udp.await }),
                udp = &mut by_udp => (if errand.is_done() { Tried::Yes } else { by_tcp.await }, udp),
            },
        };
        if tcp == Tried::NotEven { udp } else { Tried::Yes }
    }

    async fn tell_by_tcp(&self, errand: &Errand, port: u16, until: Instant) -> Tried {
        let to = SocketAddr::new(errand.to, port);
        let options = self.from(errand.from, until, short_replies());
        let connected = match Pipeline::connect(to, &options).await {
            Err(error) if options.reserved_port && lacks_reserved_port(&error) => {
                let any = Options { reserved_port: false, ..options };
                Pipeline::connect(to, &any).await
            }
            connected => connected,
        };
        let mut pipeline = match connected {
            Ok(pipeline) => pipeline,
            Err(error) => {
                debug!("status monitor at {to}: {error}");
                return match error {
                    ConnectError::Bind(_) | ConnectError::NoReservedPort => Tried::NotEven,
                    ConnectError::Timeout(_) | ConnectError::Connect(_) => Tried::Yes,
                };
            }
        };
        let (program, version, procedure) = errand.numbers;
        let mut waiting: HashMap<u32, &Body> = errand
            .unanswered()
            .map(|body| (pipeline.send_raw(program, version, procedure, &body.args), body))
            .collect();
        while !waiting.is_empty() {
            let Ok(reply) = pipeline.recv().await else { break };
            if let Some(body) = waiting.remove(&reply.xid) {
                let answered = reply.verdict == Ok(Accepted::Success);
                body.answered.store(answered, Ordering::Relaxed);
            }
        }
        Tried::Yes
    }

    async fn tell_by_udp(&self, errand: &Errand, until: Instant) -> Tried {
        let service = errand.service(Transport::Udp);
        let port = match self.ports.find(&self.posts, service, errand.from, until).await {
            Ok(port) => port,
            Err(Missing::Local) => return Tried::NotEven,
            Err(Missing::NotRegistered | Missing::NoAnswer) => return Tried::Yes,
        };
        let Ok(client) = self.posts.client(errand.from, Purpose::Notice).await else {
            return Tried::NotEven;
        };
        let to = SocketAddr::new(errand.to, port);
        let mut calls = JoinSet::new();
        for (number, body) in errand.bodies.iter().enumerate() {
            if !body.answered.load(Ordering::Relaxed) {
                let (client, numbers, args) = (client.clone(), errand.numbers, body.args.clone());
                calls.spawn(async move {
                    (number, client.call_raw(to, numbers, &args, rest(until)).await.is_ok())
                });
            }
        }
        while let Some(called) = calls.join_next().await {
            if let Ok((number, true)) = called
                && let Some(body) = errand.bodies.get(number)
            {
                body.answered.store(true, Ordering::Relaxed);
            }
        }
        Tried::Yes
    }
}

/// One errand for each of our addresses that the host used.
fn errands(notice: &Notice) -> Vec<Errand> {
    let state = notice.state.cast_signed();
    let body = |args: Bytes| Body { args, answered: AtomicBool::new(false) };
    match &notice.target {
        NoticeTarget::Host(pairs) => {
            let mut by_address: BTreeMap<IpAddr, Vec<Body>> = BTreeMap::new();
            for (ours, name) in pairs.iter() {
                let args = NotifyArgs { mon_name: name.bytes().to_vec().into(), state };
                by_address.entry(*ours).or_default().push(body(args.to_bytes()));
            }
            let numbers = (nsm::PROGRAM, nsm::VERSION, nsm::Notify::NUMBER);
            by_address
                .into_iter()
                .map(|(from, bodies)| Errand { to: notice.to, from, numbers, bodies })
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
            vec![Errand { to: notice.to, from: any, numbers, bodies: vec![body(args.to_bytes())] }]
        }
    }
}

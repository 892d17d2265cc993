//! One attempt at GRANTED, the callback that tells a waiter that its lock is granted (B2.11).
//!
//! A client that has taken the lock denies a second GRANTED, because it no longer waits; no known
//! client keeps a duplicate request cache. So DENIED counts only if this attempt sent GRANTED exactly
//! once; otherwise the answer is [`GrantAnswer::Unclear`] (I9).

use std::net::SocketAddr;

use keeper::identity::Transport;
use keeper::request::{Form, GrantAnswer, Mode};
use keeper::step::Grant;
use tokio::time::{Instant, timeout, timeout_at};
use wire::nlm::{self, Status, StatusReply, TestArgs, Version, Versioned, v4};
use wire::rpc::Procedure;

use super::Inner;
use crate::peer::{Failure, LockManager, Purpose, remaining};

impl Inner {
    /// Waits for a permit, then makes the attempt.
    pub(super) async fn grant(&self, grant: Grant) -> GrantAnswer {
        match self.permit(grant.to).await {
            Some(_permit) => Box::pin(self.send_granted(&grant)).await,
            None => GrantAnswer::Unsent,
        }
    }

    async fn send_granted(&self, grant: &Grant) -> GrantAnswer {
        let namespace = grant.namespace();
        let Some(version) = Version::from_number(namespace.version().into()) else {
            return GrantAnswer::Unsent;
        };
        let args = arguments(grant).to_bytes_as(version);
        let (to, transport) = (LockManager::new(grant.to, namespace), namespace.transport());
        let until = self.deadline();
        match (grant.form, transport) {
            (Form::Call, _) => self.call_granted(&to, version, transport, &args, until).await,
            (Form::Message, Transport::Tcp) => self.message_by_tcp(grant, &to, &args, until).await,
            (Form::Message, Transport::Udp) => self.message_by_udp(grant, &to, &args, until).await,
        }
    }

    /// GRANTED: the reply carries the client's answer.
    async fn call_granted(
        &self,
        to: &LockManager,
        version: Version,
        transport: Transport,
        args: &[u8],
        until: Instant,
    ) -> GrantAnswer {
        const GRANTED: u32 = v4::Granted::NUMBER;
        let service = to.service(transport);
        let answered = match transport {
            Transport::Tcp => self.peers.call_tcp(to, GRANTED, args, until).await,
            Transport::Udp => match self.peers.port(service, to.ours, until).await {
                Ok(port) => {
                    let (at, procedure) = (SocketAddr::new(to.host, port), to.procedure(GRANTED));
                    let (ours, purpose) = (to.ours, Purpose::Lock);
                    self.peers.call_udp(at, ours, purpose, procedure, args, until).await
                }
                Err(_) => Err(Failure::Unsent),
            },
        };
        match answered {
            Ok(answered) => match StatusReply::from_bytes_as(version, answered.results) {
                Ok(reply) => answer(reply.status, answered.sent > 1),
                Err(_) => GrantAnswer::Unclear,
            },
            Err(Failure::Unsent) => GrantAnswer::Unsent,
            Err(_) => {
                self.peers.forget_port(&service);
                GrantAnswer::Unclear
            }
        }
    }

    /// GRANTED_MSG over TCP, sent once; the client answers by GRANTED_RES.
    async fn message_by_tcp(
        &self,
        grant: &Grant,
        to: &LockManager,
        args: &[u8],
        until: Instant,
    ) -> GrantAnswer {
        let mut result = self.pending_grants.expect(grant.id, to.host);
        let message = v4::GrantedMsg::NUMBER;
        let Ok(connection) = self.peers.call_tcp_one_way(to, message, args, until).await else {
            return GrantAnswer::Unsent;
        };
        match timeout_at(until, &mut result.status).await {
            Ok(Ok(status)) => answer(status, false),
            _ => {
                connection.abandon();
                self.peers.forget_port(&to.service(Transport::Tcp));
                GrantAnswer::Unclear
            }
        }
    }

    /// GRANTED_MSG over UDP, retransmitted once; the client answers by GRANTED_RES.
    async fn message_by_udp(
        &self,
        grant: &Grant,
        to: &LockManager,
        args: &[u8],
        until: Instant,
    ) -> GrantAnswer {
        if !self.peers.listens_on(to.ours) {
            return GrantAnswer::Unsent;
        }
        let service = to.service(Transport::Udp);
        let Ok(port) = self.peers.port(service, to.ours, until).await else {
            return GrantAnswer::Unsent;
        };
        let at = SocketAddr::new(to.host, port);
        let procedure = to.procedure(v4::GrantedMsg::NUMBER);
        let mut result = self.pending_grants.expect(grant.id, to.host);
        let Ok(call) = self.peers.one_way_call(at, to.ours, procedure, args) else {
            return GrantAnswer::Unsent;
        };
        let mut retransmitted = false;
        loop {
            if call.send().is_err() && !retransmitted {
                return GrantAnswer::Unsent;
            }
            let wait = match retransmitted {
                true => remaining(until),
                false => remaining(until).min(self.peers.settings().retransmit_after),
            };
            match timeout(wait, &mut result.status).await {
                Ok(Ok(status)) => return answer(status, retransmitted),
                Err(_) if !retransmitted && !remaining(until).is_zero() => retransmitted = true,
                _ => {
                    self.peers.forget_port(&service);
                    return GrantAnswer::Unclear;
                }
            }
        }
    }
}

fn arguments(grant: &Grant) -> TestArgs {
    TestArgs {
        cookie: grant.id.0.to_be_bytes().to_vec().into(),
        exclusive: grant.mode == Mode::Exclusive,
        lock: nlm::Lock {
            caller_name: grant.name.bytes().to_vec().into(),
            file: grant.handle.bytes().to_vec().into(),
            owner: grant.owner.tag.bytes().to_vec().into(),
            svid: grant.owner.number.cast_signed(),
            range: nlm::Range { offset: grant.range.first(), length: grant.range.length() },
        },
    }
}

fn answer(status: Status, retransmitted: bool) -> GrantAnswer {
    match status {
        Status::Granted => GrantAnswer::Accepted,
        Status::Denied if !retransmitted => GrantAnswer::Denied,
        _ => GrantAnswer::Unclear,
    }
}

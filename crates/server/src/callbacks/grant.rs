//! GRANTED: "the lock you wait for is yours" (R3.3). One attempt.
//!
//! A client that took the lock denies a second GRANTED, because it waits no more; none that we know
//! keeps replies. So "no" counts only if this attempt said GRANTED exactly once; otherwise it is
//! unclear what the client has (I9).

use std::net::SocketAddr;

use bytes::Bytes;
use keeper::identity::Transport;
use keeper::request::{Form, GrantAnswer, Mode};
use keeper::step::Grant;
use tokio::time::{Instant, timeout, timeout_at};
use wire::nlm::{self, Status, StatusReply, TestArgs, Version, Versioned};

use super::Inner;
use crate::peer::{Failure, LockManager, Purpose, rest};

const GRANTED: u32 = 5;
const GRANTED_MSG: u32 = 10;

impl Inner {
    /// Waits for its turn, then makes the attempt.
    pub async fn grant_in_turn(&self, grant: Grant) -> GrantAnswer {
        match self.turn(grant.to).await {
            Some(_turn) => Box::pin(self.grant(&grant)).await,
            None => GrantAnswer::Unsent,
        }
    }

    async fn grant(&self, grant: &Grant) -> GrantAnswer {
        let lane = grant.lane();
        let Some(version) = Version::from_number(lane.version().into()) else {
            return GrantAnswer::Unsent;
        };
        let args = arguments(grant).to_bytes_as(version);
        let to = LockManager::new(grant.to, lane);
        let until = self.deadline();
        match (grant.form, lane.transport()) {
            (Form::Call, Transport::Tcp) => self.call_by_tcp(&to, version, &args, until).await,
            (Form::Call, Transport::Udp) => self.call_by_udp(&to, version, &args, until).await,
            (Form::Message, Transport::Tcp) => self.message_by_tcp(grant, &to, &args, until).await,
            (Form::Message, Transport::Udp) => self.message_by_udp(grant, &to, &args, until).await,
        }
    }

    async fn call_by_tcp(
        &self,
        to: &LockManager,
        version: Version,
        args: &[u8],
        until: Instant,
    ) -> GrantAnswer {
        let mut said_before = false;
        loop {
            let unsent = if said_before { GrantAnswer::Unclear } else { GrantAnswer::Unsent };
            let Ok(connection) = self.peers.connection(to, until).await else { return unsent };
            match connection.call(GRANTED, args, until).await {
                Ok(results) => return judge(version, results, said_before),
                Err(Failure::Unsent) => return unsent,
                // The kept connection was to a kernel that is gone; the call may have been heard
                // all the same.
                Err(Failure::Broken) if connection.was_kept() => said_before = true,
                Err(_) => {
                    self.peers.forget_port(&to.service(Transport::Tcp));
                    return GrantAnswer::Unclear;
                }
            }
        }
    }

    async fn call_by_udp(
        &self,
        to: &LockManager,
        version: Version,
        args: &[u8],
        until: Instant,
    ) -> GrantAnswer {
        let service = to.service(Transport::Udp);
        let Ok(port) = self.peers.port(service, to.ours, until).await else {
            return GrantAnswer::Unsent;
        };
        let numbers = (nlm::PROGRAM, to.version, GRANTED);
        let at = SocketAddr::new(to.host, port);
        match self.peers.call_udp(at, to.ours, Purpose::Lock, numbers, args, until).await {
            Ok(answered) => judge(version, answered.results, answered.sent > 1),
            Err(Failure::Unsent) => GrantAnswer::Unsent,
            Err(_) => {
                self.peers.forget_port(&service);
                GrantAnswer::Unclear
            }
        }
    }

    async fn message_by_tcp(
        &self,
        grant: &Grant,
        to: &LockManager,
        args: &[u8],
        until: Instant,
    ) -> GrantAnswer {
        let mut expected = self.answers.expect(grant.id, to.host);
        let connection = loop {
            let Ok(connection) = self.peers.connection(to, until).await else {
                return GrantAnswer::Unsent;
            };
            match connection.tell(GRANTED_MSG, args, until).await {
                Ok(()) => break connection,
                Err(Failure::Broken) if connection.was_kept() => {}
                Err(_) => return GrantAnswer::Unsent,
            }
        };
        match timeout_at(until, &mut expected.answer).await {
            Ok(Ok(status)) => answer(status, false),
            _ => {
                connection.abandon();
                self.peers.forget_port(&to.service(Transport::Tcp));
                GrantAnswer::Unclear
            }
        }
    }

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
        let numbers = (nlm::PROGRAM, to.version, GRANTED_MSG);
        let mut expected = self.answers.expect(grant.id, to.host);
        let Ok(call) = self.peers.one_way_call(at, to.ours, numbers, args) else {
            return GrantAnswer::Unsent;
        };
        let mut said_before = false;
        loop {
            if call.send().is_err() && !said_before {
                return GrantAnswer::Unsent;
            }
            let repeat = self.peers.settings().repeat;
            let patience = rest(until).min(if said_before { rest(until) } else { repeat });
            match timeout(patience, &mut expected.answer).await {
                Ok(Ok(status)) => return answer(status, said_before),
                Err(_) if !said_before && !rest(until).is_zero() => said_before = true,
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

fn judge(version: Version, results: Bytes, said_before: bool) -> GrantAnswer {
    match StatusReply::from_bytes_as(version, results) {
        Ok(reply) => answer(reply.status, said_before),
        Err(_) => GrantAnswer::Unclear,
    }
}

fn answer(status: Status, said_before: bool) -> GrantAnswer {
    match status {
        Status::Granted => GrantAnswer::Accepted,
        Status::Denied if !said_before => GrantAnswer::Denied,
        _ => GrantAnswer::Unclear,
    }
}

//! GRANTED: "the lock you wait for is yours" (R3.3). One attempt.
//!
//! A client that took the lock denies a second GRANTED, because it waits no more; none that we know
//! keeps replies. So "no" counts only if this attempt said GRANTED exactly once; otherwise it is
//! unclear what the client has (I9).

use std::net::SocketAddr;

use bytes::Bytes;
use client::CallError;
use keeper::identity::Transport;
use keeper::request::{Form, GrantAnswer, Mode};
use keeper::step::Grant;
use tokio::time::{Instant, timeout, timeout_at};
use tracing::debug;
use wire::nlm::{self, Status, StatusReply, TestArgs, Version, Versioned};
use wire::rpc::write_call;
use wire::{Message, Writer};

use super::lines::Ends;
use super::permitted::refusal;
use super::posts::Purpose;
use super::{Inner, rest};
use crate::transport::{self, Peer};

const GRANTED: u32 = 5;
const GRANTED_MSG: u32 = 10;

impl Inner {
    /// Waits for its turn, then makes the attempt.
    pub async fn grant_in_turn(&self, grant: Grant) -> GrantAnswer {
        match self.turn(grant.to).await {
            Some(_) if !self.settings.tenure.holds() => GrantAnswer::Unsent,
            Some(_turn) => Box::pin(self.grant(&grant)).await,
            None => GrantAnswer::Unsent,
        }
    }

    async fn grant(&self, grant: &Grant) -> GrantAnswer {
        let lane = grant.lane();
        let Some(version) = Version::from_number(lane.version().into()) else {
            return GrantAnswer::Unsent;
        };
        if let Some(reason) = refusal(grant.to, lane.ours(), &self.own) {
            debug!("GRANTED is not sent to {}: {reason}", grant.to);
            return GrantAnswer::Unsent;
        }
        let args = arguments(grant).to_bytes_as(version);
        let ends = Ends::new(grant.to, lane);
        let until = self.deadline();
        match (grant.form, lane.transport()) {
            (Form::Call, Transport::Tcp) => self.call_by_tcp(&ends, version, &args, until).await,
            (Form::Call, Transport::Udp) => self.call_by_udp(&ends, version, &args, until).await,
            (Form::Message, Transport::Tcp) => {
                self.message_by_tcp(grant, &ends, &args, until).await
            }
            (Form::Message, Transport::Udp) => {
                self.message_by_udp(grant, &ends, &args, until).await
            }
        }
    }

    async fn call_by_tcp(
        &self,
        ends: &Ends,
        version: Version,
        args: &[u8],
        until: Instant,
    ) -> GrantAnswer {
        let mut said_before = false;
        loop {
            let Ok(line) = self.line(ends, until).await else {
                return if said_before { GrantAnswer::Unclear } else { GrantAnswer::Unsent };
            };
            let connection = line.connection.with_timeout(rest(until));
            if !self.settings.tenure.holds() {
                return GrantAnswer::Unsent;
            }
            match connection.call_raw(nlm::PROGRAM, ends.version, GRANTED, args).await {
                Ok(results) => return judge(version, results, said_before),
                Err(error) => {
                    debug!("GRANTED to {}: {error}", ends.host);
                    line.abandon();
                    // A kept connection may have been to a kernel that is gone; the call may have
                    // been heard all the same.
                    if !(line.kept && has_broken(&error)) {
                        self.ports.forget(&ends.service(Transport::Tcp));
                        return GrantAnswer::Unclear;
                    }
                    said_before = true;
                }
            }
        }
    }

    async fn call_by_udp(
        &self,
        ends: &Ends,
        version: Version,
        args: &[u8],
        until: Instant,
    ) -> GrantAnswer {
        let service = ends.service(Transport::Udp);
        let Ok(port) = self.ports.port(&self.posts, service, ends.ours, until).await else {
            return GrantAnswer::Unsent;
        };
        let Ok(client) = self.posts.client(ends.ours, Purpose::Lock).await else {
            return GrantAnswer::Unsent;
        };
        let to = SocketAddr::new(ends.host, port);
        let numbers = (nlm::PROGRAM, ends.version, GRANTED);
        if !self.settings.tenure.holds() {
            return GrantAnswer::Unsent;
        }
        match client.call_raw(to, numbers, args, rest(until)).await {
            Ok(answered) => judge(version, answered.results, answered.sent > 1),
            Err(error) => {
                debug!("GRANTED to {to}: {error}");
                self.ports.forget(&service);
                match error {
                    CallError::Io(_) => GrantAnswer::Unsent,
                    _ => GrantAnswer::Unclear,
                }
            }
        }
    }

    async fn message_by_tcp(
        &self,
        grant: &Grant,
        ends: &Ends,
        args: &[u8],
        until: Instant,
    ) -> GrantAnswer {
        let mut expected = self.answers.expect(grant.id, ends.host);
        let line = loop {
            let Ok(line) = self.line(ends, until).await else { return GrantAnswer::Unsent };
            if !self.settings.tenure.holds() {
                return GrantAnswer::Unsent;
            }
            let told = line
                .connection
                .with_timeout(rest(until))
                .tell_raw(nlm::PROGRAM, ends.version, GRANTED_MSG, args)
                .await;
            match told {
                Ok(()) => break line,
                // Nothing was handed over, so nothing was said.
                Err(error) => {
                    debug!("GRANTED_MSG to {}: {error}", ends.host);
                    line.abandon();
                    if !line.kept {
                        return GrantAnswer::Unsent;
                    }
                }
            }
        };
        match timeout_at(until, &mut expected.answer).await {
            Ok(Ok(status)) => answer(status, false),
            _ => {
                line.abandon();
                self.ports.forget(&ends.service(Transport::Tcp));
                GrantAnswer::Unclear
            }
        }
    }

    /// From our listening socket: some clients hear nothing that comes from elsewhere.
    async fn message_by_udp(
        &self,
        grant: &Grant,
        ends: &Ends,
        args: &[u8],
        until: Instant,
    ) -> GrantAnswer {
        let service = ends.service(Transport::Udp);
        let Some(socket) = self.listening_on(ends.ours) else { return GrantAnswer::Unsent };
        let Ok(port) = self.ports.port(&self.posts, service, ends.ours, until).await else {
            return GrantAnswer::Unsent;
        };
        let mut expected = self.answers.expect(grant.id, ends.host);
        let to = SocketAddr::new(ends.host, port);
        let peer = Peer::new(to, SocketAddr::new(ends.ours, 0), transport::Transport::Udp);
        let message = self.datagram((nlm::PROGRAM, ends.version, GRANTED_MSG), args);
        let mut said_before = false;
        loop {
            socket.send(&peer, &message);
            let patience =
                rest(until).min(if said_before { rest(until) } else { self.settings.repeat });
            match timeout(patience, &mut expected.answer).await {
                Ok(Ok(status)) => return answer(status, said_before),
                Err(_) if !said_before && !rest(until).is_zero() => said_before = true,
                _ => {
                    self.ports.forget(&service);
                    return GrantAnswer::Unclear;
                }
            }
        }
    }

    /// A call that leaves from a listening socket; what comes back is not waited for.
    pub fn datagram(&self, numbers: (u32, u32, u32), args: &[u8]) -> Message {
        let mut out = Writer::new();
        write_call(&mut out, client::next_xid(), numbers, &self.credential);
        out.fixed(args);
        out.finish()
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

/// The connection is gone, as opposed to silent.
fn has_broken(error: &CallError) -> bool {
    matches!(error, CallError::Closed | CallError::Io(_))
}

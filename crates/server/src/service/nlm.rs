//! NLM versions 1, 3 and 4: from a call to a request of the keeper, and from its decision back.
//!
//! All versions and forms become one request here ([`question`]); in which form it was asked is in
//! the [`ReplyFormat`], which also writes the reply.

mod question;
mod reply;

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Instant;

use keeper::identity::{Caller, Incarnation};
use keeper::request::Form;
use vfs::Patience;
use wire::nlm::{self, Status, Version, Versioned, v4};
use wire::rpc::{Call, Procedure};
use wire::{Message, Writer};

use super::{Repeat, Served, Service};
use crate::callbacks::Callbacks;
use crate::engine::request::{Request, is_taken};
use crate::engine::{Decision, Engine};
use crate::files::Files;
use crate::liveness::Liveness;
use crate::rpc::order::OrderKey;
use crate::rpc::pending::{Incoming, success};
use crate::transport::{Peer, ReplyBatch};
use question::{Question, Refused};
use reply::LockReply;

pub struct Nlm {
    files: Arc<Files>,
    engine: Engine,
    callbacks: Callbacks,
    liveness: Liveness,
    /// What has no export to say so needs a reserved port (R6.3).
    reserved_ports: bool,
    order_keys: RandomState,
}

impl Nlm {
    pub fn new(
        files: Arc<Files>,
        engine: Engine,
        callbacks: Callbacks,
        liveness: Liveness,
        reserved_ports: bool,
    ) -> Self {
        let order_keys = RandomState::new();
        Self { files, engine, callbacks, liveness, reserved_ports, order_keys }
    }
}

/// What is asked, whatever the form: the number of the procedure that is called and answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Test,
    Lock,
    NmLock,
    Cancel,
    Unlock,
    Share,
    Unshare,
    FreeAll,
}

impl Kind {
    fn of(procedure: u32) -> Option<(Self, Form)> {
        Some(match procedure {
            v4::Test::NUMBER => (Self::Test, Form::Call),
            v4::TestMsg::NUMBER => (Self::Test, Form::Message),
            v4::Lock::NUMBER => (Self::Lock, Form::Call),
            v4::LockMsg::NUMBER => (Self::Lock, Form::Message),
            v4::Cancel::NUMBER => (Self::Cancel, Form::Call),
            v4::CancelMsg::NUMBER => (Self::Cancel, Form::Message),
            v4::Unlock::NUMBER => (Self::Unlock, Form::Call),
            v4::UnlockMsg::NUMBER => (Self::Unlock, Form::Message),
            v4::Share::NUMBER => (Self::Share, Form::Call),
            v4::Unshare::NUMBER => (Self::Unshare, Form::Call),
            v4::NmLock::NUMBER => (Self::NmLock, Form::Call),
            v4::FreeAll::NUMBER => (Self::FreeAll, Form::Call),
            _ => return None,
        })
    }

    /// The procedure that carries the answer to a message.
    fn result(self) -> u32 {
        match self {
            Self::Test => v4::TestRes::NUMBER,
            Self::Cancel => v4::CancelRes::NUMBER,
            Self::Unlock => v4::UnlockRes::NUMBER,
            _ => v4::LockRes::NUMBER,
        }
    }
}

impl Service for Nlm {
    fn program(&self) -> u32 {
        nlm::PROGRAM
    }

    fn versions(&self) -> &'static [u32] {
        // Version 2 is a private matter of some clients; the services of this list are exact.
        &[nlm::V1, nlm::V3, nlm::V4]
    }

    fn repeat(&self, call: &Call, peer: &Peer) -> Repeat {
        match Kind::of(call.procedure) {
            None | Some((Kind::Test, Form::Call)) => Repeat::Harmless,
            Some(_) if self.files.admits(peer.remote.ip()) => Repeat::Lock,
            // A stranger's requests are refused as often as they come.
            Some(_) => Repeat::Harmless,
        }
    }

    fn caller_name<'a>(&self, call: &'a Call) -> Option<&'a [u8]> {
        nlm::peek_caller_name(call.procedure, &call.args)
    }

    fn serve(&self, incoming: &mut Incoming<'_>, patience: Patience, out: &mut Writer) -> Served {
        let Some(version) = Version::from_number(incoming.call.version) else {
            return Served::NO_SUCH_PROCEDURE;
        };
        let procedure = incoming.call.procedure;
        match procedure {
            v4::Null::NUMBER => Served::Reply,
            // We wait for no locks of others.
            v4::Granted::NUMBER => deny_granted(incoming.call, version, out),
            v4::GrantedMsg::NUMBER => Served::Reply,
            v4::TestRes::NUMBER..=v4::UnlockRes::NUMBER => Served::Reply,
            v4::GrantedRes::NUMBER => self.granted_res(incoming, version),
            _ => match Kind::of(procedure) {
                Some((kind, form)) if procedure < 20 || version.has_shares() => {
                    self.ask(incoming, (version, kind, form), patience)
                }
                _ => Served::NO_SUCH_PROCEDURE,
            },
        }
    }

    /// A message gets its result again, as another message.
    fn replay(&self, call: &Call, peer: &Peer, kept: Message) -> Message {
        let (Some((kind, Form::Message)), Some(version)) =
            (Kind::of(call.procedure), Version::from_number(call.version))
        else {
            return kept;
        };
        self.callbacks.send_result(peer, version, kind.result(), kept.to_bytes());
        success(call.xid, |_| ())
    }

    fn flush(&self) {
        self.engine.flush();
    }
}

fn deny_granted(call: &Call, version: Version, out: &mut Writer) -> Served {
    match nlm::TestArgs::from_bytes_as(version, call.args.clone()) {
        Ok(args) => {
            let reply = nlm::StatusReply { cookie: args.cookie, status: Status::Denied };
            reply.encode_as(version, out);
            Served::Reply
        }
        Err(_) => Served::GARBAGE,
    }
}

impl Nlm {
    fn granted_res(&self, incoming: &Incoming<'_>, version: Version) -> Served {
        // A user of the waiter's machine could deny what its kernel has taken.
        if self.reserved_ports && !incoming.peer.uses_reserved_port() {
            return Served::TOO_WEAK;
        }
        match nlm::StatusReply::from_bytes_as(version, incoming.call.args.clone()) {
            Ok(answer) => {
                let from = incoming.peer.remote.ip();
                self.callbacks.granted_res(from, &answer.cookie, answer.status);
                Served::Reply
            }
            Err(_) => Served::GARBAGE,
        }
    }

    /// Hands a request to the engine, in the order of receipt, once its caller is known to be
    /// allowed to make it.
    fn ask(
        &self,
        incoming: &mut Incoming<'_>,
        asked: (Version, Kind, Form),
        patience: Patience,
    ) -> Served {
        let connected = incoming.connected().map(|since| self.engine.clock().mono(since));
        let at = question::Receipt { nlm: self, incoming, asked, connected };
        let Question { request, format, subject } = match at.question() {
            Ok(question) => question,
            Err(refused) => return self.refuse(incoming, refused),
        };
        if let Some(subject) = &subject {
            let order = || OrderKey(self.order_keys.hash_one(request.subject()));
            // On a worker its turn has come.
            if patience == Patience::Now && incoming.is_behind(order) {
                return Served::NotNow { order: Some(order()) };
            }
            let (call, peer) = (incoming.call, incoming.peer);
            let allowed = self.files.may_lock(
                &subject.target,
                subject.needs,
                &call.credential,
                peer,
                patience,
            );
            match allowed {
                Ok(()) => {}
                Err(vfs::Error::WouldBlock) => return Served::NotNow { order: Some(order()) },
                Err(error) => {
                    return self.refuse(incoming, Refused::Status(format, question::status(error)));
                }
            }
        }
        let reply = LockReply { call: incoming.defer(), format, callbacks: self.callbacks.clone() };
        let claim = Claim::of(&request, &self.liveness);
        self.engine.ask(
            request,
            Box::new(move |decision, replies| {
                if let (Some(claim), Decision::Reply(reply)) = (claim, &decision)
                    && is_taken(reply)
                {
                    claim.stands();
                }
                reply.answer(decision, replies);
            }),
        );
        Served::Later
    }

    fn refuse(&self, incoming: &mut Incoming<'_>, refused: Refused) -> Served {
        match refused {
            Refused::Garbage => Served::GARBAGE,
            Refused::Port => Served::TOO_WEAK,
            Refused::Status(format, status) => {
                let callbacks = self.callbacks.clone();
                let mut replies = ReplyBatch::default();
                LockReply { call: incoming.defer(), format, callbacks }
                    .refuse(status, &mut replies);
                replies.send();
                Served::Later
            }
        }
    }
}

/// What is known of a host once it has a lock, a share, or a place in line: that its kernel was
/// alive when it asked. Its old connections can testify from then on.
struct Claim {
    liveness: Liveness,
    caller: Caller,
    incarnation: Incarnation,
    arrived: Instant,
}

impl Claim {
    fn of(request: &Request, liveness: &Liveness) -> Option<Self> {
        let (caller, incarnation) = request.taker()?;
        let (liveness, caller) = (liveness.clone(), caller.clone());
        Some(Self { liveness, caller, incarnation, arrived: Instant::now() })
    }

    fn stands(self) {
        let Self { liveness, caller, incarnation, arrived } = self;
        liveness.watch(&caller.host, caller.lane);
        liveness.took(&caller.host, incarnation, arrived);
    }
}

//! The network lock manager, versions 1, 3 and 4 (C702 chapter 10).
//!
//! Versions and forms are converted at the edge: `request.rs` turns the arguments of any version and
//! form into one request to the keeper, `reply.rs` writes the decision in the version and form of the
//! call. In between, `Nlm::ask` is the path of every lock request: admission, order of receipt,
//! permission to use the file, engine. Runs on network and worker threads; replies are sent by the
//! thread that runs the engine.

mod reply;
mod request;

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Instant;

use keeper::bytes::Name;
use keeper::identity::Caller;
use keeper::request::Form;
use vfs::BlockingMode;
use wire::nlm::{self, Status, Version, Versioned, v4};
use wire::rpc::{Call, Procedure};
use wire::{Message, Writer};

use super::{CacheClass, ServeOutcome, Service};
use crate::callbacks::Callbacks;
use crate::engine::request::{Request, grants_or_queues};
use crate::engine::{Decision, Engine};
use crate::files::Files;
use crate::liveness::Liveness;
use crate::liveness::registry::TakenBy;
use crate::metrics::{RefusalReason, RefusedCall};
use crate::refusals::{Refusals, RefusedCaller};
use crate::rpc::admission::{Action, admit};
use crate::rpc::callers::Callers;
use crate::rpc::order::OrderKey;
use crate::rpc::pending::{IncomingCall, success};
use crate::transport::{Peer, ReplyBatch};
use reply::LockReply;
use request::{EarlyReply, NlmCall, PreparedRequest};

pub(crate) struct Nlm {
    files: Arc<Files>,
    engine: Engine,
    callbacks: Callbacks,
    liveness: Liveness,
    refusals: Arc<Refusals>,
    callers: Callers,
    /// For calls that concern no export (B7.7).
    require_reserved_ports: bool,
    order_keys: RandomState,
}

impl Nlm {
    pub(crate) fn new(
        files: Arc<Files>,
        engine: Engine,
        callbacks: Callbacks,
        liveness: Liveness,
        refusals: Arc<Refusals>,
        require_reserved_ports: bool,
    ) -> Self {
        let order_keys = RandomState::new();
        let callers = Callers::new(files.clone(), liveness.clone(), require_reserved_ports);
        Self {
            files,
            engine,
            callbacks,
            liveness,
            refusals,
            callers,
            require_reserved_ports,
            order_keys,
        }
    }
}

/// What the keeper is asked to do, whatever the form of the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    Test,
    Lock,
    NmLock,
    Cancel,
    Unlock,
    Share,
    Unshare,
    FreeAll,
}

impl Operation {
    fn from_procedure(procedure: u32) -> Option<(Self, Form)> {
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

    /// The procedure that carries the result of a message.
    fn result_procedure(self) -> u32 {
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
        // No specification describes version 2.
        &[nlm::V1, nlm::V3, nlm::V4]
    }

    fn cache_class(&self, call: &Call, peer: &Peer) -> CacheClass {
        match Operation::from_procedure(call.procedure) {
            None | Some((Operation::Test, Form::Call)) => CacheClass::Uncached,
            Some(_) if self.files.admits(peer.remote.ip()) => CacheClass::Lock,
            // Refused each time; must not fill the duplicate request cache.
            Some(_) => CacheClass::Uncached,
        }
    }

    fn caller_name<'a>(&self, call: &'a Call) -> Option<&'a [u8]> {
        nlm::peek_caller_name(call.procedure, &call.args)
    }

    fn serve(
        &self,
        incoming: &mut IncomingCall<'_>,
        blocking: BlockingMode,
        out: &mut Writer,
    ) -> ServeOutcome {
        let Some(version) = Version::from_number(incoming.call.version) else {
            return ServeOutcome::NO_SUCH_PROCEDURE;
        };
        let procedure = incoming.call.procedure;
        match procedure {
            v4::Null::NUMBER => ServeOutcome::Reply,
            // This server is no lock client.
            v4::Granted::NUMBER => deny_granted(incoming.call, version, out),
            v4::GrantedMsg::NUMBER => ServeOutcome::Reply,
            v4::TestRes::NUMBER..=v4::UnlockRes::NUMBER => ServeOutcome::Reply,
            v4::GrantedRes::NUMBER => self.granted_res(incoming, version),
            _ => match Operation::from_procedure(procedure) {
                Some((operation, form))
                    if procedure < v4::Share::NUMBER || version.has_shares() =>
                {
                    self.ask(incoming, version, operation, form, blocking)
                }
                _ => ServeOutcome::NO_SUCH_PROCEDURE,
            },
        }
    }

    /// The result of a message is sent again as another message.
    fn reply_from_cache(&self, call: &Call, peer: &Peer, cached: Message) -> Message {
        let (Some((operation, Form::Message)), Some(version)) =
            (Operation::from_procedure(call.procedure), Version::from_number(call.version))
        else {
            return cached;
        };
        self.callbacks.send_result(peer, version, operation.result_procedure(), cached.to_bytes());
        success(call.xid, |_| ())
    }

    fn flush(&self) {
        self.engine.flush();
    }

    fn has_unflushed(&self) -> bool {
        self.engine.has_input()
    }
}

fn deny_granted(call: &Call, version: Version, out: &mut Writer) -> ServeOutcome {
    match nlm::TestArgs::from_bytes_as(version, call.args.clone()) {
        Ok(args) => {
            let reply = nlm::StatusReply { cookie: args.cookie, status: Status::Denied };
            reply.encode_as(version, out);
            ServeOutcome::Reply
        }
        Err(_) => ServeOutcome::GARBAGE,
    }
}

impl Nlm {
    fn granted_res(&self, incoming: &IncomingCall<'_>, version: Version) -> ServeOutcome {
        if admit(Action::Lock, incoming.peer, false, self.require_reserved_ports).is_err() {
            return ServeOutcome::TOO_WEAK;
        }
        match nlm::StatusReply::from_bytes_as(version, incoming.call.args.clone()) {
            Ok(answer) => {
                let from = incoming.peer.remote.ip();
                self.callbacks.granted_res(from, &answer.cookie, answer.status);
                ServeOutcome::Reply
            }
            Err(_) => ServeOutcome::GARBAGE,
        }
    }

    /// Hands an admitted request to the engine. Requests of one owner on one file keep their order of
    /// receipt, even if some wait for a worker to check permission.
    fn ask(
        &self,
        incoming: &mut IncomingCall<'_>,
        version: Version,
        operation: Operation,
        form: Form,
        blocking: BlockingMode,
    ) -> ServeOutcome {
        // Its result would be a call to whoever the source names (B7.98).
        if form == Form::Message && !self.callers.serves(incoming.peer) {
            drop(incoming.defer());
            return ServeOutcome::Deferred;
        }
        let connected = incoming.connected().map(|since| self.engine.clock().mono(since));
        let call = NlmCall { nlm: self, incoming, version, operation, form, connected };
        let PreparedRequest { request, format, access } = match call.prepare() {
            Ok(prepared) => prepared,
            Err(reply) => {
                if let (Operation::FreeAll, EarlyReply::TooWeak) = (operation, &reply) {
                    let (call, from) = (RefusedCall::FreeAll, incoming.peer.remote.ip());
                    let name = &Name::new(self.caller_name(incoming.call).unwrap_or_default());
                    let caller = RefusedCaller { call, from, name };
                    self.refusals.note(caller, RefusalReason::Port);
                }
                return self.reply_early(incoming, reply);
            }
        };
        if let Some(access) = &access {
            let order = || OrderKey(self.order_keys.hash_one(request.subject()));
            let would_block = || {
                let file_system = access.target.file_system();
                ServeOutcome::WouldBlock { file_system, order: Some(order()) }
            };
            let on_network_thread = blocking == BlockingMode::Nonblocking;
            // A worker takes calls of one order one at a time, so it need not check.
            if on_network_thread && incoming.is_behind(order) {
                return would_block();
            }
            let (call, peer) = (incoming.call, incoming.peer);
            let allowed = self.files.may_lock(
                &access.target,
                access.required,
                &call.credential,
                peer,
                blocking,
            );
            match allowed {
                Ok(()) => {}
                Err(vfs::Error::WouldBlock) if on_network_thread => return would_block(),
                Err(error) => {
                    let reply = EarlyReply::Status(format, request::status(error));
                    return self.reply_early(incoming, reply);
                }
            }
        }
        let reply = LockReply { call: incoming.defer(), format, callbacks: self.callbacks.clone() };
        let activity = HostActivity::of(&request, &self.liveness);
        self.engine.ask(
            request,
            Box::new(move |decision, replies| {
                if let (Some(activity), Decision::Reply(reply)) = (activity, &decision)
                    && grants_or_queues(reply)
                {
                    activity.record();
                }
                reply.send_decision(decision, replies);
            }),
        );
        ServeOutcome::Deferred
    }

    fn reply_early(&self, incoming: &mut IncomingCall<'_>, reply: EarlyReply) -> ServeOutcome {
        match reply {
            EarlyReply::Garbage => ServeOutcome::GARBAGE,
            EarlyReply::TooWeak => ServeOutcome::TOO_WEAK,
            EarlyReply::Status(format, status) => {
                let callbacks = self.callbacks.clone();
                let mut replies = ReplyBatch::default();
                LockReply { call: incoming.defer(), format, callbacks }
                    .send_status(status, &mut replies);
                replies.send();
                ServeOutcome::Deferred
            }
        }
    }
}

/// What a lock request says about its host once it is granted or blocked: the kernel was alive when
/// the request arrived, so liveness may use connections that were open by then.
struct HostActivity {
    liveness: Liveness,
    caller: Caller,
    by: TakenBy,
    arrived: Instant,
}

impl HostActivity {
    fn of(request: &Request, liveness: &Liveness) -> Option<Self> {
        let (caller, by) = request.grantee()?;
        let (liveness, caller) = (liveness.clone(), caller.clone());
        Some(Self { liveness, caller, by, arrived: Instant::now() })
    }

    fn record(self) {
        let Self { liveness, caller, by, arrived } = self;
        liveness.watch(&caller.host, caller.namespace);
        liveness.record_lock(&caller.host, by, arrived);
    }
}

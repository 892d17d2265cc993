//! The RPC programs that are served, one module each. A service translates between its protocol and
//! the file systems, the engine or rpcbind's table; nothing else in the server knows the protocol.
//!
//! Services are called on network threads first, where they must not block, and on worker threads if
//! they ask for it ([`ServeOutcome::WouldBlock`]).

pub(crate) mod mount;
pub(crate) mod nfs3;
pub(crate) mod nlm;
pub(crate) mod nsm;
pub(crate) mod rpcbind;

use std::sync::Arc;

use keeper::identity;
use keeper::request::Source;
use vfs::{BlockingMode, FileSystemId};
use wire::rpc::{Accepted, AuthStatus, Call, Denial};
use wire::{Decode, Encode, Message, Writer};

use crate::files::Files;
use crate::rpc::order::OrderKey;
use crate::rpc::pending::IncomingCall;
use crate::transport::{Peer, Transport};

/// One RPC program.
pub(crate) trait Service: Send + Sync {
    fn program(&self) -> u32;

    /// The versions that are served, in ascending order.
    fn versions(&self) -> &'static [u32];

    /// How the duplicate request cache treats this call.
    fn cache_class(&self, _: &Call, _: &Peer) -> CacheClass {
        CacheClass::Uncached
    }

    /// The host name of the caller, if the arguments carry one.
    fn caller_name<'a>(&self, _: &'a Call) -> Option<&'a [u8]> {
        None
    }

    /// An estimate of the reply's size, for the limits on memory.
    fn reply_bytes(&self, _: &Call) -> usize {
        512
    }

    /// Serves the call: appends the results to `out`, which holds the envelope of success, or defers
    /// the call. Must not block if `blocking` is [`BlockingMode::Nonblocking`].
    fn serve(
        &self,
        incoming: &mut IncomingCall<'_>,
        blocking: BlockingMode,
        out: &mut Writer,
    ) -> ServeOutcome;

    /// The reply to a retransmission of a completed call, from its entry in the duplicate request
    /// cache.
    fn reply_from_cache(&self, _: &Call, _: &Peer, cached: Message) -> Message {
        cached
    }

    /// Writes the results that have the client repeat the call later, if the protocol has such. The
    /// call does not run.
    fn write_try_later(&self, _: &Call, _: &Peer, _: &mut Writer) -> bool {
        false
    }

    /// The exports, of a service that has them.
    fn files(&self) -> Option<Arc<Files>> {
        None
    }

    /// Called when all records of one read have been dispatched: submits what was batched.
    fn flush(&self) {}

    /// Whether requests wait for [`flush`](Self::flush). Cheap.
    fn has_unflushed(&self) -> bool {
        false
    }
}

/// How the duplicate request cache treats a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CacheClass {
    /// Idempotent: not cached.
    Uncached,
    /// Executed once; the reply is cached.
    Once,
    /// As `Once`, in a cache of its own: WRITEs are many and would evict the others.
    Bulk,
    /// As `Once`, until the host reboots.
    Lock,
    /// While a worker has it; nothing is cached. The dispatcher's choice for `Uncached` calls, never a
    /// service's.
    UnderWay,
}

/// What a service did with a call.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ServeOutcome {
    /// The results are written.
    Reply,
    /// It would block; only with [`BlockingMode::Nonblocking`]. To be served on a worker thread, after
    /// earlier calls of the same `order`, and in the share of the file system that it needs. That one
    /// is exported; `None` is for calls whose file system is not known.
    WouldBlock { file_system: Option<FileSystemId>, order: Option<OrderKey> },
    /// The service answers later ([`IncomingCall::defer`]).
    Deferred,
    /// The procedure did not run.
    NotRun(Accepted),
    /// The caller is not admitted.
    Denied(Denial),
}

impl ServeOutcome {
    pub(crate) const GARBAGE: Self = Self::NotRun(Accepted::GarbageArgs);
    pub(crate) const NO_SUCH_PROCEDURE: Self = Self::NotRun(Accepted::ProcedureUnavailable);
    pub(crate) const TOO_WEAK: Self = Self::Denied(Denial::Auth(AuthStatus::TooWeak));
}

/// Decodes the arguments of a call, or returns GARBAGE_ARGS from the enclosing function.
macro_rules! decode {
    ($call:expr) => {
        match wire::Decode::from_bytes($call.args.clone()) {
            Ok(args) => args,
            Err(_) => return $crate::service::ServeOutcome::GARBAGE,
        }
    };
}
pub(crate) use decode;

/// Serves a procedure that neither blocks nor fails.
pub(crate) fn simple<A: Decode, R: Encode>(
    call: &Call,
    out: &mut Writer,
    procedure: impl FnOnce(A) -> R,
) -> ServeOutcome {
    let args: A = decode!(call);
    procedure(args).encode(out);
    ServeOutcome::Reply
}

/// The source of a call, for the keeper.
fn source(peer: &Peer) -> Source {
    Source {
        address: peer.remote.ip(),
        transport: match peer.transport {
            Transport::Tcp => identity::Transport::Tcp,
            Transport::Udp => identity::Transport::Udp,
        },
        local: peer.is_local(),
        reserved: peer.remote.port() < 1024,
    }
}

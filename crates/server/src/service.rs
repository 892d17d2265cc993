//! The programs that are served. Each service is the only place that translates between its
//! protocol and the rest of the server.

pub mod mount;
pub mod nfs3;
pub mod nlm;
pub mod nsm;
pub mod rpcbind;

use keeper::identity;
use keeper::request::Source;
use vfs::Patience;
use wire::rpc::{Accepted, AuthStatus, Call, Denial};
use wire::{Decode, Encode, Message, Writer};

use crate::rpc::order::OrderKey;
use crate::rpc::pending::Incoming;
use crate::transport::{Peer, Transport};

/// One RPC program.
pub trait Service: Send + Sync {
    fn program(&self) -> u32;

    /// In ascending order.
    fn versions(&self) -> &'static [u32];

    /// What a repetition of this call would do.
    fn repeat(&self, _: &Call, _: &Peer) -> Repeat {
        Repeat::Harmless
    }

    /// The name that the caller gives its own machine in this call.
    fn caller_name<'a>(&self, _: &'a Call) -> Option<&'a [u8]> {
        None
    }

    /// About how large the reply may become, so that memory can be kept in bounds.
    fn reply_bytes(&self, _: &Call) -> usize {
        512
    }

    /// Serves the call: writes the results after an envelope of success, or takes the call along.
    fn serve(&self, incoming: &mut Incoming<'_>, patience: Patience, out: &mut Writer) -> Served;

    /// What to reply to a repetition of a call that is done, from what was kept of it.
    fn replay(&self, _: &Call, _: &Peer, kept: Message) -> Message {
        kept
    }

    /// The records that had come are all handed on: what was gathered of them is now done.
    fn flush(&self) {}
}

/// What doing a call again would do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repeat {
    /// It gives the same answer.
    Harmless,
    /// It must be done once; the reply is kept.
    Once,
    /// As `Once`, but there are many and each matters less.
    Bulk,
    /// As `Once`, until its host reboots.
    Lock,
}

/// What became of a call.
#[derive(Debug, PartialEq, Eq)]
pub enum Served {
    Reply,
    /// Only with [`Patience::Now`]: serve it on a worker thread, after those of the same `order`
    /// that are there already.
    NotNow {
        order: Option<OrderKey>,
    },
    /// The service has taken the call along ([`Incoming::defer`]).
    Later,
    /// The procedure did not run.
    NotRun(Accepted),
    /// The caller may not call.
    Denied(Denial),
}

impl Served {
    pub const NOT_NOW: Self = Self::NotNow { order: None };
    pub const GARBAGE: Self = Self::NotRun(Accepted::GarbageArgs);
    pub const NO_SUCH_PROCEDURE: Self = Self::NotRun(Accepted::ProcedureUnavailable);
    pub const TOO_WEAK: Self = Self::Denied(Denial::Auth(AuthStatus::TooWeak));
}

/// Decodes the arguments, or answers that they are garbage.
macro_rules! decode {
    ($call:expr) => {
        match wire::Decode::from_bytes($call.args.clone()) {
            Ok(args) => args,
            Err(_) => return $crate::service::Served::GARBAGE,
        }
    };
}
pub(crate) use decode;

/// A procedure whose answer needs neither patience nor refusal.
pub(crate) fn simple<A: Decode, R: Encode>(
    call: &Call,
    out: &mut Writer,
    procedure: impl FnOnce(A) -> R,
) -> Served {
    let args: A = decode!(call);
    procedure(args).encode(out);
    Served::Reply
}

/// Where a call came from, in the keeper's words.
fn source(peer: &Peer) -> Source {
    Source {
        address: peer.remote.ip(),
        transport: match peer.transport {
            Transport::Tcp => identity::Transport::Tcp,
            Transport::Udp => identity::Transport::Udp,
        },
        local: peer.is_local(),
    }
}

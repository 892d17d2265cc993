//! The programs that are served. Each service is the only place that translates between its
//! protocol and the rest of the server.

pub mod mount;
pub mod nfs3;
pub mod nlm;
pub mod nsm;
pub mod rpcbind;

use std::net::IpAddr;
use std::sync::Arc;

use vfs::Patience;
use wire::rpc::Call;
use wire::{Decode, Encode, Message, Writer};

use crate::task::Task;
use crate::transport::{Mailbag, Peer};

/// One RPC program, by when it answers.
pub enum Program {
    Direct(Arc<dyn Service>),
    Deferred(Arc<dyn Deferred>),
}

impl Program {
    pub fn number(&self) -> u32 {
        match self {
            Self::Direct(service) => service.program(),
            Self::Deferred(service) => service.program(),
        }
    }

    pub fn versions(&self) -> &'static [u32] {
        match self {
            Self::Direct(service) => service.versions(),
            Self::Deferred(service) => service.versions(),
        }
    }
}

/// A program whose answers are not known when a call has been looked at.
pub trait Deferred: Send + Sync {
    fn program(&self) -> u32;

    /// In ascending order.
    fn versions(&self) -> &'static [u32];

    fn repeat(&self, call: &Call) -> Repeat;

    fn reply_bytes(&self) -> usize {
        512
    }

    /// What the sender calls itself in this call.
    fn sender<'a>(&self, _: &'a Call) -> Option<&'a [u8]> {
        None
    }

    /// Takes the call, to be answered now or later; gives it back if looking at it takes patience.
    fn take(&self, task: Task, patience: Patience, mail: &mut Mailbag) -> Option<Task>;

    /// What to reply to a repetition of a call that is done, from what was kept of it.
    fn again(&self, _: &Call, _: &Peer, kept: Message) -> Message {
        kept
    }

    /// Nothing more comes for the moment.
    fn flush(&self) {}

    /// Somebody at this address is up.
    fn heard(&self, _: IpAddr) {}
}

/// A program that answers a call when it has looked at it.
pub trait Service: Send + Sync {
    fn program(&self) -> u32;

    /// In ascending order.
    fn versions(&self) -> &'static [u32];

    /// What a repetition of this call would do.
    fn repeat(&self, _: &Call) -> Repeat {
        Repeat::Harmless
    }

    /// About how large the reply may become, so that memory can be kept in bounds.
    fn reply_bytes(&self, _: &Call) -> usize {
        512
    }

    /// Writes the results after an envelope of success; other verdicts replace that envelope.
    fn serve(&self, call: &Call, peer: &Peer, patience: Patience, out: &mut Writer) -> Served;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repeat {
    /// Doing it again gives the same answer.
    Harmless,
    /// It must be done once; the reply is kept.
    Once,
    /// As `Once`, but there are many and each matters less.
    Bulk,
    /// As `Once`, until its host reboots.
    Lock,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Served {
    Reply,
    /// Only with [`Patience::Now`]: ask again on a worker thread.
    NotNow,
    GarbageArgs,
    NoSuchProcedure,
}

/// Decodes the arguments, or answers that they are garbage.
macro_rules! decode {
    ($call:expr) => {
        match wire::Decode::from_bytes($call.args.clone()) {
            Ok(args) => args,
            Err(_) => return $crate::service::Served::GarbageArgs,
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

//! The requests of peers and operators to the keeper, as one type, and how each is treated while the
//! store fails (I11).

use std::time::Duration;

use keeper::Keeper;
use keeper::bytes::{FileKey, OwnerTag};
use keeper::identity::{Caller, RequestId};
use keeper::request::{
    CancelRequest, FreeAllRequest, LockRequest, MonitorRequest, OperatorRequest, RebootNotice,
    RegisterRequest, ShareRequest, TestRequest, UnlockRequest, UnmonitorRequest, UnregisterRequest,
    UnshareRequest,
};
use keeper::step::{Outcome, Reply};
use keeper::time::Time;

use crate::liveness::registry::TakenBy;

/// How long a request may wait for a failing store (I11).
pub const STALL_MAX: Duration = Duration::from_secs(5);

/// A request that gets a reply.
#[derive(Debug, Clone)]
pub enum Request {
    Lock(LockRequest),
    Test(TestRequest),
    Unlock(UnlockRequest),
    Cancel(CancelRequest),
    Share(ShareRequest),
    Unshare(UnshareRequest),
    FreeAll(FreeAllRequest),
    Reboot(RebootNotice),
    Monitor(MonitorRequest),
    Unmonitor(UnmonitorRequest),
    Register(RegisterRequest),
    Unregister(UnregisterRequest),
    Operator(OperatorRequest),
}

/// What is sent for a request that has waited for [`STALL_MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StallPolicy {
    /// A refusal loses nothing: the application gets an error.
    Refuse,
    /// Any reply would lose a lock: a client forgets the lock after any reply to its UNLOCK, and
    /// silently drops a lock whose reclaim is refused (B5.4). Without a reply it retransmits.
    NoReply,
}

impl Request {
    pub fn id(&self) -> RequestId {
        match self {
            Self::Lock(request) => request.id,
            Self::Test(request) => request.id,
            Self::Unlock(request) => request.id,
            Self::Cancel(request) => request.id,
            Self::Share(request) => request.id,
            Self::Unshare(request) => request.id,
            Self::FreeAll(request) => request.id,
            Self::Reboot(request) => request.id,
            Self::Monitor(request) => request.id,
            Self::Unmonitor(request) => request.id,
            Self::Register(request) => request.id,
            Self::Unregister(request) => request.id,
            Self::Operator(request) => request.id,
        }
    }

    /// Whether it reclaims a lock or share that was held before a restart.
    pub fn is_reclaim(&self) -> bool {
        match self {
            Self::Lock(request) => request.reclaim,
            Self::Share(request) => request.reclaim,
            _ => false,
        }
    }

    /// The owner and the file. Requests with the same subject take effect in the order of their
    /// receipt (B2.10).
    pub fn subject(&self) -> Option<(&Caller, u32, &OwnerTag, &FileKey)> {
        Some(match self {
            Self::Lock(r) => (&r.caller, r.owner.number, &r.owner.tag, &r.file),
            Self::Test(r) => (&r.caller, r.owner.number, &r.owner.tag, &r.file),
            Self::Unlock(r) => (&r.caller, r.owner.number, &r.owner.tag, &r.file),
            Self::Cancel(r) => (&r.caller, r.owner.number, &r.owner.tag, &r.file),
            Self::Share(r) => (&r.caller, 0, &r.tag, &r.file),
            Self::Unshare(r) => (&r.caller, 0, &r.tag, &r.file),
            Self::FreeAll(_)
            | Self::Reboot(_)
            | Self::Monitor(_)
            | Self::Unmonitor(_)
            | Self::Register(_)
            | Self::Unregister(_)
            | Self::Operator(_) => return None,
        })
    }

    /// The host that holds something if this is granted, and what its request says about its kernel.
    pub fn grantee(&self) -> Option<(&Caller, TakenBy)> {
        match self {
            Self::Lock(LockRequest { caller, reclaim: true, .. })
            | Self::Share(ShareRequest { caller, reclaim: true, .. }) => {
                Some((caller, TakenBy::Reclaim))
            }
            Self::Lock(request) => Some((&request.caller, TakenBy::Lock(request.incarnation))),
            Self::Share(request) => Some((&request.caller, TakenBy::Share)),
            _ => None,
        }
    }

    pub fn stall_policy(&self) -> StallPolicy {
        match self {
            Self::Lock(_) | Self::Share(_) if self.is_reclaim() => StallPolicy::NoReply,
            Self::Lock(_)
            | Self::Test(_)
            | Self::Share(_)
            | Self::Monitor(_)
            | Self::Register(_)
            | Self::Unregister(_)
            | Self::Operator(_) => StallPolicy::Refuse,
            _ => StallPolicy::NoReply,
        }
    }

    /// Whether it is decided in microseconds, whatever the size of the lock table.
    pub fn is_light(&self) -> bool {
        matches!(self, Self::Lock(_) | Self::Test(_) | Self::Unlock(_) | Self::Cancel(_))
    }

    pub fn enter(self, keeper: &mut Keeper, now: Time) {
        match self {
            Self::Lock(request) => keeper.handle_lock(request, now),
            Self::Test(request) => keeper.handle_test(request, now),
            Self::Unlock(request) => keeper.handle_unlock(request, now),
            Self::Cancel(request) => keeper.handle_cancel(request, now),
            Self::Share(request) => keeper.handle_share(request, now),
            Self::Unshare(request) => keeper.handle_unshare(request, now),
            Self::FreeAll(request) => keeper.handle_free_all(request, now),
            Self::Reboot(request) => keeper.handle_reboot(request, now),
            Self::Monitor(request) => keeper.handle_monitor(request, now),
            Self::Unmonitor(request) => keeper.handle_unmonitor(request, now),
            Self::Register(request) => keeper.handle_register(request, now),
            Self::Unregister(request) => keeper.handle_unregister(request, now),
            Self::Operator(request) => keeper.handle_operator(request, now),
        }
    }
}

/// Whether this reply grants a lock or share, or queues a waiter.
pub fn grants_or_queues(reply: &Reply) -> bool {
    matches!(
        reply,
        Reply::Lock(Outcome::Granted | Outcome::Blocked) | Reply::Share(Outcome::Granted)
    )
}

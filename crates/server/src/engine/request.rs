//! What peers and operators ask of the keeper, as one type.

use std::time::Duration;

use keeper::Keeper;
use keeper::bytes::{FileKey, OwnerTag};
use keeper::identity::{Caller, Incarnation, RequestId};
use keeper::request::{
    CancelRequest, FreeAllRequest, LockRequest, MonitorRequest, OperatorRequest, RebootNotice,
    ShareRequest, TestRequest, UnlockRequest, UnmonitorRequest, UnshareRequest,
};
use keeper::step::{Outcome, Reply};
use keeper::time::Time;

/// How long a request may wait for a store that does not work (I11).
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
    Operator(OperatorRequest),
}

/// What a request that never entered the keeper is told after [`STALL_MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenStalled {
    /// "No" loses nothing: the program gets an error.
    Refuse,
    /// Any answer would lose a lock: after any answer to its UNLOCK a client forgets the lock, and
    /// a refused reclaim is a lock lost in silence (R5.4). Without one it asks again.
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
            Self::Operator(request) => request.id,
        }
    }

    /// Whether it takes back what was held before a restart.
    pub fn is_reclaim(&self) -> bool {
        match self {
            Self::Lock(request) => request.reclaim,
            Self::Share(request) => request.reclaim,
            _ => false,
        }
    }

    /// Whose request it is and on which file. Requests that agree in this take effect in the order of
    /// their receipt (R3.8).
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
            | Self::Operator(_) => return None,
        })
    }

    /// The host that has something if this is granted, and the state that its request carried.
    pub fn taker(&self) -> Option<(&Caller, Incarnation)> {
        match self {
            Self::Lock(request) => Some((&request.caller, request.incarnation)),
            Self::Share(request) => Some((&request.caller, Incarnation::UNKNOWN)),
            _ => None,
        }
    }

    pub fn when_stalled(&self) -> WhenStalled {
        match self {
            Self::Lock(_) | Self::Share(_) if self.is_reclaim() => WhenStalled::NoReply,
            Self::Lock(_)
            | Self::Test(_)
            | Self::Share(_)
            | Self::Monitor(_)
            | Self::Operator(_) => WhenStalled::Refuse,
            _ => WhenStalled::NoReply,
        }
    }

    /// Whether it is decided in microseconds, whatever the table holds.
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
            Self::Operator(request) => keeper.handle_operator(request, now),
        }
    }
}

/// Whether the caller has a lock, a share or a place in line by this.
pub fn is_taken(reply: &Reply) -> bool {
    matches!(
        reply,
        Reply::Lock(Outcome::Granted | Outcome::Blocked) | Reply::Share(Outcome::Granted)
    )
}

//! Locks and those who hold them: ids, ranges, modes, states; how recovery goes about them; what an
//! operator may do.

pub use keeper::FenceScope;
pub use keeper::bytes::Name;
pub use keeper::change::Exactness;
pub use keeper::config::{Config, GraceMode, Limits, RosterEntry, Unreachable, Verify};
pub use keeper::identity::{ClientId, LockId, ShareId};
pub use keeper::range::{OffsetTooLarge, Range};
pub use keeper::request::{Mode, OperatorAction};
pub use keeper::step::{OperatorError, OperatorOutcome};
pub use keeper::view::LockState;

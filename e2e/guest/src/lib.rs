//! What runs inside a guest of the lab: the agent that obeys the harness, and the small programs
//! that exercise an NFS mount. The harness links the same library, so that both sides share one
//! protocol ([`line`]) and one model of what a file must contain ([`model`]).

pub mod agent;
pub mod exercise;
pub mod identity;
pub mod increment;
pub mod line;
pub mod listing;
pub mod lock;
pub mod locker;
pub mod model;
pub mod open;
pub mod race;
pub mod random;
pub mod tree;

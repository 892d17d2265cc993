//! Programs that run inside a guest: the agent that executes commands of the harness, and small
//! programs that exercise an NFS mount. The harness links the same library, so that both sides share
//! the protocol ([`mod@line`]) and the model of file contents ([`model`]).

#![warn(unreachable_pub)]

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

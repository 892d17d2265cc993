//! The judges. After every decision of the keeper each change in its table must have a cause that
//! a rule allows (I6), and each reply must be correct as far as an observer can tell.
//!
//! They share no code with the keeper: they see requests, replies, events and the keeper's getters,
//! keep a model of their own (`model.rs`), and know the ground truth that the server must guess.
//!
//! | file | judges |
//! |---|---|
//! | `input.rs` | nothing: an input of the keeper as the judges record it |
//! | `cause.rs` | why a byte changed hands (I6, I7, I9); entry point `judge` |
//! | `effect.rs` | nothing: what requests and callbacks do to bytes, for `cause.rs` |
//! | `releases.rs` | which releases reports, probes and notices allow |
//! | `confirmation.rs` | what an operator's confirmation of a reboot releases |
//! | `roaming.rs` | reboots reported from another address |
//! | `recovery.rs` | the recovery window and its deadline |
//! | `replies.rs` | replies to LOCK, TEST, CANCEL, reclaims and notices (I5, I8, I10) |
//! | `shares.rs` | the same for shares |
//! | `table.rs` | the keeper's table byte by byte; conflicts and beliefs (I1), bounds (I10) |
//! | `durable.rs` | durable before told (I2), the epoch first (I3), restores (I4) |
//! | `inexact.rs` | records of a roster or an open store at the end of grace |
//! | `liveness.rs` | waiters and their order; what must be true at the end |

mod cause;
mod confirmation;
mod durable;
mod effect;
mod inexact;
pub(crate) mod input;
mod liveness;
mod recovery;
mod releases;
mod replies;
mod roaming;
mod shares;
mod table;

//! After every input: everything that changed in the keeper's table must be somebody's doing that a
//! rule allows (I6), and everything that was answered must be so.

mod cause;
mod claims;
mod durable;
mod liveness;
pub mod note;
mod recovery;
mod replies;
mod shares;
mod table;

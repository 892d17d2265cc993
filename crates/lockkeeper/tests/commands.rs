//! The commands that look at a running daemon and steer it, as an operator meets them: the real
//! program, against a live server, and against a scripted one for what a live one does not do.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

#[path = "commands/failing.rs"]
mod failing;
#[path = "commands/live.rs"]
mod live;
#[path = "commands/local.rs"]
mod local;
#[path = "support/node.rs"]
mod node;
#[path = "commands/operated.rs"]
mod operated;
#[path = "commands/permitted.rs"]
mod permitted;
#[path = "commands/run.rs"]
mod run;
#[path = "commands/samples.rs"]
mod samples;
#[path = "commands/scripted.rs"]
mod scripted;
#[path = "commands/seen.rs"]
mod seen;
#[path = "commands/steered.rs"]
mod steered;
#[path = "commands/watched.rs"]
mod watched;

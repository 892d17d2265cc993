//! The commands that query and control a running daemon: the real binary against a live server, and
//! against a scripted one for replies that a live server does not give on demand.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod exported;
mod failing;
mod live;
mod local;
mod operated;
mod permitted;
mod run;
mod samples;
mod scripted;
mod seen;
mod steered;
#[path = "../support/mod.rs"]
mod support;
mod watched;

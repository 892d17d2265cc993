//! Seeing and steering a server: a REST API on a unix socket and on loopback TCP, an event stream,
//! metrics, and the web page that is fed by them.

pub mod api;

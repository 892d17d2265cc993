//! The lab: real Linux kernel clients in small QEMU guests, a server beside them in a network
//! namespace of its own, and the drill that judges it.
//!
//! From the outside in: [`packages`], [`apt`] and [`kernel`] fetch what is needed, [`image`] packs the guests'
//! root, [`lab::Lab`] owns the namespace, the guests and the files of one run, [`guest::Guest`] is a
//! machine to run commands on, [`server::Server`] the program under test, [`drill`] what must be seen.

pub mod agent;
pub mod apt;
pub mod archive;
pub mod capture;
pub mod drill;
pub mod file_server;
pub mod guest;
pub mod image;
pub mod kernel;
pub mod lab;
pub mod network;
pub mod packages;
pub mod pair;
pub mod server;

//! What tests, benchmarks and the end-to-end drill need of the machine they run on. Test only: the
//! product never depends on it.
//!
//! | module | provides |
//! |---|---|
//! | [`random`] | the seeded generator |
//! | [`wait`] | bounded waits |
//! | [`process`] | child processes with a log, commands run to their end |
//! | [`server`] | `lockkeeper serve` as a process: started, killed, stopped |
//! | [`mounts`] | mounted file systems: ext4, XFS, tmpfs, overlayfs, FUSE |
//! | [`namespace`] | network namespaces, veth pairs, threads and commands inside |
//! | [`debian`] | rpcbind, statd and sm-notify on a machine of their own |
//! | [`peer`] | scripted rpcbind, lock manager and status monitor peers over UDP and TCP |
//! | [`ports`] | free ports for servers that start again |
//! | [`postgres`] | a PostgreSQL server in a temporary directory |
//! | [`certificates`] | authorities, and what they issue |
//! | [`packages`] | Debian packages, installed without starting daemons |
//! | [`corpus`] | the inputs of the fuzz targets |
//! | [`fixtures`] | stores that released versions wrote |
//! | [`small_disk`] | a file system of a few megabytes |
//! | [`source_tree`] | the files of this repository |
//!
//! Rules for everything here:
//! - Sockets are on loopback or in a namespace of the test; nothing reaches another machine.
//! - Every wait has a limit, and its error says what did not happen.
//! - Whatever is started or created ends with the value that owns it, by its own id, also when the
//!   test panics.
//! - It is written against `wire` alone, so that a crate's unit tests and their testbed agree on types.

pub mod certificates;
pub mod corpus;
pub mod debian;
pub mod fixtures;
pub mod mounts;
pub mod namespace;
pub mod packages;
pub mod peer;
pub mod ports;
pub mod postgres;
pub mod process;
pub mod random;
pub mod server;
pub mod small_disk;
pub mod source_tree;
pub mod wait;

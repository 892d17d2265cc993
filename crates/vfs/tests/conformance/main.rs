//! The contract of `FileSystem`, tested on every implementation, as several callers.
#![allow(clippy::unwrap_used)]

#[path = "../fixture/mod.rs"]
mod fixture;

/// Turns each case into a test on each implementation.
macro_rules! on_every_file_system {
    ($($case:ident)*) => {
        mod memory {
            $(#[test] fn $case() { crate::on(crate::Fixture::memory(), super::$case) })*
        }
        mod local {
            $(#[test] fn $case() { crate::on(crate::Fixture::local(), super::$case) })*
        }
        mod local_by_inode_map {
            $(#[test] fn $case() { crate::on(crate::Fixture::local_by_inode_map(), super::$case) })*
        }
    };
}

mod attributes;
mod creation;
mod data;
mod names;
mod permissions;
mod removal;

use fixture::Fixture;

fn on(fixture: Option<Fixture>, case: fn(&Fixture)) {
    if let Some(fixture) = fixture {
        case(&fixture);
    }
}

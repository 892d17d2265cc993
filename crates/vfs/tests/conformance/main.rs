//! What every file system must do, tried on all of them, as several callers.
#![allow(clippy::unwrap_used)]

#[path = "../world/mod.rs"]
mod world;

/// Makes each case a test on each kind of file system.
macro_rules! on_every_file_system {
    ($($case:ident)*) => {
        mod memory {
            $(#[test] fn $case() { crate::on(crate::World::memory(), super::$case) })*
        }
        mod local {
            $(#[test] fn $case() { crate::on(crate::World::local(), super::$case) })*
        }
        mod local_by_inode_map {
            $(#[test] fn $case() { crate::on(crate::World::local_by_inode_map(), super::$case) })*
        }
    };
}

mod attributes;
mod creation;
mod data;
mod names;
mod permissions;
mod removal;

use world::World;

fn on(world: Option<World>, case: fn(&World)) {
    if let Some(world) = world {
        case(&world);
    }
}

//! What hosts can cause that hold nothing, when many are registered: an SM_NOTIFY of a host that is
//! not known, and a new name at the limit of clients, which takes the place of another.

use std::hint::black_box;

use crate::child;
use crate::report::{Bar, Report};
use crate::world::{Host, World};

/// Cost with 10,000 clients, relative to 1,000.
const GROWTH_MAX: f64 = 2.0;
const FEW: u32 = 1_000;
const MANY: u32 = 10_000;
const REPEATS: u32 = 100;
const NOBODY: Host = Host(20_000);

pub fn instructions(report: &mut Report) -> Result<(), String> {
    let count = |hosts: u32| {
        let parts = ["strangers::counted_notices", "strangers::counted_names"];
        child::counted("strangers", hosts, parts)
    };
    let ([few, few_names], [many, many_names]) = (count(FEW)?, count(MANY)?);
    let name = "SM_NOTIFY of an unknown host, 10,000 clients, in costs with 1,000";
    report.add(name, many / few, Bar::Max(GROWTH_MAX));
    let name = "a new name at the limit of 10,000 clients, in costs with 1,000";
    report.add(name, many_names / few_names, Bar::Max(GROWTH_MAX));
    Ok(())
}

/// The part that valgrind counts.
pub fn count(hosts: u32) {
    let mut world = World::with_clients_max(hosts as usize);
    for host in 0..hosts {
        visit(&mut world, Host(host));
    }
    world.prepare(hosts + REPEATS, 1, 1);
    world.prepare(NOBODY.0 + 1, 1, 1);
    counted_notices(&mut world);
    counted_names(&mut world, hosts);
}

fn visit(world: &mut World, host: Host) {
    world.pass(std::time::Duration::from_millis(1));
    world.lock(host, 0, 0, 0);
    world.unlock(host, 0, 0, 0);
}

#[inline(never)]
fn counted_notices(world: &mut World) {
    for _ in 0..REPEATS {
        world.notify(NOBODY);
    }
    black_box(world);
}

#[inline(never)]
fn counted_names(world: &mut World, hosts: u32) {
    for new in 0..REPEATS {
        visit(world, Host(hosts + new));
    }
    black_box(world);
}

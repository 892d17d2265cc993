//! Two servers share a PostgreSQL and an address. The one that serves dies, or pauses; the other goes
//! on with every lock in place.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::Step;
use super::increments::{Crew, judge};
use super::server_crash::PATIENCE;
use super::world::{Room, World};
use crate::pair::{Pair, SERVICE_V4};

pub(super) const STEPS: &[Step] = &[
    Step::new("standby-takes-over-with-every-lock", takes_over),
    Step::new("standby-replaces-a-server-that-paused", paused),
];

const TAKEOVER: Duration = Duration::from_secs(5);
/// From the first connection to the new server until all old locks are back.
const RECOVERED: Duration = Duration::from_secs(4);

fn scene(world: &World, name: &str) -> Result<(Pair, Room)> {
    let host = world.lab.directory().join("pair").join(name);
    fs::create_dir_all(&host)?;
    fs::set_permissions(&host, fs::Permissions::from_mode(0o777))?;
    let home = world.lab.directory().join(format!("pair-{name}"));
    let mut pair = Pair::new(world.lab.namespace(), world.server.program(), &home, &host)?;
    let [left, right] = &mut pair.nodes;
    left.start("recovery ")?;
    right.start("standing by: left serves")?;
    let point = format!("/mnt/pair-{name}");
    let source = format!("{SERVICE_V4}:{}", host.display());
    for guest in world.lab.guests() {
        // What a machine had received when it paused is repeated after this, and not after a minute.
        world.mount_at(guest, &source, "vers=3,timeo=50", &point)?;
    }
    Ok((pair, Room { host, guest: point }))
}

fn leave(world: &World, room: &Room) -> Result<()> {
    for guest in world.lab.guests() {
        guest.succeed(&format!("umount -f -l {}", room.guest))?;
    }
    Ok(())
}

fn takes_over(world: &World) -> Result<()> {
    let (mut pair, room) = scene(world, "kill")?;
    let mut holder = room.locker(world.alice()?, "file")?;
    holder.takes("write 0 10")?;
    let mut thief = room.locker(world.bob()?, "file")?;
    thief.is_refused("write 0 10")?;
    let killed = Instant::now();
    pair.nodes[0].signal(libc::SIGKILL)?;
    pair.nodes[1].wait_until_it_says("recovery ")?;
    let serving = pair.wait_until_serving()?;
    world.within("serving after", serving - killed, TAKEOVER)?;
    // It asks from the first moment on, and never gets it.
    thief.tries("write 0 10")?;
    thief.denied(PATIENCE)?;
    let new = room.locker(world.bob()?, "other")?.takes("write 0 1")?;
    world.within("first new lock after that by", new - serving, RECOVERED)?;
    holder.unlocks("0 10")?;
    thief.takes("write 0 10")?;
    pair.nodes[0].wait_until_ended()?;
    // And back again: who was killed is the standby now, and who serves is told to end.
    pair.nodes[0].start("standing by: right serves")?;
    let told = Instant::now();
    pair.nodes[1].signal(libc::SIGTERM)?;
    pair.nodes[0].wait_until_it_says("recovery ")?;
    let serving = pair.wait_until_serving()?;
    world.within("after a clean stop", serving - told, TAKEOVER)?;
    holder.is_refused("write 0 10")?;
    thief.unlocks("0 10")?;
    holder.takes("write 0 10")?;
    leave(world, &room)
}

/// The server that serves is stopped in the middle of its work and goes on when it has long been
/// replaced. Whatever it then said would show in the sum.
fn paused(world: &World) -> Result<()> {
    let (mut pair, room) = scene(world, "pause")?;
    let mut crews = [Crew::start(world.alice()?, &room)?, Crew::start(world.bob()?, &room)?];
    let names = ["left", "right"];
    let rounds = world.size.pauses;
    for round in 0..rounds {
        let (old, new) = (round % 2, 1 - round % 2);
        thread::sleep(Duration::from_secs(2));
        let stopped = Instant::now();
        pair.nodes[old].signal(libc::SIGSTOP)?;
        pair.nodes[new].wait_until_it_says("recovery ")?;
        let serving = pair.wait_until_serving()?;
        world.within("serving after", serving - stopped, TAKEOVER)?;
        thread::sleep(Duration::from_secs(1));
        pair.nodes[old].signal(libc::SIGCONT)?;
        pair.nodes[old].wait_until_ended()?;
        let said = pair.nodes[old].said();
        ensure!(said.contains(names[new]), "it does not say who replaced it:\n{said}");
        pair.nodes[old].start(&format!("standing by: {} serves", names[new]))?;
    }
    thread::sleep(Duration::from_secs(2));
    for crew in &mut crews {
        crew.finish()?;
    }
    let text = fs::read_to_string(room.file("number")).context("no number")?;
    let last: u64 = text.trim().parse().with_context(|| format!("{text:?}"))?;
    let mut logged = Vec::new();
    for crew in &crews {
        logged.extend(crew.logged()?);
    }
    world.note(format!("{rounds} pauses, sum {last}"));
    judge(last, &logged, 0)?;
    leave(world, &room)
}

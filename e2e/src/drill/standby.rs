//! Two servers share a PostgreSQL database and an address. The active one dies or pauses; the other
//! takes over with every lock in place.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use testbed::process::Signal;

use super::Step;
use super::context::{Drill, StepDir};
use super::increments::{Incrementers, judge};
use super::server_crash::TIMEOUT;
use crate::pair::{Pair, SERVICE_V4};

pub(super) const STEPS: &[Step] = &[
    Step::new("standby-takes-over-with-every-lock", takes_over),
    Step::new("standby-replaces-a-server-that-paused", paused),
];

const TAKEOVER: Duration = Duration::from_secs(5);
/// From the first connection to the new server until all old locks are back.
const RECOVERED: Duration = Duration::from_secs(4);

fn start(drill: &Drill, name: &str) -> Result<(Pair, StepDir)> {
    let host = drill.lab.directory().join("pair").join(name);
    fs::create_dir_all(&host)?;
    fs::set_permissions(&host, fs::Permissions::from_mode(0o777))?;
    let home = drill.lab.directory().join(format!("pair-{name}"));
    let mut pair = Pair::new(drill.lab.network(), drill.server.program(), &home, &host)?;
    let [left, right] = &mut pair.nodes;
    left.start("recovery ")?;
    right.start("standing by: left serves")?;
    let point = format!("/mnt/pair-{name}");
    let source = format!("{SERVICE_V4}:{}", host.display());
    for guest in drill.lab.guests() {
        // What a machine had received when it paused is repeated after this, and not after a minute.
        drill.mount_at(guest, &source, "vers=3,timeo=50", &point)?;
    }
    Ok((pair, StepDir { host, guest: point }))
}

fn leave(drill: &Drill, dir: &StepDir) -> Result<()> {
    for guest in drill.lab.guests() {
        guest.succeed(&format!("umount -f -l {}", dir.guest))?;
    }
    Ok(())
}

fn takes_over(drill: &Drill) -> Result<()> {
    let (mut pair, dir) = start(drill, "kill")?;
    let mut holder = dir.locker(drill.alice()?, "file")?;
    holder.takes("write 0 10")?;
    let mut thief = dir.locker(drill.bob()?, "file")?;
    thief.is_refused("write 0 10")?;
    let killed = Instant::now();
    pair.nodes[0].signal(Signal::KILL)?;
    pair.nodes[1].wait_for_log("recovery ")?;
    let serving = pair.wait_until_serving()?;
    drill.within("serving after", serving - killed, TAKEOVER)?;
    // Requests the lock throughout, and never gets it.
    thief.tries("write 0 10")?;
    thief.denied(TIMEOUT)?;
    let new = dir.locker(drill.bob()?, "other")?.takes("write 0 1")?;
    drill.within("first new lock after that by", new - serving, RECOVERED)?;
    holder.unlocks("0 10")?;
    thief.takes("write 0 10")?;
    pair.nodes[0].wait_until_ended()?;
    // And back again: the killed server is now the standby, and the active one is stopped.
    pair.nodes[0].start("standing by: right serves")?;
    let told = Instant::now();
    pair.nodes[1].signal(Signal::TERM)?;
    pair.nodes[0].wait_for_log("recovery ")?;
    let serving = pair.wait_until_serving()?;
    drill.within("after a clean stop", serving - told, TAKEOVER)?;
    holder.is_refused("write 0 10")?;
    thief.unlocks("0 10")?;
    holder.takes("write 0 10")?;
    leave(drill, &dir)
}

/// The active server is paused in the middle of its work and continues long after it was replaced.
/// Any reply that it then sent would show in the sum.
fn paused(drill: &Drill) -> Result<()> {
    let (mut pair, dir) = start(drill, "pause")?;
    let mut groups =
        [Incrementers::start(drill.alice()?, &dir)?, Incrementers::start(drill.bob()?, &dir)?];
    let names = ["left", "right"];
    let rounds = drill.size.pauses;
    for round in 0..rounds {
        let (old, new) = (round % 2, 1 - round % 2);
        thread::sleep(Duration::from_secs(2));
        let stopped = Instant::now();
        pair.nodes[old].signal(Signal::STOP)?;
        pair.nodes[new].wait_for_log("recovery ")?;
        let serving = pair.wait_until_serving()?;
        drill.within("serving after", serving - stopped, TAKEOVER)?;
        thread::sleep(Duration::from_secs(1));
        pair.nodes[old].signal(Signal::CONT)?;
        pair.nodes[old].wait_until_ended()?;
        let said = pair.nodes[old].output();
        ensure!(said.contains(names[new]), "it does not say who replaced it:\n{said}");
        pair.nodes[old].start(&format!("standing by: {} serves", names[new]))?;
    }
    thread::sleep(Duration::from_secs(2));
    for incrementers in &mut groups {
        incrementers.finish()?;
    }
    let text = fs::read_to_string(dir.file("number")).context("no number")?;
    let last: u64 = text.trim().parse().with_context(|| format!("{text:?}"))?;
    let mut logged = Vec::new();
    for incrementers in &groups {
        logged.extend(incrementers.logged()?);
    }
    drill.note(format!("{rounds} pauses, sum {last}"));
    judge(last, &logged, 0)?;
    leave(drill, &dir)
}

//! Eight processes in two guests add to one number under a lock, while server and guests are killed
//! at random. Every number must have been written exactly once; only what was under way when its own
//! guest died may be unknown.

use std::collections::BTreeMap;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use guest::random::Random;

use super::Step;
use super::locks::drill;
use super::world::{Room, World};
use crate::agent::Task;
use crate::guest::Guest;
use crate::server::Settings;

pub(super) const STEPS: &[Step] = &[
    Step::new("increments-are-exact-through-kills", strict),
    Step::long("increments-are-exact-with-instant-grace", instant),
];

const PROCESSES: usize = 4;
const PATIENCE: Duration = Duration::from_secs(120);
/// From the start of sm-notify until its notice is judged.
const NOTICE: Duration = Duration::from_secs(3);

/// One guest's processes, and how many of them died with it.
pub(super) struct Crew<'a> {
    guest: &'a Guest,
    tasks: Vec<Task>,
    died: usize,
}

impl<'a> Crew<'a> {
    pub(super) fn start(guest: &'a Guest, room: &Room) -> Result<Self> {
        guest.succeed("rm -f /var/lib/nfs/increments.*")?;
        let mut crew = Self { guest, tasks: Vec::new(), died: 0 };
        crew.set_to_work(room)?;
        Ok(crew)
    }

    fn set_to_work(&mut self, room: &Room) -> Result<()> {
        for number in 0..PROCESSES {
            let log = format!("/var/lib/nfs/increments.{number}");
            let command = format!("exec lockkeeper-guest increment {}/number {log}", room.guest);
            self.tasks.push(self.guest.spawn(&command)?);
        }
        Ok(())
    }

    fn crash(&mut self) {
        self.guest.crash();
        self.died += self.tasks.len();
        self.tasks.clear();
    }

    fn is_at_work(&self) -> bool {
        self.tasks.iter().all(Task::is_running)
    }

    pub(super) fn finish(&mut self) -> Result<()> {
        self.tasks.iter().try_for_each(Task::close)?;
        for task in self.tasks.drain(..) {
            let output = task.wait(PATIENCE)?;
            ensure!(output.status == 0, "{}: {}", self.guest.name(), output.errors());
        }
        Ok(())
    }

    /// Every number that its processes logged.
    pub(super) fn logged(&self) -> Result<Vec<u64>> {
        let text = self.guest.succeed("cat /var/lib/nfs/increments.*")?;
        text.lines().map(|line| line.parse().with_context(|| format!("{line:?}"))).collect()
    }
}

fn strict(world: &World) -> Result<()> {
    increments(world, &drill())
}

fn instant(world: &World) -> Result<()> {
    let (grace, durability) = (Some("instant"), Some("power"));
    increments(world, &Settings { grace, durability, ..drill() })
}

fn increments(world: &World, settings: &Settings) -> Result<()> {
    world.stage(settings)?;
    let room = world.room("open", "increments")?;
    let (alice, bob) = (world.alice()?, world.bob()?);
    let mut crews = [Crew::start(alice, &room)?, Crew::start(bob, &room)?];
    let seed = u64::from(std::process::id());
    world.note(format!("seed {seed}"));
    let mut random = Random::new(seed);
    let (mut server_kills, mut client_kills) = (0, 0);
    let start = Instant::now();
    let time = Duration::from_secs(world.size.increment_seconds);
    while start.elapsed() < time || server_kills + client_kills < world.size.increment_kills {
        thread::sleep(Duration::from_millis(1_000 + random.below(3_000)));
        for crew in &crews {
            ensure!(crew.is_at_work(), "a process of {} ended by itself", crew.guest.name());
        }
        match random.below(10) {
            // The server, and a moment without it.
            0..7 => {
                world.server.kill();
                thread::sleep(Duration::from_millis(random.below(500)));
                world.server.start()?;
                server_kills += 1;
            }
            // A guest, and sometimes the server with it.
            choice => {
                let crew = &mut crews[random.below(2) as usize];
                crew.crash();
                client_kills += 1;
                if choice == 7 {
                    world.server.restart()?;
                    server_kills += 1;
                }
                crew.guest.boot()?;
                // Its notice is judged first, as at an ordinary boot; who locks before that is the
                // matter of `notice-comes-after-...`.
                thread::sleep(NOTICE);
                world.mount(crew.guest, "open")?;
                crew.set_to_work(&room)?;
            }
        }
    }
    for crew in &mut crews {
        crew.finish()?;
    }
    let died = crews.iter().map(|crew| crew.died).sum();
    let text = fs::read_to_string(room.file("number")).context("no number")?;
    let last: u64 = text.trim().parse().with_context(|| format!("{text:?}"))?;
    let mut logged = Vec::new();
    for crew in &crews {
        logged.extend(crew.logged()?);
    }
    world.note(format!("{server_kills} kills of the server, {client_kills} of guests, sum {last}"));
    judge(last, &logged, died)
}

/// Each number up to the last was written by one process. Who died may have written one that it did
/// not log.
pub(super) fn judge(last: u64, logged: &[u64], died: usize) -> Result<()> {
    let mut times: BTreeMap<u64, usize> = BTreeMap::new();
    for number in logged {
        *times.entry(*number).or_default() += 1;
    }
    let twice: Vec<_> = times.iter().filter(|(_, times)| **times > 1).collect();
    ensure!(twice.is_empty(), "written by two (number, times): {twice:?}");
    let beyond: Vec<_> = times.keys().filter(|number| **number > last).collect();
    ensure!(beyond.is_empty(), "the sum is {last}, and these were written: {beyond:?}");
    let missing: Vec<_> = (1..=last).filter(|number| !times.contains_key(number)).collect();
    ensure!(
        missing.len() <= died,
        "{died} processes died, and nobody has written these: {missing:?}"
    );
    ensure!(last > 0, "nobody added anything");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::judge;

    #[test]
    fn a_number_written_twice_lost_or_unexplained_is_noticed() {
        assert!(judge(3, &[2, 1, 3], 0).is_ok());
        assert!(judge(3, &[1, 3], 1).is_ok());
        assert!(judge(3, &[1, 3], 0).is_err(), "one is missing");
        assert!(judge(2, &[1, 2, 2], 4).is_err(), "two wrote the same");
        assert!(judge(2, &[1, 2, 3], 4).is_err(), "one was lost");
        assert!(judge(0, &[], 0).is_err(), "nothing happened");
    }
}

//! Eight processes in two guests increment one number under a lock, while server and guests are
//! killed at random. Every number must have been written exactly once; only an increment in
//! progress when its own guest died may be unknown.

use std::collections::BTreeMap;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use guest::random::Random;

use super::Step;
use super::context::{Drill, StepDir};
use super::locks::default_settings;
use crate::agent::Task;
use crate::guest::Guest;
use crate::server::Settings;

pub(super) const STEPS: &[Step] = &[
    Step::new("increments-are-exact-through-kills", strict),
    Step::long("increments-are-exact-with-instant-grace", instant),
];

const PROCESSES: usize = 4;
const TIMEOUT: Duration = Duration::from_secs(120);
/// From the start of sm-notify until its notice is decided.
const NOTICE: Duration = Duration::from_secs(3);

/// One guest's processes, and how many of them died with it.
pub(super) struct Incrementers<'a> {
    guest: &'a Guest,
    tasks: Vec<Task>,
    died: usize,
}

impl<'a> Incrementers<'a> {
    pub(super) fn start(guest: &'a Guest, dir: &StepDir) -> Result<Self> {
        guest.succeed("rm -f /var/lib/nfs/increments.*")?;
        let mut incrementers = Self { guest, tasks: Vec::new(), died: 0 };
        incrementers.start_all(dir)?;
        Ok(incrementers)
    }

    fn start_all(&mut self, dir: &StepDir) -> Result<()> {
        for number in 0..PROCESSES {
            let log = format!("/var/lib/nfs/increments.{number}");
            let command = format!("exec lockkeeper-guest increment {}/number {log}", dir.guest);
            self.tasks.push(self.guest.spawn(&command)?);
        }
        Ok(())
    }

    fn crash(&mut self) {
        self.guest.crash();
        self.died += self.tasks.len();
        self.tasks.clear();
    }

    fn all_running(&self) -> bool {
        self.tasks.iter().all(Task::is_running)
    }

    pub(super) fn finish(&mut self) -> Result<()> {
        self.tasks.iter().try_for_each(Task::close)?;
        for task in self.tasks.drain(..) {
            let output = task.wait(TIMEOUT)?;
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

fn strict(drill: &Drill) -> Result<()> {
    increments(drill, &default_settings())
}

fn instant(drill: &Drill) -> Result<()> {
    let (grace, durability) = (Some("instant"), Some("power"));
    increments(drill, &Settings { grace, durability, ..default_settings() })
}

fn increments(drill: &Drill, settings: &Settings) -> Result<()> {
    drill.stage(settings)?;
    let dir = drill.step_dir("open", "increments")?;
    let (alice, bob) = (drill.alice()?, drill.bob()?);
    let mut groups = [Incrementers::start(alice, &dir)?, Incrementers::start(bob, &dir)?];
    let seed = u64::from(std::process::id());
    drill.note(format!("seed {seed}"));
    let mut random = Random::new(seed);
    let (mut server_kills, mut client_kills) = (0, 0);
    let start = Instant::now();
    let time = Duration::from_secs(drill.size.increment_seconds);
    while start.elapsed() < time || server_kills + client_kills < drill.size.increment_kills {
        thread::sleep(Duration::from_millis(1_000 + random.below(3_000)));
        for incrementers in &groups {
            ensure!(
                incrementers.all_running(),
                "a process of {} ended by itself",
                incrementers.guest.name()
            );
        }
        match random.below(10) {
            // Kills the server, and leaves it down for a moment.
            0..7 => {
                drill.server.kill();
                thread::sleep(Duration::from_millis(random.below(500)));
                drill.server.start()?;
                server_kills += 1;
            }
            // A guest, and sometimes the server with it.
            choice => {
                let incrementers = &mut groups[random.below(2) as usize];
                incrementers.crash();
                client_kills += 1;
                if choice == 7 {
                    drill.server.restart()?;
                    server_kills += 1;
                }
                incrementers.guest.boot()?;
                // Its notice is decided first, as at an ordinary boot; `notice-comes-after-...`
                // tests locks before that.
                thread::sleep(NOTICE);
                drill.mount(incrementers.guest, "open")?;
                incrementers.start_all(&dir)?;
            }
        }
    }
    for incrementers in &mut groups {
        incrementers.finish()?;
    }
    let died = groups.iter().map(|incrementers| incrementers.died).sum();
    let text = fs::read_to_string(dir.file("number")).context("no number")?;
    let last: u64 = text.trim().parse().with_context(|| format!("{text:?}"))?;
    let mut logged = Vec::new();
    for incrementers in &groups {
        logged.extend(incrementers.logged()?);
    }
    drill.note(format!("{server_kills} kills of the server, {client_kills} of guests, sum {last}"));
    judge(last, &logged, died)
}

/// Each number up to the last was written by one process. A process that died may have written one
/// that it did not log.
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

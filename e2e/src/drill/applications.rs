//! Programs of two guests share a database and a repository while the server is killed and restarted.
//! What a program reported as done is there, nothing is damaged, and no update is lost.

use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testbed::process::run;

use super::Step;
use super::context::Drill;
use super::locks::step_dir;
use crate::agent::Task;
use crate::guest::Guest;

pub(super) const STEPS: &[Step] = &[
    Step::new("sqlite-through-server-crashes", sqlite),
    Step::new("git-through-server-crashes", git),
];

const TIMEOUT: Duration = Duration::from_secs(180);
/// Between two kills, with the restart and the reclaims.
const BETWEEN_KILLS: Duration = Duration::from_secs(4);
const KILLS: u32 = 2;

/// What one guest reported.
#[derive(Debug, Clone, Copy)]
struct Work {
    done: u64,
    failed: u64,
}

/// Each transaction inserts a row and increments a counter, so that a lock which two programs had at
/// once shows as a counter that differs from the number of rows.
fn sqlite(drill: &Drill) -> Result<()> {
    let dir = step_dir(drill, "sqlite")?;
    let database = dir.file("shared.db");
    query(
        &database,
        "CREATE TABLE entries (guest TEXT, number INTEGER); CREATE TABLE counter (value INTEGER); \
         INSERT INTO counter VALUES (0)",
    )?;
    let path = format!("{}/shared.db", dir.guest);
    let works = work_through_kills(drill, |guest| {
        format!(
            "sqlite3 -bail -cmd '.timeout 120000' {path} \"BEGIN IMMEDIATE; \
             INSERT INTO entries VALUES ('{}', $i); UPDATE counter SET value = value + 1; COMMIT\"",
            guest.name()
        )
    })?;
    let damage = query(&database, "PRAGMA integrity_check")?;
    ensure!(damage == "ok", "integrity_check says {damage}");
    let rows: u64 = query(&database, "SELECT count(*) FROM entries")?.parse()?;
    let counter: u64 = query(&database, "SELECT value FROM counter")?.parse()?;
    ensure!(rows == counter, "{rows} rows, and a counter of {counter}: an update was lost");
    for (guest, work) in works {
        let rows = query(
            &database,
            &format!("SELECT count(DISTINCT number) FROM entries WHERE guest = '{guest}'"),
        )?;
        ensure!(work.failed == 0, "{guest}: {} transactions failed", work.failed);
        ensure!(rows.parse::<u64>()? == work.done, "{guest}: {rows} rows, {} done", work.done);
    }
    Ok(())
}

/// Each guest commits to a branch of its own in a shared repository. A commit may fail at a kill: its
/// rename was carried out, the reply was lost, and the client's repetition finds no file.
fn git(drill: &Drill) -> Result<()> {
    let dir = step_dir(drill, "git")?;
    let setup = format!(
        "{GIT} cd {} && git init -q -b start main && cd main && git commit -q --allow-empty -m start && \
         git worktree add -q -b alice ../alice && git worktree add -q -b bob ../bob",
        dir.guest
    );
    drill.alice()?.succeed_for(&setup, TIMEOUT)?;
    let works = work_through_kills(drill, |guest| {
        format!(
            "( {GIT} cd {}/{} && echo $i > file && git add file && git commit -q -m \"number $i\" )",
            dir.guest,
            guest.name()
        )
    })?;
    let repository = dir.file("main");
    in_repository(&repository, &["fsck", "--full", "--strict", "--no-dangling"])?;
    for (guest, work) in works {
        let commits = in_repository(&repository, &["rev-list", "--count", guest])?;
        let commits = commits.trim().parse::<u64>()? - 1;
        ensure!(
            (work.done..=work.done + work.failed).contains(&commits),
            "{guest}: {commits} commits of {work:?}"
        );
    }
    Ok(())
}

/// The guests have no accounts with names and addresses.
const GIT: &str = "export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@a GIT_COMMITTER_NAME=a \
                   GIT_COMMITTER_EMAIL=a@a GIT_CONFIG_NOSYSTEM=1;";

/// Both guests repeat their command, with `$i` counting up, while the server is killed and restarted.
fn work_through_kills(
    drill: &Drill,
    command: impl Fn(&Guest) -> String,
) -> Result<Vec<(&'static str, Work)>> {
    let start = |name, guest: &Guest| -> Result<(&'static str, Task)> {
        let script = format!(
            "i=0; failed=0; rm -f /tmp/enough; while ! [ -e /tmp/enough ]; do i=$((i + 1)); \
             {} > /tmp/said 2>&1 || {{ failed=$((failed + 1)); cat /tmp/said >&2; }}; done; \
             echo $((i - failed)) $failed",
            command(guest)
        );
        Ok((name, guest.spawn(&script)?))
    };
    let tasks = [start("alice", drill.alice()?)?, start("bob", drill.bob()?)?];
    for _ in 0..KILLS {
        thread::sleep(BETWEEN_KILLS);
        drill.server.restart()?;
    }
    thread::sleep(BETWEEN_KILLS);
    for guest in [drill.alice()?, drill.bob()?] {
        guest.succeed_for("touch /tmp/enough", TIMEOUT)?;
    }
    let mut works = Vec::new();
    for (name, task) in tasks {
        let output = task.wait(TIMEOUT)?;
        let text = output.text();
        let (done, failed) = text
            .trim()
            .split_once(' ')
            .with_context(|| format!("{name} said {text:?}: {}", output.errors()))?;
        let work = Work { done: done.parse()?, failed: failed.parse()? };
        ensure!(work.done > u64::from(KILLS), "{name}: {work:?}: {}", output.errors());
        drill.note(format!("{name} {} done, {} failed", work.done, work.failed));
        works.push((name, work));
    }
    Ok(works)
}

/// On the server, where the file is local and no client has it open.
fn query(database: &Path, sql: &str) -> Result<String> {
    Ok(run(Command::new("sqlite3").arg(database).arg(sql))?.trim().to_owned())
}

fn in_repository(repository: &Path, arguments: &[&str]) -> Result<String> {
    // Its owner is root of a guest, and its worktrees have paths of the guest.
    let mut git = Command::new("git");
    git.args(["-c", "safe.directory=*", "-C"]).arg(repository).args(arguments);
    run(&mut git)
}

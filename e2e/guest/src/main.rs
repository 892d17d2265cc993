//! `lockkeeper-guest`: one static program with all tools that run inside a guest.

use std::env;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use lockkeeper_guest::{
    agent, exercise, identity, increment, listing, lock, locker, open, race, tree,
};

const USAGE: &str = "usage: lockkeeper-guest COMMAND
  agent PORT                                    obey the harness
  as UID:GID[:GROUP,...] PROGRAM ARGUMENT...    run a program as somebody else
  lock get|try|wait|hold posix|ofd|flock read|write PATH [START LENGTH]
  locker PATH                                   take locks, as ordered on standard input
  increment PATH LOG                            add one under a lock, again and again
  open PATH [create]                            hold a file open, take orders on standard input
  exercise SEED FILE TURN OPERATIONS PATH       one turn of the random exerciser
  maketree DIR COUNT SEED                       make a tree of small files
  checksum DIR                                  print a digest of a tree
  churn DIR SECONDS SEED                        create and delete beside the names that stay
  census DIR COUNT SECONDS                      list again and again: are all that stay there once?
  create-exclusive DIR COUNT                    O_EXCL create race: print the names won";

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match run(&arguments) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::from(2)
        }
    }
}

fn run(arguments: &[String]) -> Result<ExitCode> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["agent", port] => agent::serve(port)?,
        ["as", who, ref program @ ..] => identity::run_as(who, program)?,
        ["lock", ref rest @ ..] => return lock::run(rest),
        ["locker", path] => locker::run(path.as_ref())?,
        ["increment", path, log] => increment::run(path.as_ref(), log.as_ref())?,
        ["open", path] => open::run(path, false)?,
        ["open", path, "create"] => open::run(path, true)?,
        ["exercise", seed, file, turn, operations, path] => {
            exercise::take_turn(
                &exercise::Turn {
                    seed: number(seed)?,
                    file: number(file)?,
                    turn: number(turn)?,
                    operations: number(operations)?,
                },
                path.as_ref(),
            )?;
        }
        ["maketree", dir, count, seed] => tree::make(dir.as_ref(), number(count)?, number(seed)?)?,
        ["checksum", dir] => println!("{}", tree::checksum(dir.as_ref())?),
        ["churn", dir, seconds, seed] => {
            println!("{}", listing::churn(dir.as_ref(), number(seconds)?, number(seed)?)?);
        }
        ["census", dir, count, seconds] => {
            println!("{}", listing::census(dir.as_ref(), number(count)?, number(seconds)?)?);
        }
        ["create-exclusive", dir, count] => race::create_exclusive(dir.as_ref(), number(count)?)?,
        _ => bail!("{USAGE}"),
    }
    Ok(ExitCode::SUCCESS)
}

fn number<N: std::str::FromStr>(text: &str) -> Result<N> {
    text.parse().ok().with_context(|| format!("{text:?} is not a number in range"))
}

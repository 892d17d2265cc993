//! The commands that talk to the running daemon, or about it. Each is a file: what it takes, what
//! it does, what it shows.

pub mod clients;
pub mod completions;
pub mod config;
pub mod confirm_reboot;
pub mod events;
pub mod fence;
pub mod grace;
pub mod locks;
pub mod notify;
pub mod release;
pub mod status;

use std::process::ExitCode;

use admin::api::{Client, ClientName};
use clap::Subcommand;

use crate::cli::Globals;
use crate::daemon::{Daemon, Failed};
use crate::terminal::{self, Paint, clean};

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Is all well? If not: what is wrong, and what to do
    Status(status::Status),
    /// Who uses locks: the machines, their state, what they hold
    Clients(clients::Clients),
    /// Who holds or awaits a lock, on which file, since when
    Locks(locks::Locks),
    /// What happened: restarts, reboots, reclaims, what operators did
    Events(events::Events),
    /// Tell a client again that the server restarted; without a name, show who is being told
    Notify(notify::Notify),
    /// Believe a reboot that could not be proven: the locks from before it go
    ConfirmReboot(confirm_reboot::ConfirmReboot),
    /// Take locks away from their holders
    Release(release::Release),
    /// Drop all locks of a client, and refuse its locks and writes from now on
    Fence(fence::Fence),
    /// Let a fenced client lock and write again
    Unfence(fence::Unfence),
    /// Who has yet to take its locks back after the restart; or stop waiting for it
    Grace(grace::Grace),
    /// Check the configuration file, or show what it comes to
    #[command(subcommand)]
    Config(config::Config),
    /// Print what a shell needs to complete this program's options
    Completions(completions::Completions),
    /// Write the manual pages into a directory
    #[command(hide = true)]
    Man(completions::Man),
}

/// What every command works with.
pub struct Session {
    pub daemon: Daemon,
    /// Whether standard output is coloured.
    pub colour: bool,
}

impl Session {
    fn new(globals: &Globals) -> Self {
        let daemon = Daemon::find(globals.server.as_deref());
        Self {
            daemon: daemon.with_token_file(globals.token_file.as_deref()),
            colour: globals.color.stdout(),
        }
    }

    pub fn width(&self) -> Option<usize> {
        terminal::size().map(|(columns, _)| columns)
    }
}

/// Runs it to its exit code: 0 done, 1 refused or failed, 2 misused, 3 no daemon.
pub async fn run(command: Command, globals: &Globals) -> ExitCode {
    let session = &Session::new(globals);
    let done = match command {
        Command::Status(command) => command.run(session).await,
        Command::Clients(command) => command.run(session).await,
        Command::Locks(command) => command.run(session).await,
        Command::Events(command) => command.run(session).await,
        Command::Notify(command) => command.run(session).await,
        Command::ConfirmReboot(command) => command.run(session).await,
        Command::Release(command) => command.run(session).await,
        Command::Fence(command) => command.run(session).await,
        Command::Unfence(command) => command.run(session).await,
        Command::Grace(command) => command.run(session).await,
        Command::Config(command) => command.run(),
        Command::Completions(command) => command.run(),
        Command::Man(command) => command.run(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failed) => report(&failed, globals.color.stderr()),
    }
}

/// What is wrong on one line, what to do about it on the next.
fn report(failed: &Failed, colour: bool) -> ExitCode {
    let detail = clean(&failed.to_string());
    match failed {
        Failed::Unheard => {}
        Failed::Declined(_) => terminal::talk(&detail),
        _ => terminal::talk(&format!("{} {detail}", Paint::Bad.on_if(colour, "error:"))),
    }
    if let Some(hint) = failed.hint() {
        terminal::talk(&format!("hint: {}", clean(hint)));
    }
    ExitCode::from(failed.exit_code())
}

/// What is shown of a client in a sentence.
fn called(client: &Client) -> String {
    named(&client.name, &client.id)
}

fn named(name: &str, id: &str) -> String {
    if name.is_empty() { id.to_owned() } else { clean(name) }
}

fn name_of(client: &ClientName) -> String {
    named(&client.name, &client.id)
}

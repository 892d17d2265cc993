//! The commands that operate a running server. Each has a file: its arguments, its requests to the
//! admin API, and its output.

mod client_io;
pub(crate) mod clients;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod confirm_reboot;
pub(crate) mod events;
pub(crate) mod exports;
pub(crate) mod fence;
pub(crate) mod forget;
pub(crate) mod grace;
pub(crate) mod locks;
pub(crate) mod notify;
mod paged_list;
pub(crate) mod release;
pub(crate) mod reload;
pub(crate) mod status;
pub(crate) mod store;
mod tables;
pub(crate) mod terminal;
mod watch;

use std::process::ExitCode;

use admin::api::{Client, ClientName};
use clap::Subcommand;

use crate::cli::Globals;
use crate::commands::terminal::{Paint, clean};
use crate::daemon::{CommandError, Daemon};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show the state of the server, problems, and what to do about them
    Status(status::Status),
    /// List clients: their state and what they hold
    Clients(clients::Clients),
    /// List exports: to whom they are served, and whether they are
    Exports(exports::Exports),
    /// List locks and waiters: client, file, age
    Locks(locks::Locks),
    /// Show events: restarts, reboots, reclaims, operator actions
    Events(events::Events),
    /// Send a client another notice of the server's restart; without CLIENT, list pending notices
    Notify(notify::Notify),
    /// Accept that a client rebooted, and release the locks it held before
    ConfirmReboot(confirm_reboot::ConfirmReboot),
    /// Release locks without their holders' consent
    Release(release::Release),
    /// Release all locks of a client and refuse its locks and writes
    Fence(fence::Fence),
    /// Allow a fenced client to lock and write again
    Unfence(fence::Unfence),
    /// Remove a client that holds nothing from the list of clients
    Forget(forget::Forget),
    /// Show which clients have yet to reclaim their locks, or end the grace period
    Grace(grace::Grace),
    /// Read the exports of the configuration file again, and show what changed
    Reload(reload::Reload),
    /// Check the configuration file, or show the effective settings
    #[command(subcommand)]
    Config(config::Config),
    /// Print a shell completion script
    Completions(completions::Completions),
    /// Write man pages to a directory
    #[command(hide = true)]
    Man(completions::ManPages),
}

/// The server and the output settings of a command.
pub(crate) struct Session {
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

    pub(crate) fn width(&self) -> Option<usize> {
        terminal::size().map(|(columns, _)| columns)
    }
}

/// Exit codes: 0 done, 1 refused or failed, 2 usage, 3 server unreachable, 78 configuration.
pub(crate) async fn run(command: Command, globals: &Globals) -> ExitCode {
    let session = &Session::new(globals);
    let done = match command {
        Command::Status(command) => command.run(session).await,
        Command::Clients(command) => command.run(session).await,
        Command::Exports(command) => command.run(session).await,
        Command::Locks(command) => command.run(session).await,
        Command::Events(command) => command.run(session).await,
        Command::Notify(command) => command.run(session).await,
        Command::ConfirmReboot(command) => command.run(session).await,
        Command::Release(command) => command.run(session).await,
        Command::Fence(command) => command.run(session).await,
        Command::Unfence(command) => command.run(session).await,
        Command::Forget(command) => command.run(session).await,
        Command::Reload(command) => command.run(session).await,
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

/// Prints the error on one line and the hint on the next.
fn report(failed: &CommandError, colour: bool) -> ExitCode {
    let detail = clean(&failed.to_string());
    match failed {
        CommandError::BrokenPipe | CommandError::NotServing => {}
        CommandError::Declined(_) => terminal::print_note(&detail),
        _ => terminal::print_note(&format!("{} {detail}", Paint::Bad.on_if(colour, "error:"))),
    }
    if let Some(hint) = failed.hint() {
        terminal::print_note(&format!("hint: {}", clean(hint)));
    }
    ExitCode::from(failed.exit_code())
}

/// A client's name within a sentence; its id if it has no name.
fn called(client: &Client) -> String {
    named(&client.name, &client.id)
}

fn named(name: &str, id: &str) -> String {
    if name.is_empty() { id.to_owned() } else { clean(name) }
}

fn name_of(client: &ClientName) -> String {
    named(&client.name, &client.id)
}

//! `lockkeeper serve`: from the command line to a running server, and to its clean end.

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;

use anyhow::{Context as _, Result, bail};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sd_notify::NotifyState;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tracing::{info, warn};

use ::admin::{Admin, Reload};
use server::{Config, Ended, Limits, RpcbindMode, Server};

use crate::admin;
use crate::banner::banner;
use crate::cli;
use crate::config::{self, File};
use crate::exports::Opener;
use crate::locks::{self, Chosen, Plan};
use crate::state::StateDirectory;

pub async fn serve(args: cli::Serve) -> Result<()> {
    let mut file = File::load(args.config.as_deref())?;
    let configured = configured_exports(&args, &mut file)?;
    let state = StateDirectory::open(args.state.as_deref())?;
    let descriptors = raise_descriptor_limit();
    let root = rustix::process::geteuid().is_root();
    let reserved = args.ports.map_or(root, |ports| ports == cli::Ports::Reserved);
    let mut opener = Opener::new(&state.path, reserved, descriptors / 4);
    let exports = opener.open(&configured)?;

    // Before anybody is told that we are there: a signal that comes at once must find us ready.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let plan = Plan::of(&args, &file, &state.path)?;
    let (wants, mut reloads) = mpsc::channel(1);
    let mut admin = admin::open(&args, &file, &state.path, plan.facts(&args, &file), wants).await?;
    let waiter = admin.as_ref().map(Admin::waiter);
    let waiting = move |told: &str| {
        tell_systemd(&[NotifyState::Ready, NotifyState::Status(told)]);
        if let Some(waiter) = &waiter {
            waiter(told);
        }
    };
    let chosen = tokio::select! {
        chosen = locks::choose(&args, &file, &plan, &state.path, reserved, waiting) => Some(chosen?),
        _ = terminate.recv() => None,
        _ = interrupt.recv() => None,
    };
    let Some(Chosen { locks, shown, key }) = chosen else {
        info!("stopped while waiting for the store");
        return Ok(());
    };
    let server = Server::start(server_config(&args, &file), exports.clone(), key, locks).await?;
    if let Some(admin) = &mut admin {
        admin.serve(server.control());
    }
    let seen = admin.as_ref().map(admin::describe);
    let shown = banner(&server, &exports, &shown, opener.act_as_server(), seen).await;
    // From here on only the server holds them, so that a reload lets go of what it drops.
    drop(exports);
    // Whoever started us may not be reading; that is no reason to stop.
    let mut stdout = std::io::stdout();
    let _ = stdout.write_all(shown.as_bytes()).and_then(|()| stdout.flush());
    opener.notes().iter().for_each(|note| warn!("{note}"));
    tell_systemd(&[NotifyState::Ready, NotifyState::Status("serving")]);

    let stopper = server.stopper();
    let run = server.run();
    tokio::pin!(run);
    loop {
        tokio::select! {
            ended = &mut run => match ended? {
                Ended::Stopped => break,
                Ended::Crashed => return start_again(),
            },
            _ = terminate.recv() => stop(&stopper, "SIGTERM"),
            _ = interrupt.recv() => stop(&stopper, "SIGINT"),
            _ = hangup.recv() => drop(reload(&args, &mut opener, &stopper)),
            Some(Reload(answer)) = reloads.recv() => {
                // Whoever asked may have gone away.
                let _ = answer.send(reload(&args, &mut opener, &stopper));
            }
        }
    }
    info!("stopped");
    Ok(())
}

/// In this place, under this process id: whoever supervises us notices nothing.
fn start_again() -> Result<()> {
    let program = std::env::current_exe().context("cannot start again")?;
    let mut again = std::process::Command::new(&program);
    let failed = again.args(std::env::args_os().skip(1)).exec();
    Err(failed).with_context(|| format!("cannot start {} again", program.display()))
}

fn stop(stopper: &server::Stopper, signal: &str) {
    info!("stopping on {signal}");
    tell_systemd(&[NotifyState::Stopping]);
    stopper.stop();
}

/// Not running under systemd is the normal case elsewhere.
fn tell_systemd(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        warn!("could not tell systemd: {error}");
    }
}

fn configured_exports(args: &cli::Serve, file: &mut File) -> Result<Vec<config::Export>> {
    let mut exports = std::mem::take(&mut file.exports);
    exports.extend(args.dirs.iter().cloned().map(config::Export::of));
    if exports.is_empty() {
        bail!(
            "nothing to serve: name a directory, as in `lockkeeper serve /srv/share`, or an \
             [[export]] in {}",
            config::DEFAULT_PATH
        );
    }
    Ok(exports)
}

/// Reads the configuration again; says what was done, or why nothing was.
fn reload(
    args: &cli::Serve,
    opener: &mut Opener,
    stopper: &server::Stopper,
) -> Result<String, String> {
    if let Ok(now) = NotifyState::monotonic_usec_now() {
        tell_systemd(&[NotifyState::Reloading, now]);
    }
    let done = match reopen(args, opener) {
        Ok(exports) => {
            let done = format!("read the configuration again: {} exports", exports.iter().count());
            info!("{done}");
            stopper.replace_exports(exports);
            Ok(done)
        }
        Err(error) => {
            let failed = format!("kept the old exports: {error:#}");
            warn!("{failed}");
            Err(failed)
        }
    };
    tell_systemd(&[NotifyState::Ready]);
    done
}

fn reopen(args: &cli::Serve, opener: &mut Opener) -> Result<vfs::Exports> {
    let mut file = File::load(args.config.as_deref())?;
    let configured = configured_exports(args, &mut file)?;
    opener.open(&configured).context("exports")
}

fn server_config(args: &cli::Serve, file: &File) -> Config {
    let defaults = Config::default();
    let mode = match args.rpcbind.or(file.rpc.rpcbind) {
        None | Some(cli::Rpcbind::Auto) => RpcbindMode::Auto,
        Some(cli::Rpcbind::System) => RpcbindMode::System,
        Some(cli::Rpcbind::Embedded) => RpcbindMode::Embedded,
        Some(cli::Rpcbind::Off) => RpcbindMode::Off,
    };
    let limits = Limits::default();
    Config {
        listen: args.listen.or(file.rpc.listen).unwrap_or(defaults.listen),
        rpcbind: mode,
        rpcbind_port: file.rpc.rpcbind_port.unwrap_or(defaults.rpcbind_port),
        peer_rpcbind_port: file.rpc.peer_rpcbind_port.unwrap_or(defaults.peer_rpcbind_port),
        simulated_crash: file.nsm.simu_crash,
        metrics: file.admin.metrics.unwrap_or(true),
        limits: Limits {
            connections_max: file.limits.connections.unwrap_or(limits.connections_max),
            connections_per_address_max: file
                .limits
                .connections_per_address
                .unwrap_or(limits.connections_per_address_max),
            requests_in_flight_max: file
                .limits
                .requests_per_connection
                .unwrap_or(limits.requests_in_flight_max),
            workers: file.limits.workers.unwrap_or(limits.workers),
            idle_max: file.limits.idle.unwrap_or(limits.idle_max),
            ..limits
        },
        ..defaults
    }
}

/// Every connection and every open file needs a descriptor: takes all that the system allows.
fn raise_descriptor_limit() -> usize {
    const ENOUGH: u64 = 1 << 20;
    let limit = getrlimit(Resource::Nofile);
    let wanted = limit.maximum.unwrap_or(ENOUGH).min(ENOUGH);
    let raised = Rlimit { current: Some(wanted), maximum: limit.maximum };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => wanted as usize,
        Err(_) => limit.current.unwrap_or(1024) as usize,
    }
}

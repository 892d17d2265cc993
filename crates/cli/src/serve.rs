//! `lockkeeper serve`: builds the server from arguments and configuration, runs it, and handles signals.

pub(crate) mod admin;
pub(crate) mod allocator;
pub(crate) mod banner;
mod exports;
mod handle_key;
pub(crate) mod lock_service;
mod standby_copy;
pub(crate) mod state_directory;
mod takeover;

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sd_notify::NotifyState;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{Interval, MissedTickBehavior};
use tracing::{info, warn};

use ::admin::api::ReloadResult;
use ::admin::{Admin, Reload};
use server::{Config, Limits, RpcbindMode, Server, ServerExit};

use crate::cli;
use crate::config::consistency::{self, Ports};
use crate::config::rules::require_reserved_by_default;
use crate::config::{self, ConfigError, File};
use crate::logging::LogFormat;
use banner::banner;
use exports::{ExportOpener, RELOAD_MAX, START_MAX};
use lock_service::{LockService, StoreChoice};
use state_directory::StateDirectory;

/// How often the exports are looked at whose file systems do not answer yet.
const LATE_EXPORTS_EVERY: Duration = Duration::from_secs(1);

/// How often memory is returned to the system after a peak.
const TRIM_EVERY: Duration = Duration::from_secs(10);

pub(crate) async fn serve(args: cli::Serve) -> Result<()> {
    let mut file = load(&args)?;
    let configured = configured_exports(&args, &mut file)?;
    let ports = Ports::of(&file, args.listen, args.admin.as_ref(), args.rpcbind);
    consistency::check(&configured, &file.limits, &ports)?;
    let state = StateDirectory::open(args.state.as_deref())?;
    let descriptors = raise_descriptor_limit();
    let reserved =
        args.ports.map_or_else(require_reserved_by_default, |ports| ports == cli::Ports::Reserved);
    let choice = StoreChoice::of(&args, &file, &state.path)?;
    let mut opener = ExportOpener::new(&state.path, args.ports, descriptors / 4)
        .for_pair(choice.is_shared_by_pair(&args, &file));
    let exports = opener.open(&configured, START_MAX)?;

    // Installed before readiness is reported, so that an early signal is not lost.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let (wants, mut reloads) = mpsc::channel(1);
    let mut admin =
        admin::open(&args, &file, &state.path, choice.facts(&args, &file), wants).await?;
    let waiter = admin.as_ref().map(Admin::waiter);
    let waiting = move |status: &str| {
        notify_systemd(&[NotifyState::Ready, NotifyState::Status(status)]);
        if let Some(waiter) = &waiter {
            waiter(status);
        }
    };
    let service = tokio::select! {
        service = lock_service::open(&args, &file, &choice, &state.path, reserved, waiting) => Some(service?),
        _ = terminate.recv() => None,
        _ = interrupt.recv() => None,
    };
    let Some(LockService { locks, shown, key }) = service else {
        info!("stopped while waiting for the store");
        return Ok(());
    };
    let server =
        Server::start(server_config(&args, &file, descriptors), exports.clone(), key, locks)
            .await?;
    if let Some(admin) = &mut admin {
        admin.serve(server.control());
    }
    let seen = admin.as_ref().map(admin::describe);
    let shown =
        banner(&server, &exports, &shown, |export| opener.acts_as_server(export), seen).await;
    // From here on only the server holds the exports, so that a reload closes removed ones.
    drop(exports);
    print(&shown, args.log_format);
    opener.notes().iter().for_each(|note| warn!("{note}"));
    notify_systemd(&[NotifyState::Ready, NotifyState::Status("serving")]);

    let handle = server.handle();
    let run = server.run();
    tokio::pin!(run);
    let mut retries = late_exports_ticks();
    let mut trims = tokio::time::interval(TRIM_EVERY);
    trims.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let ended = loop {
        tokio::select! {
            _ = retries.tick(), if opener.is_waiting() => {
                if let Some(exports) = opener.retry() {
                    handle.replace_exports(exports);
                }
            }
            _ = trims.tick() => allocator::give_back_after(handle.take_peak_bytes()),
            ended = &mut run => break ended,
            _ = terminate.recv() => stop(&handle, "SIGTERM"),
            _ = interrupt.recv() => stop(&handle, "SIGINT"),
            _ = hangup.recv() => drop(reload(&args, &mut opener, &handle)),
            Some(Reload(answer)) = reloads.recv() => {
                // The requester may be gone.
                let _ = answer.send(reload(&args, &mut opener, &handle));
            }
        }
    };
    // Everything that a successor needs is released here, as the end of the process may have to wait for
    // a file system that hangs (B8.81).
    let close_admin = async {
        if let Some(admin) = admin {
            admin.close().await;
        }
    };
    let (_, closed) =
        tokio::join!(close_admin, tokio::task::spawn_blocking(move || opener.close()));
    closed?;
    drop(state);
    match ended? {
        ServerExit::Stopped => info!("stopped"),
        ServerExit::Crashed => return start_again(),
    }
    Ok(())
}

/// Where every line is JSON, so are these.
fn print(banner: &str, format: Option<LogFormat>) {
    if format == Some(LogFormat::Json) {
        return banner.lines().for_each(|line| info!("{line}"));
    }
    // A closed stdout must not stop the server.
    let mut stdout = std::io::stdout();
    let _ = stdout.write_all(banner.as_bytes()).and_then(|()| stdout.flush());
}

/// Ticks are not awaited while no export is late, and missed ones are not made up for.
fn late_exports_ticks() -> Interval {
    let mut ticks = tokio::time::interval(LATE_EXPORTS_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// Re-executes the program under the same process id, so that a supervisor sees no exit.
fn start_again() -> Result<()> {
    let program = std::env::current_exe().context("cannot restart")?;
    let mut again = std::process::Command::new(&program);
    let failed = again.args(std::env::args_os().skip(1)).exec();
    Err(failed).with_context(|| format!("cannot restart {}", program.display()))
}

fn stop(handle: &server::ServerHandle, signal: &str) {
    info!("stopping on {signal}");
    notify_systemd(&[NotifyState::Stopping]);
    handle.stop();
}

/// Does nothing when not started by systemd.
fn notify_systemd(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        warn!("cannot notify systemd: {error}");
    }
}

fn load(args: &cli::Serve) -> Result<File, ConfigError> {
    let file = File::load(args.config.as_deref())?;
    file.warnings().iter().for_each(|warning| warn!("{warning}"));
    Ok(file)
}

fn configured_exports(
    args: &cli::Serve,
    file: &mut File,
) -> Result<Vec<config::Export>, ConfigError> {
    let mut exports = std::mem::take(&mut file.exports);
    exports.extend(args.dirs.iter().cloned().map(config::Export::of));
    if exports.is_empty() {
        return Err(ConfigError(format!(
            "nothing to export: name a directory, as in `lockkeeper serve /srv/share`, or add an \
             [[export]] to {}",
            config::DEFAULT_PATH
        )));
    }
    Ok(exports)
}

/// Re-reads the exports; returns the answer for the requester.
fn reload(
    args: &cli::Serve,
    opener: &mut ExportOpener,
    handle: &server::ServerHandle,
) -> Result<ReloadResult, String> {
    if let Ok(now) = NotifyState::monotonic_usec_now() {
        notify_systemd(&[NotifyState::Reloading, now]);
    }
    let before = opener.configured().to_vec();
    let done = match reopen(args, opener) {
        Ok(exports) => {
            let result = config::changes::between(&before, opener.configured());
            info!("{}", result.done);
            handle.replace_exports(exports);
            Ok(result)
        }
        Err(error) => {
            let failed = format!("reload failed, keeping the old exports: {error:#}");
            warn!("{failed}");
            Err(failed)
        }
    };
    notify_systemd(&[NotifyState::Ready]);
    done
}

fn reopen(args: &cli::Serve, opener: &mut ExportOpener) -> Result<vfs::Exports> {
    let mut file = load(args)?;
    let configured = configured_exports(args, &mut file)?;
    opener.open(&configured, RELOAD_MAX)
}

/// The connections of one port. Descriptors are left for open files, the store and the admin API.
fn connections_max(file: &File, usual: usize, descriptors: usize) -> usize {
    let most = descriptors / 2;
    match file.limits.connections {
        Some(configured) if configured > most => {
            warn!(
                "`connections` is {configured}, but only {most} are served, as this process may \
                 have {descriptors} descriptors; raise LimitNOFILE= or `ulimit -n`"
            );
            most
        }
        Some(configured) => configured,
        None => usual.min(most),
    }
}

fn server_config(args: &cli::Serve, file: &File, descriptors: usize) -> Config {
    let defaults = Config::default();
    let mode = match args.rpcbind.or(file.rpc.rpcbind) {
        None | Some(cli::Rpcbind::Auto) => RpcbindMode::Auto,
        Some(cli::Rpcbind::System) => RpcbindMode::System,
        Some(cli::Rpcbind::Embedded) => RpcbindMode::Embedded,
        Some(cli::Rpcbind::Off) => RpcbindMode::Off,
    };
    let limits = Limits::default();
    Config::default()
        .with_listen(args.listen.or(file.rpc.listen).unwrap_or(defaults.listen))
        .with_udp(file.rpc.udp.unwrap_or(defaults.udp))
        .with_rpcbind(mode)
        .with_rpcbind_port(file.rpc.rpcbind_port.unwrap_or(defaults.rpcbind_port))
        .with_peer_rpcbind_port(file.rpc.peer_rpcbind_port.unwrap_or(defaults.peer_rpcbind_port))
        .with_simulated_crash(file.nsm.simu_crash)
        .with_metrics(file.admin.metrics.unwrap_or(true))
        .with_limits(Limits {
            connections_max: connections_max(file, limits.connections_max, descriptors),
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
        })
}

/// Raises the soft limit to the hard one: every connection and open file needs a descriptor.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn ticks_that_nobody_waited_for_are_not_made_up_for() {
        let mut ticks = late_exports_ticks();
        assert_eq!(ticks.missed_tick_behavior(), MissedTickBehavior::Delay);
        ticks.tick().await;
    }
}

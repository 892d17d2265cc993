//! `lockkeeper bench`: measures any NFSv3 server with the load of `crates/load`.

mod advice;
mod progress;
mod server_name;

use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use client::Options;
use load::{LoadArgs, Measurement, Plan, Ports, Session, Target};
use serde::Serialize;

use crate::child_server::{ChildServer, ChildServerOptions};
use crate::interrupts::Interrupts;
use advice::{advise, advise_on_load, advise_to_find};
use progress::Progress;
use server_name::ServerName;

#[derive(Debug, Args)]
pub(crate) struct Bench {
    /// Server and exported path, as for mount(8): filer:/srv/share. Without it, a temporary server
    /// is started and measured
    #[arg(value_name = "HOST:/EXPORT")]
    target: Option<ServerName>,
    /// Port of NFS [default: from rpcbind]
    #[arg(long, requires = "target")]
    port: Option<u16>,
    /// Port of MOUNT [default: that of --port, else from rpcbind]
    #[arg(long, requires = "target")]
    mount_port: Option<u16>,
    /// Port of NLM [default: that of --port, else from rpcbind]
    #[arg(long, requires = "target")]
    nlm_port: Option<u16>,
    /// Port of rpcbind [default: 111]
    #[arg(long, requires = "target")]
    rpcbind_port: Option<u16>,
    /// User and group id of the calls [default: those of the caller]
    #[arg(long, value_name = "UID")]
    uid: Option<u32>,
    #[command(flatten)]
    load: LoadArgs,
}

/// Output of `--json`.
#[derive(Debug, Serialize)]
struct Report {
    server: String,
    /// Whether a temporary server was measured.
    own_server: bool,
    measurements: Vec<Measurement>,
}

/// Runs the load on a single-threaded runtime of its own.
pub(crate) fn run(args: Bench) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let done = runtime.block_on(async {
        let mut interrupts = Interrupts::new()?;
        let (signal, interrupted) = tokio::sync::watch::channel(None);
        tokio::pin! { let measuring = measure(&args, interrupted); }
        tokio::select! {
            done = &mut measuring => return done,
            // The measurement then ends by itself, after cleaning up.
            name = interrupts.recv() => signal.send_replace(Some(name)),
        };
        tokio::select! {
            done = &mut measuring => done,
            name = interrupts.recv() => {
                bail!("stopped by {name} during cleanup; a directory bench-* may be left on the server")
            }
        }
    });
    // Do not wait for a name lookup in progress.
    runtime.shutdown_background();
    done
}

/// The signal by which to end, if one arrived.
type Interrupted = tokio::sync::watch::Receiver<Option<&'static str>>;

async fn measure(args: &Bench, interrupted: Interrupted) -> Result<()> {
    let plan = args.load.plan()?;
    let options = options(args.uid);
    let mut own = None;
    let (name, target) = match &args.target {
        Some(name) => (name.to_string(), find(args, name, options).await?),
        None => {
            eprintln!(
                "measuring a temporary server on this host; to measure another: lockkeeper bench \
                 HOST:/EXPORT"
            );
            let server =
                own.insert(ChildServer::start("bench", &ChildServerOptions::default()).await?);
            let (at, export) = (server.at, server.export().to_string_lossy().into_owned());
            let name = format!("{}:{export}", at.ip());
            (name, Target { nfs: at, mount: at, nlm: Some(at), export, options })
        }
    };
    if plan.locks() && target.nlm.is_none() {
        bail!(
            "{name} has no lock manager (NLM 4 is not registered with its rpcbind): use --nlm-port, \
             or leave lock-unlock out of --operations"
        );
    }
    let progress = Progress::new(&plan);
    let mut session = plan.open(target).await.map_err(|error| advise(&name, error))?;
    let found = work(&plan, &mut session, &progress, interrupted).await;
    drop(progress);
    // Removes the files on the server, even after an error.
    let closed = session.close().await.map_err(|error| advise(&name, error));
    let measurements = found?;
    closed?;
    let own_server = own.is_some();
    if args.load.json {
        let report = Report { server: name, own_server, measurements };
        return print(&format!("{}\n", serde_json::to_string_pretty(&report)?));
    }
    print(&load::table(&measurements))
}

fn options(uid: Option<u32>) -> Options {
    let user = uid.unwrap_or_else(|| rustix::process::geteuid().as_raw());
    let group = uid.unwrap_or_else(|| rustix::process::getegid().as_raw());
    // Many servers require a reserved port, which requires root.
    let reserved_port = rustix::process::geteuid().is_root();
    Options { reserved_port, timeout: Duration::from_secs(30), ..Options::default() }.user(
        user,
        group,
        &[],
    )
}

async fn find(args: &Bench, name: &ServerName, options: Options) -> Result<Target> {
    let host = name.resolve().await?;
    let ports = Ports {
        rpcbind: args.rpcbind_port,
        nfs: args.port,
        mount: args.mount_port.or(args.port),
        nlm: args.nlm_port.or(args.port),
    };
    let export = name.export.clone();
    Target::find(host, &ports, export, options).await.map_err(|error| advise_to_find(name, error))
}

async fn work(
    plan: &Plan,
    session: &mut Session,
    progress: &Progress,
    mut interrupted: Interrupted,
) -> Result<Vec<Measurement>> {
    let mut found = Vec::new();
    for (operation, shape) in plan.steps() {
        let measuring = load::run(session, operation, shape, plan.timing);
        found.push(tokio::select! {
            measured = progress.during(operation, shape, measuring) => measured.map_err(advise_on_load)?,
            signal = interrupted.wait_for(Option::is_some) => {
                let name = signal.ok().and_then(|name| *name).unwrap_or("a signal");
                bail!("stopped by {name}; the files on the server are removed");
            }
        });
    }
    Ok(found)
}

/// Ignores a closed pipe.
fn print(text: &str) -> Result<()> {
    use std::io::Write as _;
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

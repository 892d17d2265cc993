//! `lockkeeper bench`: how fast an NFSv3 server is, ours or another, with the load of `crates/load`.

mod advice;
mod progress;
mod server_name;

use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use client::Options;
use load::{LoadArgs, Measurement, Plan, Ports, Session, Target};
use serde::Serialize;

use crate::interrupts::Interrupts;
use crate::own_server::{OwnServer, Wish};
use advice::{advise, advise_on_load, advise_to_find};
use progress::Progress;
use server_name::ServerName;

#[derive(Debug, Args)]
pub struct Bench {
    /// The server and the path that it exports, as `mount` takes them: filer:/srv/share. Without
    /// it, a server of our own is started in a temporary directory and measured
    #[arg(value_name = "HOST:/EXPORT")]
    target: Option<ServerName>,
    /// The port of NFS; rpcbind is asked if it is not given
    #[arg(long, requires = "target")]
    port: Option<u16>,
    /// The port of MOUNT; the same as of NFS if that is given, otherwise rpcbind is asked
    #[arg(long, requires = "target")]
    mount_port: Option<u16>,
    /// The port of NLM; the same as of NFS if that is given, otherwise rpcbind is asked
    #[arg(long, requires = "target")]
    nlm_port: Option<u16>,
    /// The port of rpcbind, if it is not 111
    #[arg(long, requires = "target")]
    rpcbind_port: Option<u16>,
    /// Call as this user and group; as whoever runs it by default
    #[arg(long, value_name = "UID")]
    uid: Option<u32>,
    #[command(flatten)]
    load: LoadArgs,
}

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Report {
    server: String,
    /// Whether it was started for this measurement.
    own_server: bool,
    measurements: Vec<Measurement>,
}

/// The load has one thread, whatever else this program does.
pub fn run(args: Bench) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let done = runtime.block_on(async {
        let mut interrupts = Interrupts::new()?;
        let (told, interrupted) = tokio::sync::watch::channel(None);
        tokio::pin! { let measuring = measure(&args, interrupted); }
        tokio::select! {
            done = &mut measuring => return done,
            // It then ends by itself, after removing what it has made.
            name = interrupts.recv() => told.send_replace(Some(name)),
        };
        tokio::select! {
            done = &mut measuring => done,
            name = interrupts.recv() => {
                bail!("stopped by {name} while cleaning up; a directory bench-* may be left")
            }
        }
    });
    // A name that is still being looked up is nothing to wait for.
    runtime.shutdown_background();
    done
}

/// Says by which signal it is to end, if by any.
type Interrupted = tokio::sync::watch::Receiver<Option<&'static str>>;

async fn measure(args: &Bench, interrupted: Interrupted) -> Result<()> {
    let plan = args.load.plan()?;
    let options = options(args.uid);
    let mut own = None;
    let (name, target) = match &args.target {
        Some(name) => (name.to_string(), find(args, name, options).await?),
        None => {
            eprintln!(
                "measuring a server of our own, in a temporary directory of this machine; another: \
                 lockkeeper bench HOST:/EXPORT"
            );
            let server = own.insert(OwnServer::start("bench", &Wish::default()).await?);
            let (at, export) = (server.at, server.export().to_string_lossy().into_owned());
            let name = format!("{}:{export}", at.ip());
            (name, Target { nfs: at, mount: at, nlm: Some(at), export, options })
        }
    };
    if plan.locks() && target.nlm.is_none() {
        bail!(
            "{name} has no lock manager (NLM 4 is not registered with its rpcbind): name its port \
             with --nlm-port, or leave lock-unlock out of --operations"
        );
    }
    let progress = Progress::new(&plan);
    let mut session = plan.open(target).await.map_err(|error| advise(&name, error))?;
    let found = work(&plan, &mut session, &progress, interrupted).await;
    drop(progress);
    // Also what it has made on the server.
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
    // Servers trust what comes from such a port, and only root has one.
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
                bail!("stopped by {name}; what was made on the server is removed");
            }
        });
    }
    Ok(found)
}

/// Whoever reads may have had enough.
fn print(text: &str) -> Result<()> {
    use std::io::Write as _;
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

//! `lockkeeper demo`: shows a lock surviving `kill -9` of the server. Everything is real (a server process,
//! a store on disk, two clients with their own addresses, RPC over sockets), and every printed line is
//! verified.

mod machine;
mod observation;
mod story;
mod timeline;

use std::io::IsTerminal;
use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::Args;

use crate::child_server::{ChildServer, ChildServerOptions};
use crate::interrupts::Interrupts;
use machine::Machine;
use story::Story;
use timeline::Timeline;

/// On Linux all of 127.0.0.0/8 is on loopback.
const ALICE: (&str, Ipv4Addr) = ("alice", Ipv4Addr::new(127, 0, 0, 2));
const BOB: (&str, Ipv4Addr) = ("bob", Ipv4Addr::new(127, 0, 0, 3));
/// Not reached in a successful run; bounds a failing one.
const WINDOW: Duration = Duration::from_secs(20);
/// Reading time between chapters on a terminal.
const PAUSE: Duration = Duration::from_secs(3);
/// Lines of the server's log shown after a failed step.
const LOG_LINES: usize = 20;

#[derive(Debug, Args)]
pub(crate) struct Demo {
    /// Store of the server instead of an embedded one; with memory: the locks are lost and the
    /// demonstration fails
    #[arg(long, value_name = "URL", hide = true)]
    store: Option<String>,
}

/// Succeeds only if every step was verified. Leaves nothing behind, even if interrupted.
pub(crate) async fn run(args: Demo) -> Result<()> {
    let mut interrupts = Interrupts::new()?;
    tokio::select! {
        done = run_steps(args) => done,
        name = interrupts.recv() => bail!("stopped by {name}; the server and its files are gone"),
    }
}

async fn run_steps(args: Demo) -> Result<()> {
    let terminal = std::io::stdout().is_terminal();
    let colour = terminal && std::env::var_os("NO_COLOR").is_none();
    let pause = if terminal { PAUSE } else { Duration::ZERO };
    let mut timeline = Timeline::new(std::io::stdout(), colour);
    timeline.remark(
        "A lock survives a crash of the server. Two clients (127.0.0.2, 127.0.0.3) speak NFSv3, NLM\n\
         and NSM with a server process of this program. Each line is verified.",
    );
    let [alice, bob] = Machine::pair([ALICE, BOB]).await?;
    let options = ChildServerOptions {
        store: args.store,
        peer_rpcbind_port: Some(alice.rpcbind_port),
        window: Some(WINDOW),
    };
    let server = ChildServer::start("demo", &options).await.context("the server did not start")?;
    let mut story = Story { server, options, alice, bob, timeline, pause };
    let without = match story.run().await {
        Ok(without) => without,
        Err(error) => {
            eprintln!("last lines of the server's log (LOCKKEEPER_LOG=debug shows more):");
            story.server.log_tail(LOG_LINES).iter().for_each(|line| eprintln!("  {line}"));
            return Err(error);
        }
    };
    let Story { server, mut timeline, .. } = story;
    drop(server);
    let (lines, total) = (timeline.lines(), timeline.elapsed().as_secs_f64());
    timeline.remark(&format!(
        "\nAll {lines} steps verified in {total:.1} s. alice had her lock back {} ms after the kill; \
         no other client got it meanwhile.\nTo serve your own files: sudo lockkeeper serve /srv/share",
        without.as_millis()
    ));
    Ok(())
}

//! `lockkeeper demo`: a lock survives `kill -9` of its server, before the reader's eyes. Everything is
//! real (a server process, a store on disk, two machines with addresses of their own, RPC over
//! sockets), and every line that is printed was checked.

mod machine;
mod observed;
mod story;
mod timeline;

use std::io::IsTerminal;
use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::Args;

use crate::interrupts::Interrupts;
use crate::own_server::{OwnServer, Wish};
use machine::Machine;
use story::Story;
use timeline::Timeline;

/// Loopback has them all, without any set-up.
const ALICE: (&str, Ipv4Addr) = ("alice", Ipv4Addr::new(127, 0, 0, 2));
const BOB: (&str, Ipv4Addr) = ("bob", Ipv4Addr::new(127, 0, 0, 3));
/// Nobody has to wait for its end; it only bounds what could go wrong.
const WINDOW: Duration = Duration::from_secs(20);
/// Time to read a chapter, where somebody reads.
const PAUSE: Duration = Duration::from_secs(3);
/// How many lines of the server's log are shown if something is not true.
const LAST_WORDS: usize = 20;

#[derive(Debug, Args)]
pub struct Demo {
    /// Where the server keeps its locks, instead of an embedded store: with memory: they die with
    /// it, and the demonstration says so
    #[arg(long, value_name = "URL", hide = true)]
    store: Option<String>,
}

/// Succeeds only if every step was true. Nothing is left behind, also if it is interrupted.
pub async fn run(args: Demo) -> Result<()> {
    let mut interrupts = Interrupts::new()?;
    tokio::select! {
        told = tell(args) => told,
        name = interrupts.recv() => bail!("stopped by {name}; the server and its files are gone"),
    }
}

async fn tell(args: Demo) -> Result<()> {
    let terminal = std::io::stdout().is_terminal();
    let colour = terminal && std::env::var_os("NO_COLOR").is_none();
    let pause = if terminal { PAUSE } else { Duration::ZERO };
    let mut timeline = Timeline::new(std::io::stdout(), colour);
    timeline.remark(
        "A lock survives the death of its server. Two client machines (127.0.0.2, 127.0.0.3) speak\n\
         NFSv3, NLM and NSM with a server process of this program. Each line was checked.",
    );
    let [alice, bob] = Machine::pair([ALICE, BOB]).await?;
    let wish = Wish {
        store: args.store,
        peer_rpcbind_port: Some(alice.rpcbind_port),
        window: Some(WINDOW),
    };
    let server = OwnServer::start("demo", &wish).await.context("the server does not start")?;
    let mut story = Story { server, wish, alice, bob, timeline, pause };
    let without = match story.tell().await {
        Ok(without) => without,
        Err(error) => {
            eprintln!("the server said last (more with LOCKKEEPER_LOG=debug):");
            story.server.last_words(LAST_WORDS).iter().for_each(|line| eprintln!("  {line}"));
            return Err(error);
        }
    };
    let Story { server, mut timeline, .. } = story;
    drop(server);
    let (lines, total) = (timeline.lines(), timeline.elapsed().as_secs_f64());
    timeline.remark(&format!(
        "\nAll {lines} lines are true, in {total:.1} s. alice had her lock back {} ms after the kill; \
         meanwhile nobody else got it.\nNow with your own files: sudo lockkeeper serve /srv/share",
        without.as_millis()
    ));
    Ok(())
}

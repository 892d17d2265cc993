//! The scenario: a conflict, a waiter, `kill -9`, a restart, reclaim and grant.

use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use bytes::Bytes;
use client::nfs::Nfs;
use client::rpcbind::{RpcTransport, find};
use client::{Connection, Locker, mount};
use tokio::time::{sleep, timeout};
use wire::nfs3::{Handle, NewAttributes, Stability};
use wire::nlm::{LockArgs, Range, Status, v4};
use wire::nsm;
use wire::rpcbind::Netid;

use super::machine::{Machine, Notice};
use super::observation::{expect, granted_to, held_by, is, refused, shown};
use super::timeline::{Actor, Timeline};
use crate::child_server::{ChildServer, ChildServerOptions};

const FILE: &str = "ledger.db";
const BYTES: Range = Range { offset: 0, length: 100 };
/// Process ids of the lock owners.
const ALICE: i32 = 811;
const BOB: i32 = 97;
/// Limit for steps that normally take milliseconds.
const TIMEOUT: Duration = Duration::from_secs(5);
/// How long to observe that no reply arrives.
const QUIET: Duration = Duration::from_millis(250);

pub(super) struct Story<W> {
    pub server: ChildServer,
    pub options: ChildServerOptions,
    pub alice: Machine,
    pub bob: Machine,
    pub timeline: Timeline<W>,
    /// Reading time between chapters, outside of measured intervals.
    pub pause: Duration,
}

/// One process on each machine, connected to the lock manager.
struct Lockers {
    alice: Locker,
    bob: Locker,
}

impl<W: Write> Story<W> {
    /// Runs all steps, or stops at the first that fails. Returns how long alice was without her lock.
    pub(super) async fn run(&mut self) -> Result<Duration> {
        self.timeline.chapter("Two clients lock the same bytes");
        let (state, file) = self.meet().await?;
        let lockers = self.connect().await?;
        self.contend(&file, &lockers).await?;

        sleep(self.pause).await;
        self.timeline.chapter("The server is killed");
        let killed_at = Instant::now();
        self.kill(&lockers).await?;

        self.timeline.chapter("The server restarts with its locks");
        self.restart(state).await?;
        let lockers = self.connect().await?;
        let without = self.recover(&file, &lockers, killed_at).await?;

        sleep(self.pause).await;
        self.timeline.chapter("The waiter's turn");
        self.hand_over(&file, &lockers).await?;

        let stopped = self.server.stop().await.and_then(|status| {
            ensure!(status.success(), "it ended with {status}");
            Ok(((), "cleanly"))
        });
        self.timeline.step(Actor::Server, "stops on SIGTERM", stopped)?;
        Ok(without)
    }

    /// The server answers, and alice creates the file.
    async fn meet(&mut self) -> Result<(i32, Handle)> {
        let at = self.server.at;
        let what = format!("serves a temporary directory on {at}");
        let seen = nsm_state(at, &self.alice).await;
        let process = self.server.id();
        let seen = seen.map(|state| (state, format!("process {process}, NSM state {state}")));
        let state = self.timeline.step(Actor::Server, &what, seen)?;
        let what = format!("mounts it and writes {FILE}");
        let seen = self.make_file().await.map(|file| (file, "written"));
        Ok((state, self.timeline.step(Actor::Alice, &what, seen)?))
    }

    async fn make_file(&self) -> Result<Handle> {
        let connection = Connection::connect(self.server.at, &self.alice.options()).await?;
        let export = self.server.export();
        let root = mount::mount(&connection, &export.to_string_lossy()).await?;
        let nfs = Nfs(connection);
        let new = NewAttributes { mode: Some(0o644), ..Default::default() };
        let file = nfs.create(&root, FILE.as_bytes(), new).await?;
        let data = Bytes::from_static(b"100 coins\n");
        nfs.write(&file, 0, data.clone(), Stability::FileSync).await?;
        let there = std::fs::read(export.join(FILE))?;
        ensure!(there == data, "{FILE} does not contain what was written");
        Ok(file)
    }

    /// Both clients find the lock manager through the server's rpcbind.
    async fn connect(&mut self) -> Result<Lockers> {
        let mut both = Vec::new();
        for (who, machine, process) in
            [(Actor::Alice, &self.alice, ALICE), (Actor::Bob, &self.bob, BOB)]
        {
            let seen = locker(self.server.rpcbind, machine, process).await.map(|locker| {
                let port = locker.connection.peer().port();
                (locker, format!("on port {port}; connected from {}", machine.ip))
            });
            let what = "looks up the lock manager at the server's rpcbind";
            both.push(self.timeline.step(who, what, seen)?);
        }
        match (both.pop(), both.pop()) {
            (Some(bob), Some(alice)) => Ok(Lockers { alice, bob }),
            _ => bail!("no clients"),
        }
    }

    async fn contend(&mut self, file: &Handle, lockers: &Lockers) -> Result<()> {
        let Lockers { alice, bob } = lockers;
        let seen = expect(alice.lock(file, BYTES).await, Status::Granted);
        self.timeline.step(Actor::Alice, "LOCK bytes 0 to 99", seen)?;
        let seen = expect(bob.lock(file, BYTES).await, Status::Denied);
        self.timeline.step(Actor::Bob, "LOCK the same bytes, non-blocking", seen)?;
        let seen = held_by(bob.test(file, BYTES).await, ALICE, BYTES);
        let seen = seen.map(|()| ((), format!("held by alice, process {ALICE}")));
        self.timeline.step(Actor::Bob, "TEST the same bytes", seen)?;
        let seen = expect(bob.wait(file, BYTES).await, Status::Blocked);
        self.timeline.step(Actor::Bob, "LOCK the same bytes, blocking", seen)?;
        Ok(())
    }

    async fn kill(&mut self, lockers: &Lockers) -> Result<()> {
        let process = self.server.id();
        let seen = self.server.kill().and_then(|status| match status.signal() {
            Some(9) => Ok(((), "the process is gone")),
            _ => bail!("it ended with {status}"),
        });
        self.timeline.step(Actor::We, &format!("kill -9 {process}"), seen)?;
        for (who, locker) in [(Actor::Alice, &lockers.alice), (Actor::Bob, &lockers.bob)] {
            let quick = locker.connection.with_timeout(TIMEOUT);
            let seen = match quick.call::<v4::Null>(&()).await {
                Err(_) => Ok(((), "no answer")),
                Ok(()) => Err(anyhow!("it answers")),
            };
            self.timeline.step(who, "calls the lock manager", seen)?;
        }
        Ok(())
    }

    async fn restart(&mut self, state: i32) -> Result<()> {
        let began = Instant::now();
        let seen = self.server.respawn(&self.options);
        let seen = seen.map(|process| ((), format!("process {process}")));
        let what = "restarts with the same store";
        self.timeline.step_at(began, Actor::Server, what, seen)?;
        let heard = tokio::join!(self.alice.notice(TIMEOUT), self.bob.notice(TIMEOUT));
        let mut heard = [(Actor::Alice, heard.0), (Actor::Bob, heard.1)];
        let when =
            |heard: &Result<Notice>| heard.as_ref().map_or_else(|_| Instant::now(), |n| n.at);
        heard.sort_by_key(|(_, heard)| when(heard));
        let mut notified = state;
        for (who, heard) in heard {
            let at = when(&heard);
            let seen = heard.and_then(|notice| {
                let now = notice.state;
                ensure!(
                    now > state && now % 2 == 1,
                    "the notice says {now}, the state was {state}"
                );
                Ok((now, format!("SM_NOTIFY, NSM state {now}")))
            });
            notified = self.timeline.step_at(at, who, "is notified of the restart", seen)?;
        }
        let seen = self.server.wait_until_ready().await;
        let after = began.elapsed().as_millis();
        let now = match seen {
            Ok(()) => nsm_state(self.server.at, &self.alice).await,
            Err(error) => Err(error),
        };
        let seen = now.and_then(|now| {
            ensure!(now == notified, "its NSM state is {now}, but the notice said {notified}");
            Ok(((), format!("{after} ms after its start, NSM state {now}")))
        });
        self.timeline.step(Actor::Server, "answers again", seen)?;
        Ok(())
    }

    /// Until alice has reclaimed, no other client gets the lock.
    async fn recover(
        &mut self,
        file: &Handle,
        lockers: &Lockers,
        killed_at: Instant,
    ) -> Result<Duration> {
        let Lockers { alice, bob } = lockers;
        let seen = refused(bob.reclaim(file, BYTES).await);
        self.timeline.step(Actor::Bob, "RECLAIM the bytes, which he never held", seen)?;
        let args = LockArgs { block: true, ..bob.lock_args(file, BYTES, true) };
        let mut asking = std::pin::pin!(bob.send(&args));
        let seen = match timeout(QUIET, &mut asking).await {
            Err(_) => Ok(((), "no reply yet: reclaims come first")),
            Ok(Ok(status)) => Err(anyhow!("the reply was {}", shown(status))),
            Ok(Err(error)) => Err(error.into()),
        };
        self.timeline.step(Actor::Bob, "LOCK the same bytes, blocking", seen)?;

        let seen = expect(alice.reclaim(file, BYTES).await, Status::Granted);
        let without = killed_at.elapsed();
        self.timeline.step(Actor::Alice, "RECLAIM her bytes 0 to 99", seen)?;
        let answer = timeout(TIMEOUT, asking).await.context("no reply");
        let seen = answer.and_then(|status| is(status?, Status::Blocked));
        self.timeline.step(Actor::Bob, "gets the reply to his LOCK", seen)?;
        Ok(without)
    }

    async fn hand_over(&mut self, file: &Handle, lockers: &Lockers) -> Result<()> {
        let Lockers { alice, bob } = lockers;
        let seen = held_by(bob.test(file, BYTES).await, ALICE, BYTES);
        let seen = seen.map(|()| ((), "still held by alice"));
        self.timeline.step(Actor::Bob, "TEST the same bytes", seen)?;
        let seen = expect(alice.unlock(file, BYTES).await, Status::Granted);
        self.timeline.step(Actor::Alice, "UNLOCK bytes 0 to 99", seen)?;
        let grant = self.bob.grant(TIMEOUT).await;
        let seen = grant.and_then(|grant| granted_to(&grant, bob, file, BYTES));
        self.timeline.step(Actor::Bob, "is called back", seen)?;
        let seen = expect(alice.lock(file, BYTES).await, Status::Denied);
        self.timeline.step(Actor::Alice, "LOCK bytes 0 to 99, non-blocking", seen)?;
        let seen = expect(bob.unlock(file, BYTES).await, Status::Granted);
        self.timeline.step(Actor::Bob, "UNLOCK bytes 0 to 99", seen)?;
        Ok(())
    }
}

async fn nsm_state(at: SocketAddr, machine: &Machine) -> Result<i32> {
    let connection = Connection::connect(at, &machine.options()).await?;
    let name = nsm::Name::from(machine.name.as_bytes().to_vec());
    Ok(connection.call::<nsm::Stat>(&name).await?.state)
}

async fn locker(rpcbind: SocketAddr, machine: &Machine, process: i32) -> Result<Locker> {
    let options = machine.options();
    let program = (wire::nlm::PROGRAM, wire::nlm::V4);
    let at = find(rpcbind, RpcTransport::Tcp, program, Netid::Tcp, &options).await?;
    Ok(Locker::connect(at, machine.name, process, &options).await?)
}

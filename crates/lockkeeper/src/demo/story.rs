//! The story: a conflict, a waiter, `kill -9`, a restart, and everybody gets what is theirs.

use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use bytes::Bytes;
use client::nfs::Nfs;
use client::rpcbind::{Over, find};
use client::{Connection, Locker, mount};
use tokio::time::{sleep, timeout};
use wire::nfs3::{Handle, NewAttributes, Stability};
use wire::nlm::{LockArgs, Range, Status, v4};
use wire::nsm;
use wire::rpcbind::Netid;

use super::machine::{Machine, Notice};
use super::observed::{expect, granted_to, held_by, is, refused, shown};
use super::timeline::{Timeline, Who};
use crate::own_server::{OwnServer, Wish};

const FILE: &str = "ledger.db";
const BYTES: Range = Range { offset: 0, length: 100 };
/// The processes that lock.
const ALICE: i32 = 811;
const BOB: i32 = 97;
/// How long anything may take that takes milliseconds when it works.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long it is watched that nothing happens.
const QUIET: Duration = Duration::from_millis(250);

pub struct Story<W> {
    pub server: OwnServer,
    pub wish: Wish,
    pub alice: Machine,
    pub bob: Machine,
    pub timeline: Timeline<W>,
    /// Time to read, between chapters in which nothing is measured.
    pub pause: Duration,
}

/// One process on each machine, connected to the lock manager.
struct Lockers {
    alice: Locker,
    bob: Locker,
}

impl<W: Write> Story<W> {
    /// Tells it to the end, or to the first line that is not true. Says how long alice was without
    /// her lock.
    pub async fn tell(&mut self) -> Result<Duration> {
        self.timeline.chapter("Two machines want the same bytes");
        let (state, file) = self.meet().await?;
        let lockers = self.connect().await?;
        self.contend(&file, &lockers).await?;

        sleep(self.pause).await;
        self.timeline.chapter("The server dies");
        let killed_at = Instant::now();
        self.kill(&lockers).await?;

        self.timeline.chapter("It starts again, and remembers");
        self.restart(state).await?;
        let lockers = self.connect().await?;
        let without = self.recover(&file, &lockers, killed_at).await?;

        sleep(self.pause).await;
        self.timeline.chapter("The waiter's turn");
        self.hand_over(&file, &lockers).await?;

        let stopped = self.server.stop().await.and_then(|status| {
            ensure!(status.success(), "it ended with {status}");
            Ok(((), "in order"))
        });
        self.timeline.step(Who::Server, "stops when it is asked to, SIGTERM", stopped)?;
        Ok(without)
    }

    /// The server is there, and alice makes the file.
    async fn meet(&mut self) -> Result<(i32, Handle)> {
        let at = self.server.at;
        let what = format!("serves a temporary directory on {at}");
        let seen = nsm_state(at, &self.alice).await;
        let process = self.server.id();
        let seen = seen.map(|state| (state, format!("process {process}, NSM state {state}")));
        let state = self.timeline.step(Who::Server, &what, seen)?;
        let what = format!("mounts it and writes {FILE}");
        let seen = self.make_file().await.map(|file| (file, "it is there"));
        Ok((state, self.timeline.step(Who::Alice, &what, seen)?))
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
        ensure!(there == data, "{FILE} has other contents than were written");
        Ok(file)
    }

    /// Both find the lock manager by the server's rpcbind.
    async fn connect(&mut self) -> Result<Lockers> {
        let mut both = Vec::new();
        for (who, machine, process) in
            [(Who::Alice, &self.alice, ALICE), (Who::Bob, &self.bob, BOB)]
        {
            let seen = locker(self.server.rpcbind, machine, process).await.map(|locker| {
                let port = locker.connection.peer().port();
                (locker, format!("on port {port}; connected from {}", machine.ip))
            });
            let what = "asks the server's rpcbind for the lock manager";
            both.push(self.timeline.step(who, what, seen)?);
        }
        match (both.pop(), both.pop()) {
            (Some(bob), Some(alice)) => Ok(Lockers { alice, bob }),
            _ => bail!("nobody is there"),
        }
    }

    async fn contend(&mut self, file: &Handle, lockers: &Lockers) -> Result<()> {
        let Lockers { alice, bob } = lockers;
        let seen = expect(alice.lock(file, BYTES).await, Status::Granted);
        self.timeline.step(Who::Alice, "LOCK bytes 0 to 99", seen)?;
        let seen = expect(bob.lock(file, BYTES).await, Status::Denied);
        self.timeline.step(Who::Bob, "LOCK the same bytes, without waiting", seen)?;
        let seen = held_by(bob.test(file, BYTES).await, ALICE, BYTES);
        let seen = seen.map(|()| ((), format!("process {ALICE}, which is alice's")));
        self.timeline.step(Who::Bob, "TEST who has them?", seen)?;
        let seen = expect(bob.wait(file, BYTES).await, Status::Blocked);
        self.timeline.step(Who::Bob, "LOCK the same bytes, ready to wait", seen)?;
        Ok(())
    }

    async fn kill(&mut self, lockers: &Lockers) -> Result<()> {
        let process = self.server.id();
        let seen = self.server.kill().and_then(|status| match status.signal() {
            Some(9) => Ok(((), "it is gone, without a word to anybody")),
            _ => bail!("it ended with {status}"),
        });
        self.timeline.step(Who::We, &format!("kill -9 {process}"), seen)?;
        for (who, locker) in [(Who::Alice, &lockers.alice), (Who::Bob, &lockers.bob)] {
            let quick = locker.connection.with_timeout(PATIENCE);
            let seen = match quick.call::<v4::Null>(&()).await {
                Err(_) => Ok(((), "no answer any more")),
                Ok(()) => Err(anyhow!("it is answered")),
            };
            self.timeline.step(who, "calls the lock manager", seen)?;
        }
        Ok(())
    }

    async fn restart(&mut self, state: i32) -> Result<()> {
        let began = Instant::now();
        let seen = self.server.spawn_again(&self.wish);
        let seen = seen.map(|process| ((), format!("process {process}")));
        let what = "starts again with the same store";
        self.timeline.step_at(began, Who::Server, what, seen)?;
        let heard = tokio::join!(self.alice.notice(PATIENCE), self.bob.notice(PATIENCE));
        let mut heard = [(Who::Alice, heard.0), (Who::Bob, heard.1)];
        let when =
            |heard: &Result<Notice>| heard.as_ref().map_or_else(|_| Instant::now(), |n| n.at);
        heard.sort_by_key(|(_, heard)| when(heard));
        let mut told = state;
        for (who, heard) in heard {
            let at = when(&heard);
            let seen = heard.and_then(|notice| {
                let now = notice.state;
                ensure!(now > state && now % 2 == 1, "it says {now}, and it was {state}");
                Ok((now, format!("SM_NOTIFY, NSM state {now}")))
            });
            told = self.timeline.step_at(at, who, "is told that the server restarted", seen)?;
        }
        let seen = self.server.answers().await;
        let after = began.elapsed().as_millis();
        let now = match seen {
            Ok(()) => nsm_state(self.server.at, &self.alice).await,
            Err(error) => Err(error),
        };
        let seen = now.and_then(|now| {
            ensure!(now == told, "its NSM state is {now}, not {told} as it told");
            Ok(((), format!("{after} ms after its start, NSM state {now}")))
        });
        self.timeline.step(Who::Server, "answers again", seen)?;
        Ok(())
    }

    /// Until alice has her lock back, nobody else gets it, by whatever means.
    async fn recover(
        &mut self,
        file: &Handle,
        lockers: &Lockers,
        killed_at: Instant,
    ) -> Result<Duration> {
        let Lockers { alice, bob } = lockers;
        let seen = refused(bob.reclaim(file, BYTES).await);
        self.timeline.step(Who::Bob, "RECLAIM the bytes, which he never had", seen)?;
        let args = LockArgs { block: true, ..bob.lock_args(file, BYTES, true) };
        let mut asking = std::pin::pin!(bob.send(&args));
        let seen = match timeout(QUIET, &mut asking).await {
            Err(_) => Ok(((), "no answer yet: who had locks comes first")),
            Ok(Ok(status)) => Err(anyhow!("it was answered {}", shown(status))),
            Ok(Err(error)) => Err(error.into()),
        };
        self.timeline.step(Who::Bob, "LOCK the same bytes, ready to wait", seen)?;

        let seen = expect(alice.reclaim(file, BYTES).await, Status::Granted);
        let without = killed_at.elapsed();
        self.timeline.step(Who::Alice, "RECLAIM her bytes 0 to 99", seen)?;
        let answer = timeout(PATIENCE, asking).await.context("there is none");
        let seen = answer.and_then(|status| is(status?, Status::Blocked));
        self.timeline.step(Who::Bob, "gets the answer to his LOCK, in line again", seen)?;
        Ok(without)
    }

    async fn hand_over(&mut self, file: &Handle, lockers: &Lockers) -> Result<()> {
        let Lockers { alice, bob } = lockers;
        let seen = held_by(bob.test(file, BYTES).await, ALICE, BYTES);
        let seen = seen.map(|()| ((), "alice, still"));
        self.timeline.step(Who::Bob, "TEST who has them?", seen)?;
        let seen = expect(alice.unlock(file, BYTES).await, Status::Granted);
        self.timeline.step(Who::Alice, "UNLOCK bytes 0 to 99", seen)?;
        let grant = self.bob.grant(PATIENCE).await;
        let seen = grant.and_then(|grant| granted_to(&grant, bob, file, BYTES));
        self.timeline.step(Who::Bob, "is called back by the server", seen)?;
        let seen = expect(alice.lock(file, BYTES).await, Status::Denied);
        self.timeline.step(Who::Alice, "LOCK bytes 0 to 99, without waiting", seen)?;
        let seen = expect(bob.unlock(file, BYTES).await, Status::Granted);
        self.timeline.step(Who::Bob, "UNLOCK bytes 0 to 99", seen)?;
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
    let at = find(rpcbind, Over::Tcp, program, Netid::Tcp, &options).await?;
    Ok(Locker::connect(at, machine.name, process, &options).await?)
}

//! From UNLOCK to GRANTED: how long a waiter waits for a lock that is free.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use client::{Connection, Options, Pipeline};
use serde::Serialize;
use tokio::time::timeout;
use wire::Decode;
use wire::nlm::{Range, Status, StatusReply, v4};

use crate::grantee::Grantee;
use load::Owner;
use load::{Samples, Session};

/// The machine that waits. It has an address of its own, and that is its name, so that a server
/// that looks for it by name finds it without DNS.
const WAITER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
const ROUNDS: usize = 200;
/// Not counted: the port is looked up, a connection is made.
const WARM_UP_ROUNDS: usize = 10;
/// A server that has not called back by then does not.
const CALLBACK_MAX: Duration = Duration::from_secs(15);
/// Fewer rounds do if they take longer than this.
const MEASURED_MAX: Duration = Duration::from_secs(40);
const REPLY_MAX: Duration = Duration::from_secs(30);

const RANGE: Range = Range { offset: 0, length: 1 };

/// From sending UNLOCK to receiving GRANTED.
#[derive(Debug, Clone, Serialize)]
pub struct Handover {
    pub server: String,
    /// `None` if the server did not call back.
    pub latency: Option<Latency>,
}

#[derive(Debug, Clone, Copy, Serialize)]
pub struct Latency {
    pub p50_us: f64,
    pub p99_us: f64,
    pub rounds: usize,
}

pub(crate) async fn measure(server: &str, session: &Session) -> Result<Handover> {
    let mut pair = Pair::connect(session).await?;
    let latency = pair.latency().await?;
    pair.grantee.unregister().await?;
    Ok(Handover { server: server.to_owned(), latency })
}

/// A holder and a waiter.
struct Pair {
    file: Vec<u8>,
    holder: Owner,
    holding: Pipeline,
    waiter: Owner,
    waiting: Connection,
    grantee: Grantee,
}

impl Pair {
    async fn connect(session: &Session) -> Result<Self> {
        let target = &session.target;
        let nlm = target.nlm.context("no lock manager")?;
        let file = session.write_files.first().context("no file")?.to_vec();
        let holding = Pipeline::connect(nlm, &target.options).await?;
        let options = Options { source: Some(IpAddr::V4(WAITER)), ..target.options.clone() };
        let waiting = Connection::connect(nlm, &options).await?;
        let grantee = Grantee::start(IpAddr::V4(WAITER), waiting.clone()).await?;
        let holder = Owner::new(Ipv4Addr::LOCALHOST.to_string(), 1);
        let waiter = Owner::new(WAITER.to_string(), 2);
        Ok(Self { file, holder, holding, waiter, waiting, grantee })
    }

    /// `None` if the waiter was not called back.
    async fn latency(&mut self) -> Result<Option<Latency>> {
        let mut samples = Samples::with_capacity(ROUNDS);
        let started = Instant::now();
        for round in 0..WARM_UP_ROUNDS + ROUNDS {
            if started.elapsed() > MEASURED_MAX && !samples.is_empty() {
                break;
            }
            let took = self.hand_over().await.with_context(|| format!("round {round}"))?;
            let Some(took) = took else { return Ok(None) };
            if round >= WARM_UP_ROUNDS {
                samples.record(took);
            }
        }
        let mut micros =
            |share| samples.percentile(share).map_or(0.0, |time| time.as_nanos() as f64 / 1e3);
        let (p50_us, p99_us) = (micros(0.5), micros(0.99));
        Ok(Some(Latency { p50_us, p99_us, rounds: samples.len() }))
    }

    /// `None` if the waiter was not called back.
    async fn hand_over(&mut self) -> Result<Option<Duration>> {
        self.grantee.clear();
        self.holding.send::<v4::Lock>(&self.holder.lock(&self.file, RANGE));
        self.held(Status::Granted).await.context("LOCK of the holder")?;
        let blocked =
            self.waiting.call::<v4::Lock>(&self.waiter.wait(&self.file, RANGE)).await?.status;
        ensure!(blocked == Status::Blocked, "LOCK of the waiter was answered {blocked:?}");

        self.holding.send::<v4::Unlock>(&self.holder.unlock(&self.file, RANGE));
        let sent = Instant::now();
        self.holding.flush().await?;
        let told = timeout(CALLBACK_MAX, self.grantee.granted()).await;
        self.held(Status::Granted).await.context("UNLOCK of the holder")?;

        // Also ends the wait if the waiter was not called back.
        let unlock = self.waiter.unlock(&self.file, RANGE);
        let unlocked = self.waiting.call::<v4::Unlock>(&unlock).await?.status;
        ensure!(unlocked == Status::Granted, "UNLOCK of the waiter was answered {unlocked:?}");
        Ok(told.ok().flatten().map(|told| told.saturating_duration_since(sent)))
    }

    /// The next reply to the holder.
    async fn held(&mut self, expected: Status) -> Result<()> {
        let reply = timeout(REPLY_MAX, self.holding.recv()).await.context("no reply")??;
        let status = StatusReply::from_bytes(reply.results)?.status;
        ensure!(status == expected, "it was answered {status:?}");
        Ok(())
    }
}

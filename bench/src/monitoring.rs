//! The cost of monitoring: with many locks held and others taken and released, a monitor pages
//! through the lock list and scrapes the metrics. How much throughput is lost, and how long do the
//! requests take?

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use client::Pipeline;
use serde::{Deserialize, Serialize};
use wire::nlm::{Range, v4};

use crate::server::Server;
use load::{Operation, Owner, Session, Shape, Timing};

/// A round measures with and without a monitor, one after the other, so that other activity of the
/// machine, which changes within seconds, is the same for both.
const ROUNDS: usize = 101;
const TIMING: Timing =
    Timing { warm_up: Duration::from_millis(50), measured: Duration::from_millis(300) };
/// Between two requests for the list; every twentieth also scrapes the metrics.
const LOOK_EVERY: Duration = Duration::from_millis(50);
const SCRAPE_AT: usize = 20;
/// In addition to the few that hold most locks.
const CLIENTS: usize = 9_990;

#[derive(Debug, Clone, Serialize)]
pub struct MonitoringCost {
    pub locks: u64,
    pub clients: u64,
    pub looks: usize,
    pub look_p99_ms: f64,
    pub scrapes: usize,
    pub scrape_max_ms: f64,
    /// Pairs of LOCK and UNLOCK per second, without and with a monitor.
    pub alone_ops: f64,
    pub watched_ops: f64,
    /// The median share of throughput lost to the monitor.
    pub loss: f64,
}

pub(crate) async fn measure(server: &Server, web: SocketAddr) -> Result<MonitoringCost> {
    let shape = Shape::HIGH;
    let steps = [(Operation::LockUnlock, shape)];
    let mut session = Session::open(server.target.clone(), &steps).await?;
    register(server, &session).await.context("registering clients")?;
    let (mut alone, mut watched, mut losses) = (Vec::new(), Vec::new(), Vec::new());
    let (mut looks, mut scrapes) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let mut pair = [0.0; 2];
        // Each goes first as often as the other.
        for is_watched in [round % 2 == 1, round % 2 == 0] {
            let watcher = is_watched.then(|| Monitor::start(web, looks.len()));
            let found = load::run(&mut session, Operation::LockUnlock, shape, TIMING).await?;
            pair[usize::from(is_watched)] = found.ops_per_second;
            if let Some(watcher) = watcher {
                let (more_looks, more_scrapes) = watcher.stop()?;
                looks.extend(more_looks);
                scrapes.extend(more_scrapes);
            }
        }
        alone.push(pair[0]);
        watched.push(pair[1]);
        losses.push(1.0 - pair[1] / pair[0]);
    }
    let (locks, clients) = counts(web)?;
    session.close().await?;
    looks.sort();
    scrapes.sort();
    ensure!(!looks.is_empty() && !scrapes.is_empty(), "nobody looked");
    let ms = |took: &Duration| took.as_secs_f64() * 1e3;
    Ok(MonitoringCost {
        locks,
        clients,
        looks: looks.len(),
        look_p99_ms: looks.get(looks.len() * 99 / 100).map_or(0.0, ms),
        scrapes: scrapes.len(),
        scrape_max_ms: scrapes.last().map_or(0.0, ms),
        alone_ops: median(alone),
        watched_ops: median(watched),
        loss: median(losses),
    })
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of.get(of.len() / 2).copied().unwrap_or_default()
}

/// Many hosts with one lock each.
async fn register(server: &Server, session: &Session) -> Result<()> {
    let nlm = server.target.nlm.context("no lock manager")?;
    let mut pipeline = Pipeline::connect(nlm, &server.target.options).await?;
    let file = session.write_files.first().context("no file")?;
    for some in (0..CLIENTS).collect::<Vec<_>>().chunks(64) {
        for client in some {
            let owner = Owner::new(format!("bench-client-{client}"), 1);
            let range = Range { offset: (1 << 41) + 2 * *client as u64, length: 1 };
            pipeline.send::<v4::Lock>(&owner.lock(file, range));
        }
        for _ in some {
            pipeline.recv().await?;
        }
    }
    Ok(())
}

/// The part of a page that leads to the next.
#[derive(Deserialize)]
struct Cursor {
    next: Option<String>,
}

/// A client of the API on its own thread, like a browser and a Prometheus server.
struct Monitor {
    stop: Arc<AtomicBool>,
    thread: thread::JoinHandle<Result<(Vec<Duration>, Vec<Duration>)>>,
}

impl Monitor {
    /// `before` counts the requests of earlier monitors.
    fn start(web: SocketAddr, before: usize) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = thread::spawn(move || {
            let (mut looks, mut scrapes) = (Vec::new(), Vec::new());
            let mut after = String::new();
            while !stopped.load(Ordering::Relaxed) {
                if (before + looks.len()) % SCRAPE_AT == SCRAPE_AT / 2 {
                    let start = Instant::now();
                    get(web, "/metrics")?;
                    scrapes.push(start.elapsed());
                }
                let start = Instant::now();
                let page = get(web, &format!("/v1/locks?limit=100{after}"))?;
                looks.push(start.elapsed());
                let Cursor { next } = serde_json::from_str(&page)?;
                after = next.map_or_else(String::new, |next| format!("&after={next}"));
                thread::sleep(LOOK_EVERY);
            }
            Ok((looks, scrapes))
        });
        Self { stop, thread }
    }

    fn stop(self) -> Result<(Vec<Duration>, Vec<Duration>)> {
        self.stop.store(true, Ordering::Relaxed);
        match self.thread.join() {
            Ok(looked) => looked,
            Err(_) => bail!("the monitor panicked"),
        }
    }
}

fn counts(web: SocketAddr) -> Result<(u64, u64)> {
    let status: serde_json::Value = serde_json::from_str(&get(web, "/v1/status")?)?;
    let count = |name: &str| status["counts"][name].as_u64().context("no count");
    Ok((count("locks")?, count("clients")?))
}

fn get(web: SocketAddr, path: &str) -> Result<String> {
    let mut stream = TcpStream::connect(web)?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {web}\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no answer")?;
    ensure!(head.starts_with("HTTP/1.1 200 "), "{path}: {head}");
    Ok(body.to_owned())
}

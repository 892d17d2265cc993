//! A restart with many clients (B4.2): all are notified in little time, even if some are dead.
//!
//! `LOCKKEEPER_HOSTS=10000` runs it at that scale and prints measurements; use a release build on an
//! idle machine.

use super::*;
use std::collections::HashMap;
use std::thread;
use std::time::Instant;
use testbed::peer::{HostState, Population, host_states, raise_descriptor_limit};
use testbed::process::own_resident_kilobytes;
use tokio::runtime::Builder;

struct RestartMeasurement {
    took: Duration,
    threads: usize,
    kilobytes: usize,
    descriptors: usize,
}

/// Notifies them all; asserts that each is reported on once, as it deserves.
fn restart(population: &Population, settings: peer::Settings) -> RestartMeasurement {
    let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = (own_resident_kilobytes().unwrap(), descriptors());
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let settings = peer::Settings { rpcbind_port: population.rpcbind_port, ..settings };
    let watched = thread::spawn({
        let most = move |(kilobytes, open): (usize, usize)| {
            (kilobytes.max(own_resident_kilobytes().unwrap()), open.max(descriptors()))
        };
        move || {
            let mut peak = (0, 0);
            for _ in 0..10 {
                peak = most(peak);
                thread::sleep(Duration::from_millis(200));
            }
            peak
        }
    });
    let (took, threads) = runtime.block_on(async {
        let mut fixture = Fixture::with(settings, Settings::default()).await;
        let start = Instant::now();
        let mut owed: HashMap<NoticeId, bool> = HashMap::new();
        for (ip, kind) in &population.hosts {
            let told = notice(*ip, &[(OURS, "127.0.0.1"), (OURS, "server"), (OURS, "server.x")]);
            owed.insert(told.id, *kind == HostState::Alive);
            fixture.callbacks.send_notice(told);
        }
        while !owed.is_empty() {
            let Report::Noticed(id, result) = fixture.report().await else { panic!() };
            assert_eq!(owed.remove(&id), Some(result == NoticeResult::Answered), "{id:?}");
        }
        let took = start.elapsed();
        fixture.no_more_reports().await;
        (took, threads())
    });
    let peak = watched.join().unwrap();
    let kilobytes = peak.0.saturating_sub(before.0);
    RestartMeasurement { took, threads, kilobytes, descriptors: peak.1.saturating_sub(before.1) }
}

#[test]
fn all_hosts_are_tried_in_little_time_though_a_tenth_is_dead() {
    let count = std::env::var("LOCKKEEPER_HOSTS").ok().map(|count| count.parse().unwrap());
    let send_from_reserved_ports = rustix::process::geteuid().is_root();
    raise_descriptor_limit();
    let hosts = count.unwrap_or(300);
    for with_dead in [false, true] {
        let population = Population::new(&host_states(hosts, with_dead), address);
        let settings = peer::Settings { send_from_reserved_ports, ..peer::Settings::default() };
        let measured = restart(&population, settings);
        if count.is_some() {
            let RestartMeasurement { took, threads, kilobytes, descriptors } = measured;
            println!(
                "{hosts} hosts, a tenth dead: {with_dead}; reserved ports: {send_from_reserved_ports}; \
                 {took:?}, {threads} threads in all, {kilobytes} kB, {descriptors} descriptors more"
            );
        }
        // An idle machine needs a fraction of it.
        assert!(measured.took < Duration::from_secs(30), "{:?}", measured.took);
    }
}

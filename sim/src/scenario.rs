//! What a seed decides before the first event: hosts, configuration of the server, fault rates.

use std::net::IpAddr;
use std::time::Duration;

use keeper::bytes::{Name, OwnerTag};
use keeper::config::{Config, GraceMode, Limits, Unreachable, Verify};
use keeper::identity::{OwnerNamespace, Transport};
use keeper::request::Form;
use server::rpc::duplicate_cache::CacheBounds;
use store::Durability;

use crate::host::{Activity, Host, Process};
use crate::queue::{MINUTE, Ms, SECOND};
use crate::random::Random;

/// The kind of client that a host is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostKind {
    Linux,
    /// Asynchronous forms over UDP; all processes share one owner tag.
    MacOs,
    /// No persistent state: the same incarnation after every boot, and no notice.
    Netboot,
    /// Reserves whole files by SHARE and locks nothing.
    Windows,
    /// Sends forged requests between honest ones.
    Adversary,
    /// Locks nothing; monitors other hosts by SM_MON.
    Watcher,
}

pub(crate) struct Scenario {
    pub config: Config,
    pub durability: Durability,
    pub duplicates: CacheBounds,
    /// Per cent of requests that wait for a worker (permission check).
    pub worker_percent: u64,
    /// Judge after each input, or after a whole batch.
    pub one_by_one: bool,
    /// Per mille of packets, during the faults.
    pub lose: u64,
    pub repeat: u64,
    pub delay: u64,
    /// Mean time between two faults.
    pub fault_every: Ms,
    /// When the faults stop.
    pub calm_from: Ms,
    /// One host never comes back after a crash.
    pub dead_for_good: bool,
    /// The server does not fail, so that reports stay pending for long.
    pub steady: bool,
}

pub(crate) const FORGED_NUMBER: u32 = 99;

pub(crate) fn server_addresses() -> [IpAddr; 2] {
    [IpAddr::from([192, 0, 2, 1]), IpAddr::from([192, 0, 2, 2])]
}

impl Scenario {
    pub(crate) fn draw(random: &mut Random) -> Self {
        let limits = if random.percent(20) {
            Limits {
                clients: 5,
                clients_per_address: 2,
                locks: 14,
                locks_per_client: 7,
                locks_per_address: 9,
                locks_per_file: 8,
                waiters_per_file: 3,
                registrations_per_address: 3,
                parked: 3,
                parked_per_address: 2,
            }
        } else {
            Limits { parked: 64, ..Limits::default() }
        };
        let config = Config {
            window: Duration::from_millis(random.between(20, 90) * SECOND),
            grace: if random.percent(50) { GraceMode::Strict } else { GraceMode::Instant },
            verify: *random.pick(&[
                Verify::SignsOfLife,
                Verify::SignsOfLife,
                Verify::SignsOfLife,
                Verify::Ask,
                Verify::Address,
            ]),
            roaming: random.percent(50),
            unreachable: *random.pick(&[
                Unreachable::OnDemand,
                Unreachable::OnDemand,
                Unreachable::Immediate,
                Unreachable::Retain,
            ]),
            limits,
            host_name: Name::from("files"),
            names: vec![Name::from("files.example.com"), Name::from("files")],
            seed: random.next(),
            ..Config::default()
        };
        let bad = random.percent(60);
        Self {
            config,
            durability: if random.percent(60) { Durability::Process } else { Durability::Power },
            duplicates: CacheBounds {
                per_origin: if random.percent(30) { 40 } else { 4096 },
                entries: if random.percent(20) { 60 } else { 10_000 },
                bytes: 1 << 20,
            },
            worker_percent: if random.percent(50) { random.between(1, 30) } else { 0 },
            one_by_one: random.percent(80),
            lose: if bad { random.between(5, 60) } else { 0 },
            repeat: if bad { random.between(5, 60) } else { 10 },
            delay: if bad { random.between(5, 80) } else { 10 },
            fault_every: random.between(4, 14) * SECOND,
            calm_from: random.between(4, 9) * MINUTE,
            dead_for_good: random.percent(10),
            steady: random.percent(15),
        }
    }

    /// Two ordinary hosts, then a random choice of special ones.
    pub(crate) fn draw_hosts(random: &mut Random) -> (Vec<Host>, Vec<Process>) {
        let tcp = |ours: IpAddr| OwnerNamespace::new(ours, Transport::Tcp, 4);
        let udp = |ours: IpAddr| OwnerNamespace::new(ours, Transport::Udp, 4);
        let [first, second] = server_addresses();
        let v4 = |last: u8| IpAddr::from([198, 51, 100, last]);
        let v6: IpAddr = IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, 5]);
        let mut all = vec![
            Host::new(HostKind::Linux, "alice.example.com", v4(1), vec![tcp(first), tcp(second)]),
            Host::new(HostKind::Linux, "bob", v4(2), vec![tcp(first)]),
        ];
        if random.percent(60) {
            // Two hosts behind one address; one name is a prefix of the other.
            all.push(Host::new(HostKind::Linux, "client1", v4(3), vec![tcp(first)]));
            all.push(Host::new(HostKind::Linux, "client10.example.com", v4(3), vec![tcp(second)]));
        }
        if random.percent(40) {
            let mut dual = Host::new(HostKind::Linux, "erin.example.com", v4(5), vec![tcp(first)]);
            dual.notice_address = v6;
            all.push(dual);
        }
        if random.percent(50) {
            all.push(Host::new(HostKind::MacOs, "frank.local", v4(6), vec![udp(first)]));
        }
        if random.percent(35) {
            all.push(Host::new(HostKind::Netboot, "node7", v4(7), vec![tcp(second)]));
        }
        if random.percent(40) {
            all.push(Host::new(HostKind::Windows, "heidi", v4(8), vec![tcp(first)]));
            all.push(Host::new(HostKind::Windows, "ivan.example.com", v4(9), vec![tcp(second)]));
        }
        if random.percent(30) {
            // A second machine with the name of another.
            all.push(Host::new(HostKind::Linux, "bob", v4(12), vec![tcp(second)]));
        }
        if random.percent(25) {
            let mut later = Host::new(HostKind::Linux, "bob", v4(22), vec![tcp(first)]);
            later.up = false;
            all[1].successor = Some(all.len());
            all.push(later);
        }
        all.push(Host::new(HostKind::Watcher, "watcher", v4(90), vec![udp(first)]));
        all.push(Host::new(HostKind::Adversary, "mallory", v4(66), vec![tcp(first)]));
        let mut processes = Vec::new();
        for (index, host) in all.iter_mut().enumerate() {
            host.xid = random.next() as u32;
            host.state = 1 + 2 * random.below(50) as u32;
            if random.percent(5) {
                host.state = u32::MAX - 2 * random.below(2) as u32;
            }
            host.deaf = host.kind == HostKind::Linux && random.percent(10);
            host.answers_old_state = random.percent(20);
            host.firewalled = host.kind == HostKind::Linux && random.percent(6);
            host.drops_unknown = random.percent(15);
            host.waits_only = host.kind == HostKind::Linux
                && random.percent(10)
                && !host.firewalled
                && !host.deaf;
            host.monitored = !random.percent(5);
            host.first_process = processes.len();
            let each =
                if host.kind == HostKind::Watcher { 0 } else { random.between(2, 3) as usize };
            for namespace in 0..host.namespaces.len() {
                for number in 0..each {
                    let tag = match host.kind {
                        HostKind::MacOs => "macos lockd".to_owned(),
                        _ => format!("{number}@{}", host.short_name()),
                    };
                    processes.push(Process::new(
                        index,
                        namespace,
                        number as u32,
                        OwnerTag::from(&*tag),
                    ));
                }
            }
            if host.kind == HostKind::Adversary {
                // The identity for forged reclaims.
                let tag = OwnerTag::from("forged");
                let mut forger = Process::new(index, 0, FORGED_NUMBER, tag);
                forger.doing = Activity::Finished;
                processes.push(forger);
            }
            host.last_process = processes.len();
        }
        (all, processes)
    }
}

impl HostKind {
    pub(crate) fn form(self) -> Form {
        if self == HostKind::MacOs { Form::Message } else { Form::Call }
    }

    /// The retransmission timeout.
    pub(crate) fn retransmit_after(self) -> Ms {
        if self == HostKind::MacOs { 5 * SECOND } else { 10 * SECOND }
    }

    /// The interval at which a blocked lock is requested again.
    pub(crate) fn poll_every(self) -> Ms {
        if self == HostKind::MacOs { 20 * SECOND } else { 30 * SECOND }
    }
}

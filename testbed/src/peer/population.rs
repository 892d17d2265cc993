//! Many hosts with a status monitor each, some of them dead.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::net::{TcpListener, UdpSocket};
use tokio::runtime::{Builder, Runtime};
use wire::rpcbind::{self, Mapping};
use wire::{Decode, nsm};

use super::{Answer, ReceivedCall, Script, script, serve_datagrams, serve_streams};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostState {
    Alive,
    /// Nothing listens on rpcbind's port.
    RpcbindRefuses,
    /// rpcbind receives and never answers.
    RpcbindSilent,
    /// The status monitor receives and never answers.
    MonitorSilent,
}

/// `count` states; with `dead`, a tenth are dead in one of three ways.
pub fn host_states(count: usize, dead: bool) -> Vec<HostState> {
    let state = |number: usize| match number % 30 {
        7 if dead => HostState::RpcbindRefuses,
        17 if dead => HostState::RpcbindSilent,
        27 if dead => HostState::MonitorSilent,
        _ => HostState::Alive,
    };
    (0..count).map(state).collect()
}

/// Runs on a thread of its own, so that its cost is not measured with the server's.
pub struct Population {
    pub hosts: Vec<(IpAddr, HostState)>,
    pub rpcbind_port: u16,
    notified: FirstNotices,
    _runtime: Runtime,
}

/// When the first SM_NOTIFY reached an address.
type FirstNotices = Arc<Mutex<HashMap<IpAddr, Instant>>>;

/// Monitors share listeners, because descriptors do not suffice for one each; with more hosts than
/// this on one listener, connections would be dropped.
const HOSTS_PER_LISTENER: usize = 100;

impl Population {
    /// `address` yields an unused loopback address for each host.
    pub fn new(states: &[HostState], mut address: impl FnMut() -> IpAddr) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let notified = FirstNotices::default();
        let rpcbind_port = {
            let probe = std::net::UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
            probe.local_addr().unwrap().port()
        };
        let listen = |answers: bool| {
            let listener = runtime.block_on(TcpListener::bind("0.0.0.0:0")).unwrap();
            let port = listener.local_addr().unwrap().port();
            runtime.spawn(serve_streams(listener, monitor(notified.clone(), answers), || ()));
            port
        };
        let ports: Vec<(u16, u16)> = (0..states.len().div_ceil(HOSTS_PER_LISTENER))
            .map(|_| (listen(true), listen(false)))
            .collect();
        let mut hosts = Vec::new();
        for (state, (monitor_port, silent_port)) in states.iter().zip(ports.iter().cycle().copied())
        {
            let ip = address();
            hosts.push((ip, *state));
            let rpcbind = match state {
                HostState::RpcbindRefuses => continue,
                HostState::RpcbindSilent => script(|_| Answer::Nothing),
                HostState::Alive => rpcbind(monitor_port),
                HostState::MonitorSilent => rpcbind(silent_port),
            };
            let socket = runtime.block_on(UdpSocket::bind((ip, rpcbind_port))).unwrap();
            runtime.spawn(serve_datagrams(socket, rpcbind));
        }
        Self { hosts, rpcbind_port, notified, _runtime: runtime }
    }

    /// When the last live host received its first notice; `None` while one has received none.
    pub fn all_notified(&self) -> Option<Instant> {
        let notified = self.notified.lock().unwrap();
        let alive = self.hosts.iter().filter(|(_, state)| *state == HostState::Alive);
        alive
            .map(|(ip, _)| notified.get(ip).copied())
            .try_fold(None, |last, at| Some(last.max(Some(at?))))?
    }
}

/// An rpcbind that knows a status monitor over TCP, and nothing else.
fn rpcbind(monitor_port: u16) -> Script {
    script(move |call| {
        let wanted = Mapping::from_bytes(call.args.clone()).unwrap();
        let known = wanted.program == nsm::PROGRAM && wanted.protocol == rpcbind::PROTOCOL_TCP;
        Answer::results(&u32::from(if known { monitor_port } else { 0 }))
    })
}

fn monitor(notified: FirstNotices, answers: bool) -> Script {
    script(move |call: &ReceivedCall| {
        assert_eq!((call.program, call.procedure), (nsm::PROGRAM, 6));
        notified.lock().unwrap().entry(call.to.ip()).or_insert(call.at);
        if answers { Answer::results(&()) } else { Answer::Nothing }
    })
}

/// Each host needs a descriptor.
pub fn raise_descriptor_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
}

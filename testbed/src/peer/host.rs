//! A host on an address of its own: an rpcbind, and the programs that the test registers with it.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::net::{TcpListener, UdpSocket};
use tokio::task::JoinSet;
use wire::Decode;
use wire::rpc::Accepted;
use wire::rpcbind::{self, Binding, Mapping, Netid, Text, universal};

use super::{Answer, ReceivedCall, Script, script, serve_datagrams, serve_streams};

#[derive(Default)]
struct State {
    /// Port by program, version and protocol.
    registered: HashMap<(u32, u32, u32), u16>,
    calls: Vec<ReceivedCall>,
    lookups: Vec<(u32, SocketAddr)>,
    connections: usize,
}

/// All its sockets close when it is dropped.
pub struct Host {
    pub ip: IpAddr,
    pub rpcbind_port: u16,
    state: Arc<Mutex<State>>,
    tasks: JoinSet<()>,
}

/// How the host's rpcbind behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RpcbindKind {
    /// Versions 2 to 4, over both transports.
    Full,
    /// Silent over UDP.
    TcpOnly,
    /// Refuses connections.
    UdpOnly,
    /// Versions 2 and 3 only.
    WithoutVersion4,
    /// Receives and never answers.
    Silent,
    /// Answers each call after this time.
    Slow(Duration),
}

impl Host {
    /// Port 0 stands for any free one.
    pub async fn bind(ip: IpAddr, rpcbind_port: u16, kind: RpcbindKind) -> Self {
        let socket = UdpSocket::bind((ip, rpcbind_port)).await.unwrap();
        let rpcbind_port = socket.local_addr().unwrap().port();
        let mut host = Self { ip, rpcbind_port, state: Arc::default(), tasks: JoinSet::new() };
        let state = host.state.clone();
        let rpcbind = script(move |call: &ReceivedCall| {
            let mut state = state.lock().unwrap();
            state.lookups.push((call.version, call.from));
            match (lookup(&state.registered, call, ip, kind), kind) {
                (Answer::Results(found), RpcbindKind::Slow(after)) => Answer::Delayed(after, found),
                (answer, _) => answer,
            }
        });
        let over_udp = match kind {
            RpcbindKind::TcpOnly | RpcbindKind::Silent => script(|_| Answer::Nothing),
            _ => rpcbind.clone(),
        };
        host.tasks.spawn(serve_datagrams(socket, over_udp));
        if kind != RpcbindKind::UdpOnly {
            let listener = TcpListener::bind((ip, rpcbind_port)).await.unwrap();
            host.serve(listener, rpcbind);
        }
        host
    }

    /// Serves a program on a free TCP port and registers it.
    pub async fn tcp(&mut self, program: u32, version: u32, script: Script) -> SocketAddr {
        let listener = TcpListener::bind((self.ip, 0)).await.unwrap();
        let at = listener.local_addr().unwrap();
        self.register(program, version, true, at.port());
        self.serve(listener, self.recording(script));
        at
    }

    /// Serves a program on a free UDP port and registers it.
    pub async fn udp(&mut self, program: u32, version: u32, script: Script) -> SocketAddr {
        let socket = UdpSocket::bind((self.ip, 0)).await.unwrap();
        let at = socket.local_addr().unwrap();
        self.register(program, version, false, at.port());
        let script = self.recording(script);
        self.tasks.spawn(serve_datagrams(socket, script));
        at
    }

    pub fn register(&self, program: u32, version: u32, tcp: bool, port: u16) {
        let protocol = if tcp { rpcbind::PROTOCOL_TCP } else { rpcbind::PROTOCOL_UDP };
        self.state().registered.insert((program, version, protocol), port);
    }

    fn serve(&mut self, listener: TcpListener, script: Script) {
        let state = self.state.clone();
        let accepted = move || state.lock().unwrap().connections += 1;
        self.tasks.spawn(serve_streams(listener, script, accepted));
    }

    fn recording(&self, script: Script) -> Script {
        let state = self.state.clone();
        Arc::new(move |call: &ReceivedCall| {
            let mut state = state.lock().unwrap();
            let call = ReceivedCall { index: state.calls.len(), ..call.clone() };
            state.calls.push(call.clone());
            drop(state);
            script(&call)
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Calls to its programs, without those to rpcbind.
    pub fn calls(&self) -> Vec<ReceivedCall> {
        self.state().calls.clone()
    }

    /// Version and source of each call to its rpcbind.
    pub fn lookups(&self) -> Vec<(u32, SocketAddr)> {
        self.state().lookups.clone()
    }

    /// How many connections were accepted, those to rpcbind included.
    pub fn connections(&self) -> usize {
        self.state().connections
    }
}

fn lookup(
    registered: &HashMap<(u32, u32, u32), u16>,
    call: &ReceivedCall,
    ip: IpAddr,
    kind: RpcbindKind,
) -> Answer {
    if kind == RpcbindKind::Silent {
        return Answer::Nothing;
    }
    assert_eq!((call.program, call.procedure), (rpcbind::PROGRAM, 3));
    if call.version == rpcbind::V2 {
        let wanted = Mapping::from_bytes(call.args.clone()).unwrap();
        let key = (wanted.program, wanted.version, wanted.protocol);
        return Answer::results(&u32::from(registered.get(&key).copied().unwrap_or(0)));
    }
    if kind == RpcbindKind::WithoutVersion4 && call.version == rpcbind::V4 {
        return Answer::Status(Accepted::ProgramMismatch { low: 2, high: 3 });
    }
    let wanted = Binding::from_bytes(call.args.clone()).unwrap();
    let netid = Netid::parse(&wanted.netid).unwrap();
    assert_eq!(netid.is_v6(), ip.is_ipv6());
    // Like rpcbind itself: it answers for the transport that carried the call.
    let protocol = if call.over_tcp { rpcbind::PROTOCOL_TCP } else { rpcbind::PROTOCOL_UDP };
    let port = registered.get(&(wanted.program, wanted.version, protocol));
    // The address is wrong on purpose: a caller may use only the port.
    let elsewhere = "fd00::dead".parse().unwrap();
    let address = port.map(|port| Text::from(universal(SocketAddr::new(elsewhere, *port))));
    Answer::results(&address.unwrap_or_default())
}

//! Peers that crash: their machine is a network namespace whose link goes down.

use std::thread::JoinHandle;

use keeper::identity::{OwnerNamespace, Transport};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;
use tokio::sync::{mpsc, oneshot};

use testbed::namespace::Namespace;

use super::*;
use crate::liveness::registry::TakenBy;

const OURS: &str = "10.99.0.1";
const THEIRS: &str = "10.99.0.2";

fn alice() -> HostKey {
    host(THEIRS, "a")
}

fn namespace() -> OwnerNamespace {
    OwnerNamespace::new(OURS.parse().unwrap(), Transport::Tcp, 4)
}

fn set_link(network: &Namespace, state: &str) {
    network.ip(&format!("link set eth0 {state}")).unwrap();
}

/// The client machine: it connects on command, and can crash.
struct Machine {
    network: Arc<Namespace>,
    orders: mpsc::UnboundedSender<Order>,
    thread: Option<JoinHandle<()>>,
}

enum Order {
    /// From that port, or any if it is 0.
    Call(SocketAddr, u16, oneshot::Sender<()>),
    /// Closes its sockets by a reset, which is lost while the link is down.
    Forget(oneshot::Sender<()>),
}

impl Machine {
    fn boot(network: &Arc<Namespace>) -> Self {
        let (orders, mut received) = mpsc::unbounded_channel();
        let thread = network.spawn(async move || {
            let mut connections = Vec::new();
            // A lock manager, and the rpcbind that knows it.
            let listener = TcpListener::bind((THEIRS, 0)).await.unwrap();
            let port = listener.local_addr().unwrap().port();
            let rpcbind = TcpListener::bind((THEIRS, 111)).await.unwrap();
            let (sockets, mut accepted) = mpsc::unbounded_channel();
            tokio::spawn(answer_all(rpcbind, Some(port), sockets.clone()));
            tokio::spawn(answer_all(listener, None, sockets));
            while let Some(order) = received.recv().await {
                match order {
                    Order::Call(at, port, done) => {
                        let socket = TcpSocket::new_v4().unwrap();
                        socket.set_reuseaddr(true).unwrap();
                        socket.bind(SocketAddr::new(THEIRS.parse().unwrap(), port)).unwrap();
                        let stream = socket.connect(at).await.unwrap();
                        assert_eq!(stream.try_write(b"a").unwrap(), 1);
                        connections.push(stream);
                        done.send(()).unwrap();
                    }
                    Order::Forget(done) => {
                        connections.drain(..).for_each(abort);
                        while let Ok(socket) = accepted.try_recv() {
                            socket2::SockRef::from(&socket)
                                .set_linger(Some(Duration::ZERO))
                                .unwrap();
                        }
                        done.send(()).unwrap();
                        return;
                    }
                }
            }
        });
        Self { network: network.clone(), orders, thread: Some(thread) }
    }

    async fn call(&self, at: &str) {
        self.call_from(0, at).await;
    }

    async fn call_from(&self, port: u16, at: &str) {
        let (done, is_done) = oneshot::channel();
        assert!(self.orders.send(Order::Call(at.parse().unwrap(), port, done)).is_ok());
        is_done.await.unwrap();
    }

    /// Nothing that it sends reaches the network any more.
    async fn crash(mut self) {
        set_link(&self.network, "down");
        let (done, is_done) = oneshot::channel();
        assert!(self.orders.send(Order::Forget(done)).is_ok());
        is_done.await.unwrap();
        self.thread.take().unwrap().join().unwrap();
    }
}

/// Answers every call: with a port if there is one, else with nothing.
async fn answer_all(
    listener: TcpListener,
    port: Option<u16>,
    sockets: mpsc::UnboundedSender<std::net::TcpStream>,
) {
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        let owned = std::os::fd::AsFd::as_fd(&stream).try_clone_to_owned().unwrap();
        sockets.send(owned.into()).unwrap();
        tokio::spawn(async move {
            while let Ok(mark) = stream.read_u32().await {
                let mut record = vec![0; (mark & 0x7fff_ffff) as usize];
                stream.read_exact(&mut record).await.unwrap();
                // The same xid; a reply that is accepted, without a verifier, a success.
                let mut reply = record[..4].to_vec();
                for word in [1, 0, 0, 0, 0].into_iter().chain(port.map(u32::from)) {
                    reply.extend(u32::to_be_bytes(word));
                }
                stream.write_u32(0x8000_0000 | reply.len() as u32).await.unwrap();
                stream.write_all(&reply).await.unwrap();
            }
        });
    }
}

const AT: &str = "10.99.0.1:2049";

fn networks() -> (Namespace, Arc<Namespace>) {
    let (ours, theirs) = Namespace::pair().unwrap();
    (ours, Arc::new(theirs))
}

#[test]
fn a_peer_whose_link_is_down_is_silent_and_its_connection_survives_the_probe() {
    let (ours, theirs) = networks();
    ours.block_on(async move || {
        let fixture = Fixture::at(AT, Settings::default()).await;
        let machine = Machine::boot(&theirs);
        machine.call(AT).await;
        fixture.until_open(1).await;
        set_link(&theirs, "down");
        let begun = Instant::now();
        assert_eq!(fixture.same_kernel(&alice()).await, ProbeAnswer::Silent);
        assert!(begun.elapsed() > Duration::from_secs(6), "three questions take longer");
        assert!(begun.elapsed() < Duration::from_secs(12));
        set_link(&theirs, "up");
        assert_eq!(fixture.same_kernel(&alice()).await, ProbeAnswer::Alive);
        assert_eq!(fixture.resets(), 0);
    });
}

#[test]
fn a_kernel_that_rebooted_answers_with_a_reset() {
    let (ours, theirs) = networks();
    ours.block_on(async move || {
        let fixture = Fixture::at(AT, Settings::default()).await;
        let machine = Machine::boot(&theirs);
        machine.call(AT).await;
        fixture.until_open(1).await;
        machine.crash().await;
        set_link(&theirs, "up");
        let begun = Instant::now();
        assert_eq!(fixture.same_kernel(&alice()).await, ProbeAnswer::Gone);
        assert!(begun.elapsed() < Duration::from_secs(5));
        // It is remembered, and was not reported: the answer says it.
        assert_eq!(fixture.same_kernel(&alice()).await, ProbeAnswer::Gone);
        assert_eq!(fixture.resets(), 0);
    });
}

#[test]
fn the_connection_of_a_kernel_that_rebooted_and_mounted_again_is_no_sign_of_life() {
    let (ours, theirs) = networks();
    ours.block_on(async move || {
        let fixture = Fixture::at(AT, Settings::default()).await;
        let machine = Machine::boot(&theirs);
        machine.call(AT).await;
        fixture.until_open(1).await;
        fixture.liveness.watch(&alice(), namespace());
        fixture.liveness.record_lock(&alice(), TakenBy::Lock(STATE), Instant::now());
        machine.crash().await;
        sleep(Duration::from_secs(2)).await;
        set_link(&theirs, "up");
        let (machine, booted) = (Machine::boot(&theirs), Instant::now());
        machine.call(AT).await;
        let connections = || fixture.liveness.0.lock().connections_of(&alice(), Instant::now(), 9);
        until("the expected state", || {
            connections().iter().any(|one| one.is_named && one.connection.opened > booted)
        })
        .await;
        assert_eq!(fixture.same_kernel(&alice()).await, ProbeAnswer::Gone);
        // What the new kernel takes is its own.
        let next = Incarnation(9);
        fixture.liveness.record_lock(&alice(), TakenBy::Lock(next), Instant::now());
        assert_eq!(fixture.same_kernel(&alice()).await, ProbeAnswer::Gone);
        let inquiry = Inquiry { question: Question::SameKernel(next), ..same_kernel(&alice()) };
        assert_eq!(fixture.liveness.probe(&inquiry).await, ProbeAnswer::Alive);
    });
}

#[test]
fn a_rebooted_kernel_behind_a_firewall_is_neither_alive_nor_proven_gone() {
    let (ours, theirs) = networks();
    ours.block_on(async move || {
        let fixture = Fixture::at(AT, Settings::default()).await;
        let machine = Machine::boot(&theirs);
        machine.call(AT).await;
        fixture.until_open(1).await;
        let connections = || fixture.liveness.0.lock().connections_of(&alice(), Instant::now(), 9);
        let old = fixture.first_stream().peer_addr().unwrap();
        machine.crash().await;
        // A firewall that drops segments of unknown connections: here, of the old one.
        let port = old.port().to_string();
        theirs.ip("rule add pref 10 lookup local").unwrap();
        theirs.ip("rule del pref 0").unwrap();
        theirs.ip(&format!("rule add pref 1 ipproto tcp dport {port} blackhole")).unwrap();
        sleep(Duration::from_secs(2)).await;
        set_link(&theirs, "up");
        let machine = Machine::boot(&theirs);
        machine.call(AT).await;
        fixture.until_open(2).await;
        assert_eq!(fixture.same_kernel(&alice()).await, ProbeAnswer::Silent);
        assert_eq!(connections().len(), 2);
    });
}

#[test]
fn a_rebooted_kernel_that_reuses_its_old_port_resets_the_old_connection_unprompted() {
    let (ours, theirs) = networks();
    ours.block_on(async move || {
        let fixture = Fixture::at(AT, Settings::default()).await;
        let machine = Machine::boot(&theirs);
        machine.call_from(700, AT).await;
        fixture.until_open(1).await;
        machine.crash().await;
        sleep(Duration::from_secs(2)).await;
        set_link(&theirs, "up");
        let machine = Machine::boot(&theirs);
        machine.call_from(700, AT).await;
        until("the expected state", || fixture.liveness.0.lock().sizes() == (1, 1)).await;
        fixture.until_open(1).await;
        // If the new connection has sent its name before, it is probed first.
        until("a reset", || fixture.resets() == 1).await;
        assert_eq!(fixture.same_kernel(&alice()).await, ProbeAnswer::Silent);
    });
}

#[test]
fn unsent_data_does_not_hide_a_silent_peer() {
    let (ours, theirs) = networks();
    ours.block_on(async move || {
        let fixture = Fixture::at(AT, Settings::default()).await;
        let machine = Machine::boot(&theirs);
        machine.call(AT).await;
        fixture.until_open(1).await;
        machine.crash().await;
        // The kernel retransmits this with back-off, and sends no keep-alive probes.
        fixture.first_stream().try_write(b"reply").unwrap();
        assert_eq!(fixture.same_kernel(&alice()).await, ProbeAnswer::Silent);
    });
}

#[test]
fn a_witness_connects_to_the_lock_manager_of_a_watched_host() {
    let (ours, theirs) = networks();
    ours.block_on(async move || {
        let settings =
            Settings { null_interval: Duration::from_millis(200), ..Settings::default() };
        let fixture = Fixture::at(AT, settings).await;
        let machine = Machine::boot(&theirs);
        sleep(Duration::from_millis(300)).await;
        let connections = || fixture.liveness.0.lock().sizes().0;
        fixture.liveness.watch(&alice(), namespace());
        fixture.liveness.watch(&alice(), namespace());
        until("connections", || connections() == 1).await;
        fixture.liveness.record_lock(&alice(), TakenBy::Lock(STATE), Instant::now());
        assert_eq!(fixture.same_kernel(&alice()).await, ProbeAnswer::Alive);
        sleep(Duration::from_secs(2)).await;
        assert_eq!(connections(), 1);
        fixture.liveness.unwatch_except(&HashSet::new(), Instant::now());
        until("connections", || connections() == 0).await;
        assert_eq!(fixture.same_kernel(&alice()).await, ProbeAnswer::Silent);

        // It comes back when the host does, and its reset is proof as any other.
        fixture.liveness.watch(&alice(), namespace());
        until("connections", || connections() == 1).await;
        fixture.liveness.record_lock(&alice(), TakenBy::Lock(STATE), Instant::now());
        assert_eq!(fixture.resets(), 0);
        machine.crash().await;
        sleep(Duration::from_secs(1)).await;
        set_link(&theirs, "up");
        let answer = fixture.same_kernel(&alice()).await;
        assert!(matches!(answer, ProbeAnswer::Gone), "{answer:?}");
        let _machine = Machine::boot(&theirs);
        until("connections", || connections() == 1).await;
    });
}

#[test]
fn a_host_that_locks_over_udp_has_a_witness_too() {
    let (ours, theirs) = networks();
    ours.block_on(async move || {
        let fixture = Fixture::at(AT, Settings::default()).await;
        let machine = Machine::boot(&theirs);
        sleep(Duration::from_millis(300)).await;
        let namespace = OwnerNamespace::new(OURS.parse().unwrap(), Transport::Udp, 4);
        fixture.liveness.watch(&alice(), namespace);
        until("the expected state", || fixture.liveness.0.lock().sizes().0 == 1).await;
        machine.crash().await;
    });
}

#[test]
fn a_lock_manager_that_answers_is_reachable() {
    let (ours, theirs) = networks();
    ours.block_on(async move || {
        let fixture = Fixture::at(AT, Settings::default()).await;
        let inquiry = Inquiry { question: Question::Reachable, ..same_kernel(&alice()) };
        assert_eq!(fixture.liveness.probe(&inquiry).await, ProbeAnswer::Silent);
        let machine = Machine::boot(&theirs);
        sleep(Duration::from_millis(300)).await;
        assert_eq!(fixture.liveness.probe(&inquiry).await, ProbeAnswer::Alive);
        assert_eq!(fixture.same_kernel(&alice()).await, ProbeAnswer::Silent);
        machine.crash().await;
        let begun = Instant::now();
        assert_eq!(fixture.liveness.probe(&inquiry).await, ProbeAnswer::Silent);
        assert!(begun.elapsed() < Duration::from_secs(8));
    });
}

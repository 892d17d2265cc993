//! Peers that crash: their machine is a network namespace whose cable can be pulled.

use std::thread::JoinHandle;

use keeper::identity::{Lane, Transport};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;
use tokio::sync::{mpsc, oneshot};

use super::network::Network;
use super::*;

const OURS: &str = "10.99.0.1";
const THEIRS: &str = "10.99.0.2";

fn alice() -> HostKey {
    host(THEIRS, "a")
}

fn lane() -> Lane {
    Lane::new(OURS.parse().unwrap(), Transport::Tcp, 4)
}

fn cable(network: &Network, state: &str) {
    network.ip(&["link", "set", "cable", state]);
}

/// The client machine: it connects when it is told to, and can crash.
struct Machine {
    network: Arc<Network>,
    orders: mpsc::UnboundedSender<Order>,
    thread: Option<JoinHandle<()>>,
}

enum Order {
    /// From a port of its choice, if there is one.
    Call(SocketAddr, u16, oneshot::Sender<()>),
    /// Its sockets are forgotten without a word to anybody, if the cable is pulled meanwhile.
    Forget(oneshot::Sender<()>),
}

impl Machine {
    fn boot(network: &Arc<Network>) -> Self {
        let (orders, mut received) = mpsc::unbounded_channel();
        let thread = network.spawn(async move || {
            let mut lines = Vec::new();
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
                        lines.push(stream);
                        done.send(()).unwrap();
                    }
                    Order::Forget(done) => {
                        lines.drain(..).for_each(abort);
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

    /// As in a crash: nothing reaches the network any more.
    async fn crash(mut self) {
        cable(&self.network, "down");
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

fn networks() -> (Network, Arc<Network>) {
    let (ours, theirs) = Network::pair();
    (ours, Arc::new(theirs))
}

#[test]
fn a_peer_whose_cable_is_pulled_is_silent_and_its_line_survives_the_question() {
    let (ours, theirs) = networks();
    ours.block_on(async move || {
        let station = Station::at(AT, Settings::default()).await;
        let machine = Machine::boot(&theirs);
        machine.call(AT).await;
        station.until_open(1).await;
        cable(&theirs, "down");
        let begun = Instant::now();
        assert_eq!(station.same_kernel(&alice()).await, ProbeAnswer::Silent);
        assert!(begun.elapsed() > Duration::from_secs(6), "three questions take longer");
        assert!(begun.elapsed() < Duration::from_secs(12));
        cable(&theirs, "up");
        assert_eq!(station.same_kernel(&alice()).await, ProbeAnswer::Alive);
        assert_eq!(station.resets(), 0);
    });
}

#[test]
fn a_kernel_that_rebooted_answers_with_a_reset() {
    let (ours, theirs) = networks();
    ours.block_on(async move || {
        let station = Station::at(AT, Settings::default()).await;
        let machine = Machine::boot(&theirs);
        machine.call(AT).await;
        station.until_open(1).await;
        machine.crash().await;
        cable(&theirs, "up");
        let begun = Instant::now();
        assert_eq!(station.same_kernel(&alice()).await, ProbeAnswer::Gone);
        assert!(begun.elapsed() < Duration::from_secs(5));
        // It is remembered, and was not reported: the answer says it.
        assert_eq!(station.same_kernel(&alice()).await, ProbeAnswer::Gone);
        assert_eq!(station.resets(), 0);
    });
}

#[test]
fn the_connection_of_a_kernel_that_rebooted_and_mounted_again_is_no_sign_of_life() {
    let (ours, theirs) = networks();
    ours.block_on(async move || {
        let station = Station::at(AT, Settings::default()).await;
        let machine = Machine::boot(&theirs);
        machine.call(AT).await;
        station.until_open(1).await;
        station.liveness.watch(&alice(), lane());
        station.liveness.took(&alice(), STATE, Instant::now());
        machine.crash().await;
        sleep(Duration::from_secs(2)).await;
        cable(&theirs, "up");
        let (machine, booted) = (Machine::boot(&theirs), Instant::now());
        machine.call(AT).await;
        let lines = || station.liveness.0.lock().lines_of(&alice(), Instant::now(), 9);
        until(|| lines().iter().any(|one| one.is_named && one.line.opened > booted)).await;
        assert_eq!(station.same_kernel(&alice()).await, ProbeAnswer::Gone);
        // What the new kernel takes is its own.
        let next = Incarnation(9);
        station.liveness.took(&alice(), next, Instant::now());
        assert_eq!(station.same_kernel(&alice()).await, ProbeAnswer::Gone);
        let inquiry = Inquiry { question: Question::SameKernel(next), ..same_kernel(&alice()) };
        assert_eq!(station.liveness.probe(&inquiry).await, ProbeAnswer::Alive);
    });
}

#[test]
fn a_rebooted_kernel_behind_a_firewall_is_neither_alive_nor_proven_gone() {
    let (ours, theirs) = networks();
    ours.block_on(async move || {
        let station = Station::at(AT, Settings::default()).await;
        let machine = Machine::boot(&theirs);
        machine.call(AT).await;
        station.until_open(1).await;
        let lines = || station.liveness.0.lock().lines_of(&alice(), Instant::now(), 9);
        let old = station.first_stream().peer_addr().unwrap();
        machine.crash().await;
        // A firewall that drops what it does not know: here, segments for the old connection.
        let port = old.port().to_string();
        theirs.ip(&["rule", "add", "pref", "10", "lookup", "local"]);
        theirs.ip(&["rule", "del", "pref", "0"]);
        theirs.ip(&["rule", "add", "pref", "1", "ipproto", "tcp", "dport", &port, "blackhole"]);
        sleep(Duration::from_secs(2)).await;
        cable(&theirs, "up");
        let machine = Machine::boot(&theirs);
        machine.call(AT).await;
        station.until_open(2).await;
        assert_eq!(station.same_kernel(&alice()).await, ProbeAnswer::Silent);
        assert_eq!(lines().len(), 2);
    });
}

#[test]
fn a_rebooted_kernel_that_uses_its_old_port_again_resets_the_old_line_by_itself() {
    let (ours, theirs) = networks();
    ours.block_on(async move || {
        let station = Station::at(AT, Settings::default()).await;
        let machine = Machine::boot(&theirs);
        machine.call_from(700, AT).await;
        station.until_open(1).await;
        machine.crash().await;
        sleep(Duration::from_secs(2)).await;
        cable(&theirs, "up");
        let machine = Machine::boot(&theirs);
        machine.call_from(700, AT).await;
        until(|| station.liveness.0.lock().sizes() == (1, 1)).await;
        station.until_open(1).await;
        assert_eq!(station.resets(), 1);
        assert_eq!(station.same_kernel(&alice()).await, ProbeAnswer::Silent);
    });
}

#[test]
fn unsent_data_does_not_hide_a_silent_peer() {
    let (ours, theirs) = networks();
    ours.block_on(async move || {
        let station = Station::at(AT, Settings::default()).await;
        let machine = Machine::boot(&theirs);
        machine.call(AT).await;
        station.until_open(1).await;
        machine.crash().await;
        // Now the kernel sends this again, ever more rarely, and no keep-alive.
        station.first_stream().try_write(b"reply").unwrap();
        assert_eq!(station.same_kernel(&alice()).await, ProbeAnswer::Silent);
    });
}

#[test]
fn a_witness_stands_by_the_lock_manager_of_a_holder() {
    let (ours, theirs) = networks();
    ours.block_on(async move || {
        let settings = Settings { null_every: Duration::from_millis(200), ..Settings::default() };
        let station = Station::at(AT, settings).await;
        let machine = Machine::boot(&theirs);
        sleep(Duration::from_millis(300)).await;
        let lines = || station.liveness.0.lock().sizes().0;
        station.liveness.watch(&alice(), lane());
        station.liveness.watch(&alice(), lane());
        until(|| lines() == 1).await;
        station.liveness.took(&alice(), STATE, Instant::now());
        assert_eq!(station.same_kernel(&alice()).await, ProbeAnswer::Alive);
        sleep(Duration::from_secs(2)).await;
        assert_eq!(lines(), 1);
        station.liveness.unwatch_except(&HashSet::new(), Instant::now());
        until(|| lines() == 0).await;
        assert_eq!(station.same_kernel(&alice()).await, ProbeAnswer::Silent);

        // It comes back when the host does, and its reset is proof as any other.
        station.liveness.watch(&alice(), lane());
        until(|| lines() == 1).await;
        station.liveness.took(&alice(), STATE, Instant::now());
        assert_eq!(station.resets(), 0);
        machine.crash().await;
        sleep(Duration::from_secs(1)).await;
        cable(&theirs, "up");
        let answer = station.same_kernel(&alice()).await;
        assert!(matches!(answer, ProbeAnswer::Gone), "{answer:?}");
        let _machine = Machine::boot(&theirs);
        until(|| lines() == 1).await;
    });
}

#[test]
fn a_witness_stands_by_a_holder_that_locks_over_udp_too() {
    let (ours, theirs) = networks();
    ours.block_on(async move || {
        let station = Station::at(AT, Settings::default()).await;
        let machine = Machine::boot(&theirs);
        sleep(Duration::from_millis(300)).await;
        let lane = Lane::new(OURS.parse().unwrap(), Transport::Udp, 4);
        station.liveness.watch(&alice(), lane);
        until(|| station.liveness.0.lock().sizes().0 == 1).await;
        machine.crash().await;
    });
}

#[test]
fn a_lock_manager_that_answers_is_reachable() {
    let (ours, theirs) = networks();
    ours.block_on(async move || {
        let station = Station::at(AT, Settings::default()).await;
        let inquiry = Inquiry { question: Question::Reachable, ..same_kernel(&alice()) };
        assert_eq!(station.liveness.probe(&inquiry).await, ProbeAnswer::Silent);
        let machine = Machine::boot(&theirs);
        sleep(Duration::from_millis(300)).await;
        assert_eq!(station.liveness.probe(&inquiry).await, ProbeAnswer::Alive);
        assert_eq!(station.same_kernel(&alice()).await, ProbeAnswer::Silent);
        machine.crash().await;
        let begun = Instant::now();
        assert_eq!(station.liveness.probe(&inquiry).await, ProbeAnswer::Silent);
        assert!(begun.elapsed() < Duration::from_secs(8));
    });
}

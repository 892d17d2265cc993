//! UDP: one datagram, one call, and replies that leave from the address that was asked.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod support;

use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc;
use std::time::Duration;

use client::{Datagram, Options};
use lockkeeper_server::Limits;
use support::{PATH, TestServer, bounded, call, config, export, file, memory, open_rules, reply};
use testbed::namespace::Namespace;
use tokio::net::UdpSocket;
use tokio::time::timeout;
use wire::nfs3::*;
use wire::rpc::{Accepted, Credential};

/// A server on all addresses of one family, with a file of 100,000 bytes.
async fn serve(listen: &str) -> (TestServer, Handle, Handle) {
    let mut config = config(Limits::default());
    config.listen = listen.parse().unwrap();
    let mut rules = open_rules();
    rules.clients.push("0.0.0.0/0".parse().unwrap());
    let mut server =
        TestServer::try_start(config, vec![export(PATH, memory(), rules)]).await.unwrap();
    let ip: IpAddr = match listen.contains("::") {
        true => "::1".parse().unwrap(),
        false => "127.0.0.1".parse().unwrap(),
    };
    server.at = SocketAddr::new(ip, server.at.port());
    let root = server.root().await;
    let file = file(&server.nfs().await, &root, "f", 100_000).await;
    (server, root, file)
}

/// NULL, GETATTR, WRITE and READs, over datagrams from wherever this is called to `at`.
async fn exercise(at: SocketAddr, root: &Handle, file: &Handle) {
    let options = Options::default().user(0, 0, &[]);
    let mut datagram = Datagram::connect(at, &options).await.unwrap();
    datagram.call::<Null>(&()).await.unwrap();
    let attributes =
        datagram.call::<GetAttr>(&GetAttrArgs { object: root.clone() }).await.unwrap().unwrap();
    assert_eq!(attributes.kind, FileType::Directory);
    for count in [1, 1_000, 8 << 10, 32 << 10] {
        let args = ReadArgs { file: file.clone(), offset: 3, count };
        let read = datagram.call::<Read>(&args).await;
        let read = read.unwrap_or_else(|e| panic!("READ of {count} from {at}: {e}")).unwrap();
        assert_eq!(read.data.len(), count as usize);
        assert!(read.data.iter().all(|byte| *byte == b'x') && !read.eof);
        let write = WriteArgs {
            file: file.clone(),
            offset: 0,
            count,
            stability: Stability::Unstable,
            data: read.data,
        };
        assert_eq!(datagram.call::<Write>(&write).await.unwrap().unwrap().count, count);
    }
}

#[tokio::test]
async fn files_are_read_and_written_over_udp() {
    let (server, root, file) = serve("127.0.0.1:0").await;
    exercise(server.at, &root, &file).await;
}

#[tokio::test]
async fn files_are_read_and_written_over_udp_on_ipv6() {
    let (server, root, file) = serve("[::1]:0").await;
    exercise(server.at, &root, &file).await;
}

#[tokio::test]
async fn both_families_share_one_port() {
    let (server, root, file) = serve("[::]:0").await;
    for ip in ["127.0.0.1", "::1"] {
        let at = SocketAddr::new(ip.parse().unwrap(), server.at.port());
        exercise(at, &root, &file).await;
        support::RecordStream::connect(at).await.assert_answers_null().await;
    }
}

#[tokio::test]
async fn a_read_of_more_than_fits_is_cut_to_what_the_server_says_it_takes() {
    let (server, root, file) = serve("127.0.0.1:0").await;
    let options = Options::default().user(0, 0, &[]);
    let mut datagram = Datagram::connect(server.at, &options).await.unwrap();
    let info = datagram.call::<FsInfo>(&FsArgs { root }).await.unwrap().unwrap();
    assert_eq!((info.read_max, info.write_max), (32 << 10, 32 << 10));
    let args = ReadArgs { file, offset: 0, count: 1 << 20 };
    let read = datagram.call::<Read>(&args).await.unwrap().unwrap();
    assert_eq!((read.data.len(), read.eof), (32 << 10, false));
}

#[test]
fn files_are_read_and_written_over_a_network_with_small_packets() {
    let (here, there) = Namespace::pair().unwrap();
    let (ready, started) = mpsc::channel();
    let (finish, finished) = tokio::sync::oneshot::channel::<()>();
    let server = here.spawn(async move || {
        let (server, root, file) = serve("[::]:0").await;
        ready.send((server.at.port(), root, file)).unwrap();
        let _ = finished.await;
    });
    let (port, root, file) = started.recv().unwrap();
    there.block_on(async move || {
        for ip in ["10.99.0.1", "fd99::1"] {
            let at = SocketAddr::new(ip.parse().unwrap(), port);
            // With one packet lost all of a datagram is lost, so this also shows that none is.
            bounded("datagrams in fragments", exercise(at, &root, &file)).await;
        }
    });
    drop(finish);
    server.join().unwrap();
}

#[tokio::test]
async fn a_reply_leaves_from_the_address_that_was_asked() {
    let (server, ..) = serve("[::]:0").await;
    let null = call::<Null>(1, &Credential::None, &());
    for (bind, asked) in [
        ("127.0.0.1:0", "127.0.0.2"),
        ("127.0.0.1:0", "127.1.2.3"),
        ("127.0.0.5:0", "127.0.0.1"),
        ("[::1]:0", "::1"),
    ] {
        let socket = UdpSocket::bind(bind).await.unwrap();
        let to = SocketAddr::new(asked.parse().unwrap(), server.at.port());
        socket.send_to(&null, to).await.unwrap();
        let mut buffer = [0; 1000];
        let (length, from) = bounded("a reply", socket.recv_from(&mut buffer)).await.unwrap();
        assert_eq!(from, to);
        let answer = reply(bytes::Bytes::copy_from_slice(&buffer[..length]));
        assert_eq!(answer.verdict, Ok(Accepted::Success));
    }
}

#[tokio::test]
async fn rubbish_and_cut_calls_do_no_harm() {
    let (server, root, file) = serve("127.0.0.1:0").await;
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    socket.connect(server.at).await.unwrap();
    let whole = call::<GetAttr>(9, &Credential::None, &GetAttrArgs { object: root.clone() });
    for length in 0..whole.len() {
        socket.send(&whole[..length]).await.unwrap();
        if length >= 8 {
            let mut buffer = [0; 1000];
            let received = bounded("a refusal", socket.recv(&mut buffer)).await.unwrap();
            let answer = reply(bytes::Bytes::copy_from_slice(&buffer[..received]));
            assert_ne!(answer.verdict, Ok(Accepted::Success), "{length}");
        }
    }
    for byte in [0, 1, 0x80, 0xff] {
        socket.send(&vec![byte; 65_000]).await.unwrap();
    }
    exercise(server.at, &root, &file).await;
}

#[tokio::test]
async fn what_is_no_call_is_not_answered() {
    let (server, ..) = serve("127.0.0.1:0").await;
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    socket.connect(server.at).await.unwrap();
    // Two servers that answered each other's replies would never stop.
    let mut out = wire::Writer::new();
    wire::rpc::write_accepted(&mut out, 1, Accepted::Success);
    socket.send(&out.finish().to_bytes()).await.unwrap();
    socket.send(&[0xff; 100]).await.unwrap();
    let answer = timeout(Duration::from_millis(200), socket.recv(&mut [0; 100])).await;
    assert!(answer.is_err(), "{answer:?}");
}

#[tokio::test]
async fn many_clients_are_served_at_once() {
    let (server, root, file) = serve("127.0.0.1:0").await;
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..30 {
        let (at, root, file) = (server.at, root.clone(), file.clone());
        tasks.spawn(async move { exercise(at, &root, &file).await });
    }
    bounded("all clients", tasks.join_all()).await;
}

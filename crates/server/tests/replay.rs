//! Retransmissions: what must not be done twice is answered twice.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod support;

use std::time::Duration;

use bytes::Bytes;
use lockkeeper_server::Limits;
use support::user;
use support::{InstrumentedFs, TestServer, bounded, call, file, results, until};
use tokio::net::UdpSocket;
use tokio::time::{sleep, timeout};
use wire::nfs3::*;
use wire::rpc::Credential;

fn at(dir: &Handle, name: &str) -> DirOpArgs {
    DirOpArgs { dir: dir.clone(), name: name.as_bytes().to_vec().into() }
}

fn root() -> Credential {
    user(0, 0, &[])
}

/// One request of each kind that fails, or does more, when it is done twice.
async fn requests(server: &TestServer, xid: u32) -> Vec<(&'static str, Bytes)> {
    let nfs = server.nfs().await;
    let dir = server.root().await;
    let prefix = format!("{xid:x}");
    let name = |rest: &str| format!("{prefix}-{rest}");
    let linked = file(&nfs, &dir, &name("linked"), 4).await;
    file(&nfs, &dir, &name("removed"), 4).await;
    file(&nfs, &dir, &name("renamed"), 4).await;
    nfs.make_dir(&dir, name("removed-dir").as_bytes(), NewAttributes::default()).await.unwrap();
    let changed = nfs.attributes(&linked).await.unwrap().changed;
    let new = NewAttributes { mode: Some(0o640), ..NewAttributes::default() };
    let by = &root();
    vec![
        ("CREATE", {
            let how = CreateHow::Guarded(new);
            call::<Create>(xid, by, &CreateArgs { at: at(&dir, &name("created")), how })
        }),
        ("MKDIR", call::<MkDir>(xid, by, &MkDirArgs { at: at(&dir, &name("dir")), new })),
        ("SYMLINK", {
            let text = b"text"[..].into();
            call::<SymLink>(xid, by, &SymLinkArgs { at: at(&dir, &name("link")), new, text })
        }),
        ("MKNOD", {
            let what = Node::Fifo(new);
            call::<MkNod>(xid, by, &MkNodArgs { at: at(&dir, &name("fifo")), what })
        }),
        ("REMOVE", call::<Remove>(xid, by, &at(&dir, &name("removed")))),
        ("RMDIR", call::<RmDir>(xid, by, &at(&dir, &name("removed-dir")))),
        ("RENAME", {
            let (from, to) = (at(&dir, &name("renamed")), at(&dir, &name("new-name")));
            call::<Rename>(xid, by, &RenameArgs { from, to })
        }),
        ("LINK", {
            let args = LinkArgs { file: linked.clone(), to: at(&dir, &name("second")) };
            call::<Link>(xid, by, &args)
        }),
        // Last, because LINK changes the time that is its guard.
        ("WRITE", {
            let (stability, data) = (Stability::FileSync, Bytes::from_static(b"data"));
            let args = WriteArgs { file: linked.clone(), offset: 0, count: 4, stability, data };
            call::<Write>(xid, by, &args)
        }),
        ("SETATTR", {
            let args = SetAttrArgs { object: linked, new, guard: Some(changed) };
            call::<SetAttr>(xid, by, &args)
        }),
    ]
}

/// The status of an NFS reply.
fn status(reply: &Bytes) -> u32 {
    u32::from_be_bytes(*reply[24..].first_chunk().unwrap())
}

#[tokio::test]
async fn a_repeated_change_gets_the_first_reply_again_byte_for_byte() {
    let server = TestServer::in_memory().await;
    let mut stream = server.stream().await;
    for (name, request) in requests(&server, 0x1001).await {
        let first = stream.exchange(&request).await;
        if name != "SETATTR" {
            assert_eq!(status(&first), 0, "{name}");
        }
        for _ in 0..3 {
            assert_eq!(stream.exchange(&request).await, first, "{name}");
        }
        let mut other = server.stream().await;
        assert_eq!(other.exchange(&request).await, first, "{name} over a new connection");
    }
}

#[tokio::test]
async fn a_change_repeated_over_udp_gets_the_first_reply_again() {
    let server = TestServer::in_memory().await;
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let other = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    for (name, request) in requests(&server, 0x1002).await {
        let first = datagram(&socket, &server, &request).await;
        assert_eq!(datagram(&socket, &server, &request).await, first, "{name}");
        assert_eq!(datagram(&other, &server, &request).await, first, "{name} from another port");
    }
}

async fn datagram(socket: &UdpSocket, server: &TestServer, request: &[u8]) -> Bytes {
    socket.send_to(request, server.at).await.unwrap();
    let mut buffer = vec![0; 65_536];
    let (length, _) = bounded("a datagram", socket.recv_from(&mut buffer)).await.unwrap();
    Bytes::copy_from_slice(&buffer[..length])
}

#[tokio::test]
async fn the_same_xid_with_another_body_is_a_new_request() {
    let server = TestServer::in_memory().await;
    let nfs = server.nfs().await;
    let dir = server.root().await;
    file(&nfs, &dir, "a", 1).await;
    file(&nfs, &dir, "b", 1).await;
    let mut stream = server.stream().await;
    for name in ["a", "b"] {
        let reply = stream.exchange(&call::<Remove>(7, &root(), &at(&dir, name))).await;
        assert!(results::<Remove>(reply).is_ok(), "{name}");
        assert!(nfs.lookup(&dir, name.as_bytes()).await.is_err(), "{name} is still there");
    }
}

#[tokio::test]
async fn the_same_xid_by_another_caller_is_a_new_request() {
    let server = TestServer::in_memory().await;
    let dir = server.root().await;
    let how = CreateHow::Guarded(NewAttributes::default());
    let args = CreateArgs { at: at(&dir, "mine"), how };
    let mut stream = server.stream().await;
    let first = stream.exchange(&call::<Create>(7, &user(1, 1, &[]), &args)).await;
    assert!(results::<Create>(first).is_ok());
    let second = stream.exchange(&call::<Create>(7, &user(2, 2, &[]), &args)).await;
    assert_eq!(results::<Create>(second).unwrap_err().0, Status::Exist);
}

#[tokio::test]
async fn a_long_write_that_differs_at_its_end_is_a_new_request() {
    let server = TestServer::in_memory().await;
    let (nfs, dir) = (server.nfs().await, server.root().await);
    let file = file(&nfs, &dir, "f", 1).await;
    let mut stream = server.stream().await;
    let mut data = vec![b'a'; 100_000];
    for last in [b'a', b'b'] {
        *data.last_mut().unwrap() = last;
        let args = WriteArgs {
            file: file.clone(),
            offset: 0,
            count: data.len() as u32,
            stability: Stability::Unstable,
            data: data.clone().into(),
        };
        let reply = stream.exchange(&call::<Write>(7, &root(), &args)).await;
        assert!(results::<Write>(reply).is_ok());
    }
    let read = nfs.read(&file, 99_999, 1).await.unwrap();
    assert_eq!(&read.data[..], b"b");
}

#[tokio::test]
async fn a_request_in_progress_is_not_started_twice_and_answers_on_the_newer_connection_too() {
    let filesystem = InstrumentedFs::new();
    let server = TestServer::start(filesystem.clone(), Limits::default()).await;
    let (nfs, dir) = (server.nfs().await, server.root().await);
    file(&nfs, &dir, "victim", 1).await;
    let request = call::<Remove>(7, &root(), &at(&dir, "victim"));
    filesystem.hold("remove");
    let mut old = server.stream().await;
    old.send_record(&request).await;
    until("REMOVE was begun", || filesystem.started("remove") == 1).await;
    old.send_record(&request).await;
    let mut new = server.stream().await;
    new.send_record(&request).await;
    // Enough time for a second start, if there were one.
    sleep(Duration::from_millis(100)).await;
    filesystem.release("remove");
    let reply = new.receive().await.expect("no reply on the new connection");
    assert!(results::<Remove>(reply.clone()).is_ok());
    assert_eq!(old.receive().await.unwrap(), reply);
    assert_eq!(filesystem.started("remove"), 1);
    let more = timeout(Duration::from_millis(50), old.stream.readable()).await;
    assert!(more.is_err(), "the old connection got the reply twice");
}

#[tokio::test]
async fn the_reply_reaches_the_newest_connection_however_many_were_lost_before() {
    let filesystem = InstrumentedFs::new();
    let server = TestServer::start(filesystem.clone(), Limits::default()).await;
    let dir = server.root().await;
    let new = NewAttributes::default();
    let request = call::<MkDir>(7, &root(), &MkDirArgs { at: at(&dir, "d"), new });
    filesystem.hold("make_dir");
    for _ in 0..20 {
        let mut stream = server.stream().await;
        stream.send_record(&request).await;
        stream.assert_answers_null().await;
    }
    let mut last = server.stream().await;
    last.send_record(&request).await;
    last.assert_answers_null().await;
    filesystem.release("make_dir");
    let reply = last.receive().await.expect("closed");
    assert!(results::<MkDir>(reply).is_ok());
    assert_eq!(filesystem.started("make_dir"), 1);
}

#[tokio::test]
async fn a_client_that_reconnects_while_its_request_is_held_gets_the_reply() {
    let filesystem = InstrumentedFs::new();
    let server = TestServer::start(filesystem.clone(), Limits::default()).await;
    let dir = server.root().await;
    let new = NewAttributes::default();
    let request = call::<MkDir>(7, &root(), &MkDirArgs { at: at(&dir, "d"), new });
    filesystem.hold("make_dir");
    let mut first = server.stream().await;
    first.send_record(&request).await;
    until("MKDIR was begun", || filesystem.started("make_dir") == 1).await;
    drop(first);
    let mut second = server.stream().await;
    second.send_record(&request).await;
    second.assert_answers_null().await;
    filesystem.release("make_dir");
    assert!(results::<MkDir>(second.receive().await.unwrap()).is_ok());
    assert_eq!(filesystem.started("make_dir"), 1);
}

#[tokio::test]
async fn the_cache_forgets_the_oldest_and_stays_small() {
    let limits = Limits { duplicates_per_peer_max: 10, ..Limits::default() };
    let filesystem = InstrumentedFs::new();
    let server = TestServer::start(filesystem.clone(), limits).await;
    let dir = server.root().await;
    let mut stream = server.stream().await;
    let new = NewAttributes::default();
    let request =
        |n: u32| call::<MkDir>(n, &root(), &MkDirArgs { at: at(&dir, &format!("d{n}")), new });
    for n in 0..200 {
        assert!(results::<MkDir>(stream.exchange(&request(n)).await).is_ok());
    }
    assert_eq!(filesystem.started("make_dir"), 200);
    for n in 190..200 {
        assert!(results::<MkDir>(stream.exchange(&request(n)).await).is_ok(), "{n} is forgotten");
    }
    assert_eq!(filesystem.started("make_dir"), 200);
    for n in 0..190 {
        let again = results::<MkDir>(stream.exchange(&request(n)).await);
        assert_eq!(again.unwrap_err().0, Status::Exist, "{n} is remembered");
    }
}

#[tokio::test]
async fn the_cache_is_bounded_in_bytes() {
    let limits = Limits { duplicates_bytes_max: 8192, ..Limits::default() };
    let filesystem = InstrumentedFs::new();
    let server = TestServer::start(filesystem.clone(), limits).await;
    let dir = server.root().await;
    let mut stream = server.stream().await;
    let new = NewAttributes::default();
    let mut bytes = 0;
    for n in 0..100 {
        let args = MkDirArgs { at: at(&dir, &format!("d{n}")), new };
        bytes += stream.exchange(&call::<MkDir>(n, &root(), &args)).await.len();
    }
    let kept = 8192 * 100 / bytes as u32;
    for n in (0..100).rev() {
        let args = MkDirArgs { at: at(&dir, &format!("d{n}")), new };
        let before = filesystem.started("make_dir");
        stream.exchange(&call::<MkDir>(n, &root(), &args)).await;
        let again = filesystem.started("make_dir") > before;
        if n + 1 > 100 - kept {
            assert!(!again, "{n} is forgotten, of {kept} that fit");
        }
        if n < 100 - kept - 2 {
            assert!(again, "{n} is remembered, though only {kept} fit");
        }
    }
}

#[tokio::test]
async fn writes_do_not_push_other_replies_out() {
    let limits = Limits { duplicates_max: 100, ..Limits::default() };
    let server = TestServer::start(support::memory(), limits).await;
    let (nfs, dir) = (server.nfs().await, server.root().await);
    let target = file(&nfs, &dir, "f", 1).await;
    file(&nfs, &dir, "victim", 1).await;
    let mut stream = server.stream().await;
    let remove = call::<Remove>(7, &root(), &at(&dir, "victim"));
    let first = stream.exchange(&remove).await;
    for n in 0..500 {
        let data = Bytes::from_static(b"data");
        nfs.write(&target, n, data, Stability::Unstable).await.unwrap();
    }
    assert_eq!(stream.exchange(&remove).await, first);
}

/// Sends requests as datagrams from this address, without waiting for their replies.
async fn flood(server: &TestServer, from: &str, dir: &Handle, count: u32) {
    let socket = UdpSocket::bind((from, 0)).await.unwrap();
    for n in 0..count {
        let remove = call::<Remove>(n, &root(), &at(dir, "nothing"));
        socket.send_to(&remove, server.at).await.unwrap();
        if n.is_multiple_of(64) {
            // The reply to one of them: the server has come so far.
            let mut reply = [0; 512];
            let _ = timeout(Duration::from_millis(20), socket.recv(&mut reply)).await;
        }
    }
}

#[tokio::test]
async fn nobody_makes_the_cache_forget_what_another_asked() {
    let limits = Limits { duplicates_max: 1000, duplicates_per_peer_max: 400, ..Limits::default() };
    let networks = ["127.0.0.1/32", "127.0.0.3/32"].map(|network| network.parse().unwrap());
    let rules = support::open_rules().with_clients(networks.to_vec());
    let exports = vec![support::export(support::PATH, support::memory(), rules)];
    let server = TestServer::try_start(support::config(limits), exports).await.unwrap();
    let (nfs, dir) = (server.nfs().await, server.root().await);
    file(&nfs, &dir, "victim", 1).await;
    let mut stream = server.stream().await;
    let remove = call::<Remove>(7, &root(), &at(&dir, "victim"));
    let first = stream.exchange(&remove).await;
    assert_eq!(status(&first), 0);
    // A stranger, and a client that is admitted.
    for from in ["127.0.0.2", "127.0.0.3"] {
        flood(&server, from, &dir, 3000).await;
        assert_eq!(stream.exchange(&remove).await, first, "{from} made it forget");
    }
    // There is room for others, too.
    let create = call::<MkDir>(
        8,
        &root(),
        &MkDirArgs { at: at(&dir, "new"), new: NewAttributes::default() },
    );
    assert_eq!(status(&stream.exchange(&create).await), 0);
}

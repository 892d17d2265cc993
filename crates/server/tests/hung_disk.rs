//! A file system that hangs: its own clients wait, and nobody else (B7.80 to B7.88).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use client::nfs::Nfs;
use client::{Connection, Locker, Options, mount};
use lockkeeper_server::Limits;
use support::*;
use testbed::peer::{UdpCaller, marked};
use testbed::process::own_resident_kilobytes;
use tokio::io::AsyncWriteExt;
use tokio::time::{sleep, timeout};
use vfs::FileSystemId;
use wire::mount::Mnt;
use wire::nfs3::*;
use wire::nlm::TestOutcome;
use wire::rpc::Credential;

const HEALTHY: &str = "/healthy";
/// Longer than it takes to notice that a file system is stalled.
const NOTICED: Duration = Duration::from_secs(4);
/// What a call to a healthy file system may take, with other tests on the machine.
const IN_TIME: Duration = Duration::from_secs(2);

/// A server with a file system that hangs on demand, and one that does not.
struct World {
    hangs: Arc<InstrumentedFs>,
    healthy: Arc<InstrumentedFs>,
    server: TestServer,
    /// A file on the file system that hangs, and the root and a file of the other.
    victim: Handle,
    root: Handle,
    file: Handle,
    xid: AtomicU32,
}

impl World {
    async fn new(limits: Limits) -> Self {
        let hangs = InstrumentedFs::with_id(1);
        let healthy = InstrumentedFs::with_id(2);
        let exports = vec![
            export(PATH, hangs.clone(), open_rules()),
            export(HEALTHY, healthy.clone(), open_rules()),
        ];
        let server = TestServer::try_start(config(limits), exports).await.unwrap();
        let nfs = server.nfs().await;
        let victim = support::file(&nfs, &server.root().await, "victim", 100).await;
        let root = mount::mount(&server.connect().await, HEALTHY).await.unwrap();
        let file = support::file(&nfs, &root, "file", 100).await;
        Self { hangs, healthy, server, victim, root, file, xid: AtomicU32::new(1000) }
    }

    /// A WRITE to the file system that hangs, with a transaction id of its own.
    fn write(&self, size: usize) -> Vec<u8> {
        let xid = self.xid.fetch_add(1, Ordering::Relaxed);
        call::<Write>(xid, &user(0, 0, &[]), &self.write_args(size)).to_vec()
    }

    fn write_args(&self, size: usize) -> WriteArgs {
        WriteArgs {
            file: self.victim.clone(),
            offset: 0,
            count: size as u32,
            stability: Stability::Unstable,
            data: Bytes::from(vec![b'y'; size]),
        }
    }

    /// Sends that many WRITEs to the file system that hangs. Gives up when the server reads no more.
    async fn hang(&self, stream: &mut RecordStream, count: usize, size: usize) {
        self.hangs.hold("write");
        for _ in 0..count {
            let write = marked(&self.write(size));
            let sent = stream.stream.write_all(&write);
            if timeout(Duration::from_millis(500), sent).await.is_err() {
                return;
            }
        }
    }

    /// Uses the healthy file system as several programs, in time.
    async fn use_the_healthy_one(&self, connection: Connection) {
        let nfs = Nfs(connection.clone());
        let data = Bytes::from_static(b"data");
        in_time("WRITE", nfs.write(&self.file, 0, data, Stability::Unstable)).await.unwrap();
        let list = ReadDirArgs { dir: self.root.clone(), cookie: 0, verifier: [0; 8], count: 4096 };
        in_time("READDIR", connection.call::<ReadDir>(&list)).await.unwrap().unwrap();
        in_time("MNT", mount::mount(&connection, HEALTHY)).await.unwrap();
        let locker = Locker::new(connection, "client", 1);
        let tested = in_time("NLM TEST", locker.test(&self.file, range(0, 1))).await.unwrap();
        assert_eq!(tested, TestOutcome::Other(wire::nlm::Status::Granted));
    }
}

async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> T {
    let outcome = timeout(IN_TIME, future).await;
    outcome.unwrap_or_else(|_| panic!("{what} was not answered within {IN_TIME:?}"))
}

fn status_of_write(reply: Bytes) -> Status {
    results::<Write>(reply).map_or_else(|refused| refused.0, |_| Status::Ok)
}

#[tokio::test]
async fn seventy_writes_to_a_hung_file_system_do_not_stop_others() {
    let world = World::new(Limits::default()).await;
    let mut stream = world.server.stream().await;
    world.hang(&mut stream, 70, 100).await;
    until("its share runs", || world.hangs.running("write") == 32).await;
    world.use_the_healthy_one(world.server.connect().await).await;
    world.hangs.release("write");
    for _ in 0..70 {
        assert_eq!(
            status_of_write(bounded("a reply", stream.receive()).await.unwrap()),
            Status::Ok
        );
    }
}

#[tokio::test]
async fn a_connection_full_of_calls_that_hang_serves_other_file_systems_again() {
    let world = World::new(Limits::default()).await;
    let mut stream = world.server.stream().await;
    // As many as may be in flight: a client has one connection for all its mounts.
    world.hang(&mut stream, 128, 100).await;
    sleep(NOTICED).await;
    let getattr =
        call::<GetAttr>(500, &Credential::None, &GetAttrArgs { object: world.root.clone() });
    assert_eq!(reply(in_time("GETATTR", stream.exchange(&getattr)).await).xid, 500);
    let mkdir = |name: &'static str| MkDirArgs {
        at: DirOpArgs { dir: world.root.clone(), name: name.as_bytes().to_vec().into() },
        new: NewAttributes::default(),
    };
    let made = call::<MkDir>(501, &user(0, 0, &[]), &mkdir("a"));
    assert!(results::<MkDir>(in_time("MKDIR", stream.exchange(&made)).await).is_ok());
    let mnt = call::<Mnt>(502, &user(0, 0, &[]), &HEALTHY.as_bytes().to_vec().into());
    assert_eq!(reply(in_time("MNT", stream.exchange(&mnt)).await).xid, 502);
    world.hangs.release("write");
    for _ in 0..128 {
        assert_eq!(
            status_of_write(bounded("a reply", stream.receive()).await.unwrap()),
            Status::Ok
        );
    }
    // The limits of the connection count as before: nothing was subtracted twice.
    let begun = Instant::now();
    world.hang(&mut stream, 140, 100).await;
    let mut beyond = world.server.stream().await;
    beyond.assert_answers_null().await;
    stream.send_record(&getattr).await;
    let silent = timeout(Duration::from_millis(500), stream.receive()).await.is_err();
    // On a slow machine they may be two seconds old by now.
    assert!(silent || begun.elapsed() > Duration::from_secs(2), "beyond the limit");
    world.hangs.release("write");
}

#[tokio::test]
async fn a_stalled_file_system_asks_clients_to_come_later_and_keeps_no_more() {
    let world = World::new(Limits::default()).await;
    let mut stream = world.server.stream().await;
    world.hang(&mut stream, 64, 100).await;
    sleep(NOTICED).await;
    assert_eq!(stalled(&world), 1);
    let refused = in_time("WRITE", stream.exchange(&world.write(100))).await;
    assert_eq!(status_of_write(refused), Status::Jukebox);
    // Each procedure has results of its own for that.
    let dir = world.server.connect().await;
    let root = mount_handle(&world);
    let at = || DirOpArgs { dir: root.clone(), name: b"x"[..].into() };
    let new = NewAttributes::default;
    let made = in_time("MKDIR", dir.call::<MkDir>(&MkDirArgs { at: at(), new: new() })).await;
    assert_eq!(made.unwrap().unwrap_err().0, Status::Jukebox);
    let rename = RenameArgs { from: at(), to: at() };
    let renamed = in_time("RENAME", dir.call::<Rename>(&rename)).await;
    assert_eq!(renamed.unwrap().unwrap_err().0, Status::Jukebox);
    let link = LinkArgs { file: world.victim.clone(), to: at() };
    let linked = in_time("LINK", dir.call::<Link>(&link)).await;
    assert_eq!(linked.unwrap().unwrap_err().0, Status::Jukebox);
    let object = world.victim.clone();
    let found = in_time("GETATTR", dir.call::<GetAttr>(&GetAttrArgs { object })).await;
    assert_eq!(found.unwrap().unwrap_err().0, Status::Jukebox);
    world.use_the_healthy_one(world.server.connect().await).await;
    // When a call ends, calls are served again.
    world.hangs.release("write");
    for _ in 0..64 {
        bounded("a reply", stream.receive()).await.unwrap();
    }
    let written = in_time("WRITE", stream.exchange(&world.write(100))).await;
    assert_eq!(status_of_write(written), Status::Ok);
    assert_eq!(stalled(&world), 0);
}

fn stalled(world: &World) -> u64 {
    world.server.control.metrics().unwrap().stalled_file_systems.get()
}

/// The root of the file system that hangs.
fn mount_handle(world: &World) -> Handle {
    use vfs::{FileKey, FileSystem};
    let file = FileKey { filesystem: FileSystemId(1), object: world.hangs.root() };
    let id = vfs::Export::id_of_path(PATH.as_bytes());
    Handle(Bytes::copy_from_slice(key().sign(id, &file).as_bytes()))
}

#[tokio::test]
async fn mounts_and_locks_of_a_stalled_file_system_wait_and_are_answered() {
    let world = World::new(Limits::default()).await;
    let mut stream = world.server.stream().await;
    world.hang(&mut stream, 64, 100).await;
    for operation in ["lookup", "attributes", "access"] {
        world.hangs.hold(operation);
    }
    sleep(NOTICED).await;
    let connection = world.server.connect().await;
    let mounted = tokio::spawn({
        let connection = connection.clone();
        async move { mount::mount(&connection, PATH).await.is_ok() }
    });
    let tested = tokio::spawn({
        let options = Options::default().user(1000, 1000, &[]);
        let locker = Locker::new(world.server.connect_as(&options).await, "client", 1);
        let victim = world.victim.clone();
        async move { locker.test(&victim, range(0, 1)).await }
    });
    sleep(Duration::from_millis(500)).await;
    assert!(!mounted.is_finished() && !tested.is_finished());
    for operation in ["write", "lookup", "attributes", "access"] {
        world.hangs.release(operation);
    }
    assert!(in_time("MNT", mounted).await.unwrap());
    let tested = in_time("NLM TEST", tested).await.unwrap().unwrap();
    assert_eq!(tested, TestOutcome::Other(wire::nlm::Status::Granted));
}

#[tokio::test]
async fn a_repeat_of_a_call_that_a_worker_has_takes_no_second_worker() {
    let world = World::new(Limits::default()).await;
    world.hangs.hold("read_dir");
    let list = ReadDirArgs { dir: mount_handle(&world), cookie: 0, verifier: [0; 8], count: 4096 };
    let list = call::<ReadDir>(7, &user(0, 0, &[]), &list);
    let mut streams = Vec::new();
    for _ in 0..3 {
        let mut stream = world.server.stream().await;
        stream.send_record(&list).await;
        stream.send_record(&list).await;
        // In order, so that all have arrived.
        stream.assert_answers_null().await;
        streams.push(stream);
    }
    until("READDIR started", || world.hangs.running("read_dir") == 1).await;
    sleep(Duration::from_millis(100)).await;
    assert_eq!(world.hangs.started("read_dir"), 1);
    world.hangs.release("read_dir");
    for stream in &mut streams {
        let listed = bounded("a reply", stream.receive()).await.unwrap();
        assert!(results::<ReadDir>(listed).is_ok());
        // One reply for each connection, and nothing is kept: the next one runs.
        stream.assert_answers_null().await;
    }
    assert!(results::<ReadDir>(streams[0].exchange(&list).await).is_ok());
    assert_eq!(world.hangs.started("read_dir"), 2);
}

#[tokio::test]
async fn a_file_system_that_has_nothing_now_is_answered_and_not_dropped() {
    let world = World::new(Limits::default()).await;
    let connection = world.server.connect().await;
    for error in [vfs::Error::WouldBlock, vfs::Error::TryLater] {
        for operation in ["write", "attributes", "access", "read_dir"] {
            world.hangs.set_error(operation, error);
        }
        let nfs = Nfs(connection.clone());
        let written = nfs.write(&world.victim, 0, Bytes::from_static(b"x"), Stability::Unstable);
        let refused = in_time("WRITE", written).await.unwrap_err();
        assert!(refused.to_string().to_lowercase().contains("jukebox"), "{refused}");
        let object = world.victim.clone();
        let found = in_time("GETATTR", connection.call::<GetAttr>(&GetAttrArgs { object })).await;
        assert_eq!(found.unwrap().unwrap_err().0, Status::Jukebox);
        let list =
            ReadDirArgs { dir: mount_handle(&world), cookie: 0, verifier: [0; 8], count: 4096 };
        let listed = in_time("READDIR", connection.call::<ReadDir>(&list)).await;
        assert_eq!(listed.unwrap().unwrap_err().0, Status::Jukebox);
        assert!(in_time("MNT", mount::mount(&connection, PATH)).await.is_err());
        let locker = Locker::new(connection.clone(), "client", 1);
        let locked = in_time("LOCK", locker.lock(&world.victim, range(0, 1))).await;
        assert_eq!(locked.unwrap(), wire::nlm::Status::DeniedGracePeriod);
        let tested = in_time("TEST", locker.test(&world.victim, range(0, 1))).await.unwrap();
        assert_eq!(tested, TestOutcome::Other(wire::nlm::Status::DeniedGracePeriod));
    }
}

/// How many small WRITEs to the healthy file system are answered within a second.
async fn throughput(world: &World) -> usize {
    let nfs = world.server.nfs().await;
    let mut writers = tokio::task::JoinSet::new();
    let until = Instant::now() + Duration::from_secs(1);
    for _ in 0..16 {
        let (nfs, file) = (Nfs(nfs.0.clone()), world.file.clone());
        writers.spawn(async move {
            let mut count = 0;
            while Instant::now() < until {
                let data = Bytes::from_static(b"data");
                nfs.write(&file, 0, data, Stability::Unstable).await.unwrap();
                count += 1;
            }
            count
        });
    }
    writers.join_all().await.into_iter().sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_healthy_file_system_keeps_its_throughput_while_another_hangs() {
    let world = World::new(Limits::default()).await;
    // As a disk that takes a while, so that the number of threads matters.
    world.healthy.delay("write", Duration::from_millis(2));
    throughput(&world).await;
    let before = throughput(&world).await;
    let mut streams = Vec::new();
    for _ in 0..4 {
        let mut stream = world.server.stream().await;
        world.hang(&mut stream, 100, 100).await;
        streams.push(stream);
    }
    until("its share runs", || world.hangs.running("write") == 32).await;
    let during = throughput(&world).await;
    sleep(NOTICED).await;
    let stalled = throughput(&world).await;
    println!("{before} WRITEs/s without, {during} with a file system that hangs, {stalled} later");
    assert!(5 * during >= before && 5 * stalled >= before, "{before}, {during}, {stalled}");
    world.hangs.release("write");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hung_file_system_takes_no_more_memory_than_its_part() {
    let total = 64 << 20;
    let limits = Limits { total_bytes_max: total, ..Limits::default() };
    let world = World::new(limits).await;
    let before = own_resident_kilobytes().unwrap();
    let mut streams = Vec::new();
    for _ in 0..6 {
        let mut stream = world.server.stream().await;
        world.hang(&mut stream, 30, 1 << 20).await;
        // Replies that ask to come later must not pile up unread.
        while let Ok(Some(reply)) = timeout(Duration::from_millis(50), stream.receive()).await {
            assert_eq!(status_of_write(reply), Status::Jukebox);
        }
        streams.push(stream);
    }
    let grown = (own_resident_kilobytes().unwrap() - before) >> 10;
    println!("{grown} MiB more for 180 MiB of WRITEs");
    // The part of the file system, and as much again for buffers and this test's own.
    assert!(grown < 2 * (total >> 20), "{grown} MiB");
    world.use_the_healthy_one(world.server.connect().await).await;
    world.hangs.release("write");
}

#[tokio::test]
async fn datagrams_are_served_while_as_many_as_may_be_in_flight_hang() {
    let world = World::new(Limits::default()).await;
    let loopback = world.server.at.ip();
    let caller = UdpCaller::bind(loopback, 0, world.server.at).await;
    world.hangs.hold("write");
    for xid in 0..128 {
        caller.send::<Write>(xid, &world.write_args(100)).await;
    }
    until("its share runs", || world.hangs.running("write") == 32).await;
    sleep(NOTICED).await;
    let at = DirOpArgs { dir: world.root.clone(), name: b"d"[..].into() };
    caller.send::<MkDir>(1000, &MkDirArgs { at, new: NewAttributes::default() }).await;
    let made = in_time("MKDIR", caller.reply(1000)).await;
    assert!(results::<MkDir>(made).is_ok());
    world.hangs.release("write");
    caller.reply(0).await;
}

#[tokio::test]
async fn calls_of_an_owner_behind_one_that_hangs_do_not_fill_the_connection() {
    let limits = Limits { requests_in_flight_max: 4, ..Limits::default() };
    let world = World::new(limits).await;
    world.hangs.hold("access");
    let options = Options::default().user(1000, 1000, &[]);
    let connection = world.server.connect_as(&options).await;
    let locker = Locker::new(connection.clone(), "client", 1);
    let victim = world.victim.clone();
    let locked = tokio::spawn({
        let (locker, victim) = (locker.clone(), victim.clone());
        async move { locker.lock(&victim, range(0, 1)).await }
    });
    until("LOCK started", || world.hangs.running("access") == 1).await;
    let mut unlocked = Vec::new();
    // As many as fit beside the LOCK; and when those no longer count, more.
    for count in [3, 4] {
        for _ in 0..count {
            let (locker, victim) = (locker.clone(), victim.clone());
            unlocked.push(tokio::spawn(async move { locker.unlock(&victim, range(0, 1)).await }));
        }
        sleep(NOTICED).await;
        let found = GetAttrArgs { object: world.root.clone() };
        in_time("GETATTR", connection.call::<GetAttr>(&found)).await.unwrap().unwrap();
    }
    assert!(!locked.is_finished() && unlocked.iter().all(|unlock| !unlock.is_finished()));
    world.hangs.release("access");
    for unlock in unlocked {
        in_time("UNLOCK", unlock).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_rename_to_a_file_system_that_hangs_is_refused_without_asking_it() {
    let world = World::new(Limits::default()).await;
    for operation in ["attributes", "rename", "lookup", "access"] {
        world.hangs.hold(operation);
    }
    let connection = world.server.connect().await;
    let at = |dir: Handle| DirOpArgs { dir, name: b"file"[..].into() };
    let rename = RenameArgs { from: at(world.root.clone()), to: at(mount_handle(&world)) };
    let renamed = in_time("RENAME", connection.call::<Rename>(&rename)).await.unwrap();
    assert_eq!(renamed.unwrap_err().0, Status::XDev);
    let link = LinkArgs { file: world.file.clone(), to: at(mount_handle(&world)) };
    let linked = in_time("LINK", connection.call::<Link>(&link)).await.unwrap();
    assert_eq!(linked.unwrap_err().0, Status::XDev);
}

#[tokio::test]
async fn no_call_reaches_a_file_system_that_may_block_on_a_network_thread() {
    // The test's runtime has one thread, which is the server's network thread as well.
    let world = World::new(Limits::default()).await;
    let here = std::thread::current().id();
    world.hangs.forbid(here);
    let connection = world.server.connect().await;
    let nfs = Nfs(connection.clone());
    let root = mount::mount(&connection, PATH).await.unwrap();
    let file = support::file(&nfs, &root, "another", 10).await;
    nfs.attributes(&file).await.unwrap();
    nfs.lookup(&root, b"another").await.unwrap();
    nfs.read(&file, 0, 10).await.unwrap();
    nfs.commit(&file).await.unwrap();
    let object = file.clone();
    connection.call::<Access>(&AccessArgs { object, access: 63 }).await.unwrap().unwrap();
    connection.call::<FsStat>(&FsArgs { root: root.clone() }).await.unwrap().unwrap();
    connection.call::<FsInfo>(&FsArgs { root: root.clone() }).await.unwrap().unwrap();
    connection.call::<PathConf>(&FsArgs { root: root.clone() }).await.unwrap().unwrap();
    let list = ReadDirPlusArgs {
        dir: root.clone(),
        cookie: 0,
        verifier: [0; 8],
        dir_count: 4096,
        max_count: 8192,
    };
    connection.call::<ReadDirPlus>(&list).await.unwrap().unwrap();
    let options = Options::default().user(1000, 1000, &[]);
    let locker = Locker::new(world.server.connect_as(&options).await, "client", 1);
    locker.test(&file, range(0, 1)).await.unwrap();
    locker.lock(&file, range(0, 1)).await.unwrap();
    locker.unlock(&file, range(0, 1)).await.unwrap();
    nfs.remove(&root, b"another").await.unwrap();
    assert!(world.hangs.started("attributes") > 0);
}

#[tokio::test]
async fn a_connection_with_a_call_that_hangs_is_not_idle() {
    let limits = Limits { idle_max: Duration::from_millis(500), ..Limits::default() };
    let world = World::new(limits).await;
    let mut stream = world.server.stream().await;
    world.hang(&mut stream, 1, 100).await;
    sleep(NOTICED).await;
    world.hangs.release("write");
    let written = in_time("WRITE", stream.receive()).await.expect("the connection was closed");
    assert_eq!(status_of_write(written), Status::Ok);
    stream.assert_closed().await;
}

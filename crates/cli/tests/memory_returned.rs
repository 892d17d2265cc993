//! After a peak the server returns memory to the system (B7.92): replies that many clients do not read, then the
//! end of these clients.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod support;

use std::fs;
use std::net::SocketAddr;
use std::time::Instant;

use client::nfs::Nfs;
use client::{Connection, Options, mount};
use support::PROGRAM;
use testbed::peer::{call, marked, raise_descriptor_limit, user};
use testbed::ports::free_port;
use testbed::server::{Server, serve};
use testbed::wait::until;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpSocket;
use wire::nfs3::{Read, ReadArgs};

const READERS: usize = 400;
/// What an allocator may keep, and a margin.
const KEPT_MAX: usize = 128 << 20;

fn resident(process: u32) -> usize {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

/// B7.92
#[tokio::test(flavor = "multi_thread")]
async fn memory_is_returned_after_a_peak() {
    raise_descriptor_limit();
    let home = tempfile::tempdir().unwrap();
    let at = SocketAddr::new([127, 0, 0, 1].into(), free_port().unwrap());
    let program = std::env::var("LOCKKEEPER_SERVER").unwrap_or_else(|_| PROGRAM.into());
    let mut command = serve(program, home.path(), at);
    let export = home.path().join("export");
    fs::create_dir(&export).unwrap();
    fs::write(home.path().join("lockkeeper.toml"), "").unwrap();
    command.args(["--admin", "off", "-c"]).arg(home.path().join("lockkeeper.toml"));
    fs::write(export.join("f"), vec![7; 1 << 20]).unwrap();
    let server = Server::start(command.arg(&export), &home.path().join("log")).unwrap();

    let options = Options::default().user(1000, 1000, &[]);
    let connection = Connection::connect(at, &options).await.unwrap();
    let root = mount::mount(&connection, export.to_str().unwrap()).await.unwrap();
    let file = Nfs(connection).lookup_path(&root, b"f").await.unwrap();
    let before = resident(server.id());

    let mut readers = Vec::new();
    for _ in 0..READERS {
        let socket = TcpSocket::new_v4().unwrap();
        // What the kernel holds is not the server's.
        socket.set_recv_buffer_size(4096).unwrap();
        let mut stream = socket.connect(at).await.unwrap();
        let args = ReadArgs { file: file.clone(), offset: 0, count: 1 << 20 };
        for xid in 0..6 {
            let read = marked(&call::<Read>(xid, &user(1000, 1000, &[]), &args));
            stream.write_all(&read).await.unwrap();
        }
        readers.push(stream);
    }
    let more = || resident(server.id()).saturating_sub(before);
    until("a peak", || more() > 3 * KEPT_MAX).await;
    let peak = more();
    drop(readers);
    let begun = Instant::now();
    until("the memory is returned", || more() < KEPT_MAX).await;
    println!(
        "{} MiB more than before at the peak, {} MiB {:.0?} after it",
        peak >> 20,
        more() >> 20,
        begun.elapsed()
    );
}

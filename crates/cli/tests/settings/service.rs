//! What is seen of sockets, ports, the store and the API.

use std::os::unix::net::UnixStream;
use std::time::Duration;

use client::{Datagram, Options};
use testbed::peer::{Host, RpcbindKind};
use testbed::wait::until;
use wire::nsm;
use wire::rpc::ProcedureId;

use crate::setup::{Setup, byte, get};

pub async fn address(setup: Setup) -> String {
    setup.start().banner("(tcp, udp) at ")
}

/// Whether NULL is answered over UDP, and what the banner says.
pub async fn datagrams(setup: Setup) -> String {
    let server = setup.start();
    let options = Options { timeout: Duration::from_millis(500), ..Options::default() };
    let mut nfs = Datagram::connect(server.address(), &options).await.unwrap();
    let null = ProcedureId::of::<wire::nfs3::Null>();
    let answered = match nfs.call_raw(null, &[]).await {
        Ok(_) => "answer",
        Err(_) => "no answer",
    };
    let transports = server.banner(" nfs mount nlm nsm on ");
    let transports = transports.split(['(', ')']).nth(1).unwrap_or_default();
    format!("{answered}, {transports}")
}

pub async fn rpcbind(mut setup: Setup) -> String {
    setup.set("rpc.rpcbind_port", "FREE");
    let seen = setup.start().banner("rpcbind: ");
    seen.split([' ', ',']).next().unwrap().to_owned()
}

pub async fn rpcbind_port(mut setup: Setup) -> String {
    setup.set("rpc.rpcbind", "'embedded'");
    let seen = setup.start().banner("rpcbind: built-in, port ");
    let given = setup.number("rpc.rpcbind_port").to_string();
    if seen == given { "the given one".into() } else { seen }
}

/// A lock makes the server look for the lock manager of its holder.
pub async fn peer_rpcbind(setup: Setup) -> String {
    let port = setup.number("rpc.peer_rpcbind_port");
    let host = Host::bind([127, 0, 0, 1].into(), port, RpcbindKind::Full).await;
    let server = setup.start();
    let file = server.file(&setup, "a").await;
    let alice = server.locker("alice").await;
    alice.lock(&file, byte(0)).await.unwrap();
    until("it is asked", || !host.lookups().is_empty()).await;
    "asked for a port".into()
}

pub async fn simulated_crash(setup: Setup) -> String {
    let server = setup.start();
    match server.monitor().await.call::<nsm::SimuCrash>(&()).await {
        Ok(()) => "answered".into(),
        Err(_) => "refused".into(),
    }
}

pub async fn store(setup: Setup) -> String {
    let server = setup.start();
    server.json("/v1/status").await["store"]["kind"].as_str().unwrap().to_owned()
}

pub async fn durability(setup: Setup) -> String {
    setup.start().banner("durability ")
}

pub async fn node(setup: Setup) -> String {
    let server = setup.start();
    let node = server.json("/v1/status").await["node"].as_str().unwrap().to_owned();
    let own = rustix::system::uname().nodename().to_string_lossy().into_owned();
    if node == own { "the host name".into() } else { node }
}

pub async fn socket(setup: Setup) -> String {
    let server = setup.start();
    let path = server.banner("\nadmin     ");
    UnixStream::connect(&path).unwrap();
    path.rsplit_once('/').unwrap().1.to_owned()
}

pub async fn web(setup: Setup) -> String {
    let server = setup.start();
    if server.banner("web http://").is_empty() {
        return "none".into();
    }
    assert_eq!(server.get("/").await.0, "200");
    "a page".into()
}

pub async fn paths(setup: Setup) -> String {
    let server = setup.start();
    // There is no such file, which only those are told who may ask.
    match server.get("/v1/locks?path=none").await.0.as_str() {
        "403" => "withheld".into(),
        "404" => "shown".into(),
        other => other.into(),
    }
}

pub async fn metrics(setup: Setup) -> String {
    setup.start().get("/metrics").await.0
}

/// Of metrics and of the page, at their address.
pub async fn metrics_alone(setup: Setup) -> String {
    let server = setup.start();
    let url = server.banner("metrics http://");
    let Some(address) = url.strip_suffix("/metrics") else { return "none".into() };
    let metrics = get(address, "/metrics").await.0;
    format!("{metrics}, {}", get(address, "/").await.0)
}

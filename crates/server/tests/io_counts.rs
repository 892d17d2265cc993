//! What is counted of the NFS calls of each client and in each export (B8.92).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod support;

use std::net::{IpAddr, Ipv4Addr};

use client::mount::mount;
use client::nfs::Nfs;
use client::{Connection, Datagram, Options};
use lockkeeper_server::{IoTotals, Limits};
use support::{InstrumentedFs, PATH, TestServer, config, export, file, memory, open_rules};
use testbed::wait::until;
use vfs::{Export, ExportAccess, Exports};
use wire::nfs3::{GetAttr, GetAttrArgs, Handle, NewAttributes, Stability};

fn address(last: u8) -> IpAddr {
    Ipv4Addr::new(127, 0, 0, last).into()
}

async fn connect(server: &TestServer, last: u8) -> Connection {
    let options = Options { source: Some(address(last)), ..Options::default().user(0, 0, &[]) };
    server.connect_as(&options).await
}

/// What a client has done so far.
fn of_client(server: &TestServer, last: u8) -> IoTotals {
    let (clients, _) = server.control.client_io(usize::MAX);
    let found = clients.into_iter().find(|client| client.address == address(last));
    found.map(|client| client.totals).unwrap_or_default()
}

fn of_export(server: &TestServer, path: &str) -> IoTotals {
    server.control.export_io()[&Export::id_of_path(path.as_bytes())]
}

#[tokio::test]
async fn calls_and_bytes_are_counted_for_their_client_and_export() {
    let server = TestServer::in_memory().await;
    let nfs = Nfs(connect(&server, 2).await);
    let root = mount(&nfs.0, PATH).await.unwrap();
    assert_eq!(of_client(&server, 2), IoTotals::default(), "MNT is no NFS call");
    let made = file(&nfs, &root, "f", 10).await;
    assert_eq!(nfs.read(&made, 4, 100).await.unwrap().data.len(), 6);
    nfs.null().await.unwrap();
    let expected =
        IoTotals { reads: 1, writes: 1, others: 1, bytes_read: 6, bytes_written: 10, errors: 0 };
    assert_eq!(of_client(&server, 2), expected);
    assert_eq!(of_export(&server, PATH), expected);
    let other = Nfs(connect(&server, 3).await);
    other.attributes(&root).await.unwrap();
    assert_eq!(of_client(&server, 3), IoTotals { others: 1, ..IoTotals::default() });
    assert_eq!(of_client(&server, 2), expected);
    assert_eq!(of_export(&server, PATH).operations(), 4);
}

/// B8.92
#[tokio::test]
async fn a_call_that_fails_moves_no_bytes_and_is_an_error() {
    let filesystem = memory();
    let read_only = open_rules().with_access(ExportAccess::ReadOnly);
    let exports =
        vec![export("/w", filesystem.clone(), open_rules()), export("/r", filesystem, read_only)];
    let server = TestServer::try_start(config(Limits::default()), exports).await.unwrap();
    let nfs = Nfs(connect(&server, 2).await);
    let root = mount(&nfs.0, "/w").await.unwrap();
    let new = NewAttributes { mode: Some(0o600), ..NewAttributes::default() };
    let closed = nfs.create(&root, b"closed", new).await.unwrap();
    nfs.write(&closed, 0, vec![b'x'; 50].into(), Stability::FileSync).await.unwrap();

    let source = Some(address(3));
    let user = Options { source, ..Options::default().user(1000, 1000, &[]) };
    let user = Nfs(server.connect_as(&user).await);
    assert!(user.read(&closed, 0, 50).await.is_err());
    let read_only = mount(&user.0, "/r").await.unwrap();
    let there = user.lookup(&read_only, b"closed").await.unwrap().object;
    assert!(user.write(&there, 0, vec![b'y'; 50].into(), Stability::FileSync).await.is_err());
    // To look for a name is no error; a handle that is not ours is one, of no export.
    assert!(user.lookup(&read_only, b"absent").await.is_err());
    assert!(user.attributes(&Handle(vec![7; 40].into())).await.is_err());
    let expected = IoTotals { reads: 1, writes: 1, others: 3, errors: 3, ..IoTotals::default() };
    assert_eq!(of_client(&server, 3), expected);
    let refused = IoTotals { writes: 1, others: 2, errors: 1, ..IoTotals::default() };
    assert_eq!(of_export(&server, "/r"), refused);
    let written = of_export(&server, "/w");
    assert_eq!((written.bytes_read, written.bytes_written, written.errors), (0, 50, 1));
}

#[tokio::test]
async fn what_was_counted_stays_when_a_connection_ends_or_the_exports_change() {
    let filesystem = memory();
    let server = TestServer::start(filesystem.clone(), Limits::default()).await;
    let nfs = Nfs(connect(&server, 2).await);
    let root = mount(&nfs.0, PATH).await.unwrap();
    nfs.attributes(&root).await.unwrap();
    drop(nfs);
    let connections = || server.control.client_io(9).0[0].connections;
    until("the connection has ended", || connections() == 0).await;
    assert_eq!(of_client(&server, 2).others, 1);
    let again = Nfs(connect(&server, 2).await);
    again.attributes(&root).await.unwrap();
    assert_eq!((of_client(&server, 2).others, connections()), (2, 1));
    let rules = open_rules().with_access(ExportAccess::ReadOnly);
    let reloaded = Exports::new(vec![export(PATH, filesystem, rules)]).unwrap();
    server.handle.replace_exports(reloaded);
    again.attributes(&root).await.unwrap();
    assert_eq!((of_client(&server, 2).others, of_export(&server, PATH).others), (3, 3));
}

#[tokio::test]
async fn datagrams_are_counted_for_their_client_too() {
    let server = TestServer::in_memory().await;
    let object = server.root().await;
    let options = Options { source: Some(address(5)), ..Options::default().user(0, 0, &[]) };
    let mut datagrams = Datagram::connect(server.at, &options).await.unwrap();
    datagrams.call::<GetAttr>(&GetAttrArgs { object }).await.unwrap().unwrap();
    let (clients, _) = server.control.client_io(9);
    let client = clients.iter().find(|client| client.address == address(5)).unwrap();
    assert_eq!((client.totals.others, client.connections), (1, 0));
}

#[tokio::test]
async fn a_call_that_goes_to_a_worker_is_counted_once() {
    let filesystem = InstrumentedFs::new();
    let server = TestServer::start(filesystem.clone(), Limits::default()).await;
    let nfs = Nfs(connect(&server, 2).await);
    let root = mount(&nfs.0, PATH).await.unwrap();
    nfs.attributes(&root).await.unwrap();
    assert_eq!(of_client(&server, 2), IoTotals { others: 1, ..IoTotals::default() });
    assert_eq!(of_export(&server, PATH), of_client(&server, 2));
}

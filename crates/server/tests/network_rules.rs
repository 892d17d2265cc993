//! Rules by network (B1.90): of one export, each client has those of the most specific network that contains
//! its address, in every service.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod support;

use std::net::Ipv4Addr;
use std::sync::Arc;

use client::mount::{MountError, mount};
use client::nfs::{Nfs, NfsError};
use client::{Connection, Locker, Options};
use lockkeeper_server::Limits;
use support::{PATH, TestServer, config, export, memory, open_rules, range};
use vfs::{Export, ExportAccess, Exports, FileSystem, RuleSet, Rules, Squash};
use wire::mount::{Exports as ListExports, MountStatus};
use wire::nfs3::{Handle, NewAttributes, Stability, Status};
use wire::nlm;

/// All of loopback reads only and is squashed, but 127.0.0.2 writes as who it is. 127.0.0.4 needs a reserved
/// port.
fn by_network() -> Vec<Rules> {
    let rules = |network: &str| open_rules().with_clients([network.parse().unwrap()]);
    let wide = rules("127.0.0.0/8")
        .with_access(ExportAccess::ReadOnly)
        .with_squash(Squash::All)
        .with_exclusive_lock(vfs::ExclusiveLock::Write);
    let trusted = rules("127.0.0.2/32");
    let reserved = rules("127.0.0.4/32").with_require_reserved_ports(true);
    vec![wide, trusted, reserved]
}

fn with(filesystem: Arc<dyn FileSystem>, rules: Vec<Rules>) -> Export {
    let rules = RuleSet::new(rules).unwrap();
    export(PATH, filesystem, open_rules()).with_rules(rules)
}

async fn serve(rules: Vec<Rules>) -> TestServer {
    let exports = vec![with(memory(), rules)];
    TestServer::try_start(config(Limits::default()), exports).await.unwrap()
}

fn from(last: u8) -> Options {
    let source = Some(Ipv4Addr::new(127, 0, 0, last).into());
    Options { source, ..Options::default().user(0, 0, &[]) }
}

async fn connect(server: &TestServer, last: u8) -> Connection {
    server.connect_as(&from(last)).await
}

fn status<T>(outcome: Result<T, NfsError>) -> Status {
    match outcome {
        Err(NfsError::Status(status)) => status,
        Err(other) => panic!("{other:?}"),
        Ok(_) => Status::Ok,
    }
}

async fn write(by: &Connection, file: &Handle) -> Status {
    let data = b"x".to_vec().into();
    status(Nfs(by.clone()).write(file, 0, data, Stability::FileSync).await)
}

#[tokio::test]
async fn each_client_has_the_rules_of_its_most_specific_network() {
    let server = serve(by_network()).await;
    let (trusted, other) = (connect(&server, 2).await, connect(&server, 3).await);
    let root = mount(&trusted, PATH).await.unwrap();
    assert_eq!(mount(&other, PATH).await.unwrap(), root, "a handle is the same by any rule");
    let new = NewAttributes { mode: Some(0o600), ..NewAttributes::default() };
    let file = Nfs(trusted.clone()).create(&root, b"f", new).await.unwrap();
    let found = Nfs(other.clone()).attributes(&file).await.unwrap();
    assert_eq!((found.uid, found.gid), (0, 0), "made by root, which is not squashed");
    assert_eq!(write(&trusted, &file).await, Status::Ok);
    assert_eq!(write(&other, &file).await, Status::RoFs);
    // Squashed: another's file of mode 600 is closed to it.
    assert_eq!(status(Nfs(trusted).read(&file, 0, 1).await), Status::Ok);
    assert_eq!(status(Nfs(other).read(&file, 0, 1).await), Status::Acces);
}

#[tokio::test]
async fn a_lock_needs_what_the_rules_of_its_client_demand() {
    let server = serve(by_network()).await;
    let root = mount(&connect(&server, 2).await, PATH).await.unwrap();
    let new = NewAttributes { mode: Some(0o666), ..NewAttributes::default() };
    let file = Nfs(connect(&server, 2).await).create(&root, b"f", new).await.unwrap();
    let lock = async |last: u8| {
        let locker = Locker::new(connect(&server, last).await, "host", 1);
        locker.lock(&file, range(last.into(), 1)).await
    };
    // Exclusive locks need write permission in the wide rule, which is read-only.
    assert_eq!(lock(3).await.unwrap(), nlm::Status::RoFs);
    assert_eq!(lock(2).await.unwrap(), nlm::Status::Granted);
    let refused = lock(4).await.unwrap_err().to_string();
    assert!(refused.contains("TooWeak"), "{refused}");
}

#[tokio::test]
async fn only_the_network_that_demands_a_reserved_port_needs_one() {
    let server = serve(by_network()).await;
    let refused = mount(&connect(&server, 4).await, PATH).await;
    assert!(matches!(refused, Err(MountError::Status(MountStatus::Perm))), "{refused:?}");
    let low = server.connect_as(&Options { reserved_port: true, ..from(4) }).await;
    let root = mount(&low, PATH).await.unwrap();
    assert_eq!(write(&low, &root).await, Status::IsDir);
    assert_eq!(mount(&connect(&server, 3).await, PATH).await.unwrap(), root);
}

#[tokio::test]
async fn the_list_of_exports_names_the_networks_of_all_rules() {
    let all = open_rules().with_clients(vfs::export::all_addresses());
    let server = serve([vec![all], by_network()].concat()).await;
    let listed = connect(&server, 2).await.call::<ListExports>(&()).await.unwrap();
    let clients: Vec<String> =
        listed.0[0].clients.iter().map(|name| String::from_utf8_lossy(name).into()).collect();
    assert_eq!(clients, ["*", "127.0.0.0/8", "127.0.0.2/32", "127.0.0.4/32"]);
}

#[tokio::test]
async fn a_reload_of_the_rules_holds_for_open_connections() {
    let filesystem = memory();
    let exports = vec![with(filesystem.clone(), by_network())];
    let server = TestServer::try_start(config(Limits::default()), exports).await.unwrap();
    let other = connect(&server, 3).await;
    let root = mount(&other, PATH).await.unwrap();
    let new = NewAttributes { mode: Some(0o666), ..NewAttributes::default() };
    let file = Nfs(connect(&server, 2).await).create(&root, b"f", new).await.unwrap();
    assert_eq!(write(&other, &file).await, Status::RoFs);
    let mut rules = by_network();
    rules[0].access = ExportAccess::ReadWrite;
    let reloaded = Exports::new(vec![with(filesystem, rules)]).unwrap();
    server.handle.replace_exports(reloaded);
    assert_eq!(write(&other, &file).await, Status::Ok);
}

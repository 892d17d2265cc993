//! Which rules a call is served by, and what is counted of it, in a server without sockets.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use bytes::Bytes;
use vfs::memory::MemoryFs;
use vfs::{
    Context, CreateMode, Export, Exports, FileKey, FileSystem, FileSystemId, HandleKey,
    NewAttributes, RuleSet, Rules, Squash,
};
use wire::nfs3::{Read, ReadArgs, Stability, Write, WriteArgs};
use wire::rpc::{self, SysCredential};

use super::*;
use crate::LockConfig;
use crate::in_process::InProcess;
use crate::io_counts::IoTotals;

/// 10.0.0.0/8 reads only and is squashed; 10.0.0.2 writes as who it is.
fn by_network() -> RuleSet {
    let rules = |network: &str| {
        let clients = [network.parse().unwrap()];
        Rules::default().with_clients(clients).with_require_reserved_ports(false)
    };
    let wide = rules("10.0.0.0/8").with_access(ExportAccess::ReadOnly).with_squash(Squash::All);
    let trusted = rules("10.0.0.2/32").with_squash(Squash::None);
    RuleSet::new(vec![wide, trusted]).unwrap()
}

/// A server, and the handle of a file of ten bytes that only root may read.
fn serve() -> (InProcess, Handle) {
    let filesystem = Arc::new(MemoryFs::new(FileSystemId(1)));
    let root = Caller::new(0, 0, &[]);
    let context = Context { caller: &root, blocking: BlockingMode::MayBlock };
    let new = NewAttributes { mode: Some(0o600), ..NewAttributes::default() };
    let mode = CreateMode::Unchecked(new);
    let made = filesystem.create(&context, &filesystem.root(), b"f", &mode).unwrap().object;
    let ten = Bytes::from_static(b"0123456789");
    filesystem.write(&context, &made, 0, &ten, vfs::Stability::Unstable).unwrap();
    let key = HandleKey::new([7; 16]);
    let file = FileKey { filesystem: FileSystemId(1), object: made };
    let handle = Handle(Bytes::copy_from_slice(key.sign(1, &file).as_bytes()));
    let export = Export::new("/srv", filesystem).with_id(1).with_rules(by_network());
    let exports = Exports::new(vec![export]).unwrap();
    (InProcess::start(exports, key, LockConfig::in_memory()).unwrap(), handle)
}

/// Calls as root of 10.0.0.`last`; the status, if the call was answered at once.
fn call<P: Procedure>(server: &InProcess, last: u8, args: &P::Args) -> Option<u32> {
    let from = SocketAddr::from(([10, 0, 0, last], 800));
    let to = SocketAddr::from(([10, 9, 9, 9], 2049));
    let machine = b"host"[..].into();
    let groups = rpc::Groups::default();
    let root = Credential::Sys(SysCredential { stamp: 0, machine, uid: 0, gid: 0, groups });
    let mut record = Writer::new();
    rpc::write_call(&mut record, last.into(), rpc::ProcedureId::of::<P>(), &root);
    args.encode(&mut record);
    let reply = server.receive(record.finish().to_bytes(), from, to)?.to_bytes();
    // After the transaction id, REPLY, MSG_ACCEPTED, an empty verifier and SUCCESS.
    Some(u32::from_be_bytes(*reply[24..].first_chunk().unwrap()))
}

fn of_client(server: &InProcess, last: u8) -> IoTotals {
    let (clients, _) = server.control().client_io(9);
    let address = IpAddr::from([10, 0, 0, last]);
    clients.into_iter().find(|it| it.address == address).map(|it| it.totals).unwrap_or_default()
}

/// B1.90, B8.92
#[tokio::test]
async fn the_rules_of_its_caller_decide_a_read_and_a_refused_one_moves_no_bytes() {
    let (server, file) = serve();
    let read = ReadArgs { file, offset: 0, count: 4 };
    assert_eq!(call::<Read>(&server, 2, &read), Some(0));
    assert_eq!(call::<Read>(&server, 3, &read), Some(Status::Acces as u32));
    let expected = IoTotals { reads: 1, bytes_read: 4, ..IoTotals::default() };
    assert_eq!(of_client(&server, 2), expected);
    let expected = IoTotals { reads: 1, errors: 1, ..IoTotals::default() };
    assert_eq!(of_client(&server, 3), expected);
}

/// B8.92
#[tokio::test]
async fn a_write_is_counted_when_a_worker_has_served_it() {
    let (server, file) = serve();
    let data = Bytes::from_static(b"abc");
    let stability = Stability::Unstable;
    let write = WriteArgs { file, offset: 0, count: 3, stability, data };
    assert_eq!(call::<Write>(&server, 2, &write), None, "served on the network thread");
    let patience = Instant::now() + Duration::from_secs(10);
    while of_client(&server, 2).bytes_written == 0 && Instant::now() < patience {
        tokio::task::yield_now().await;
    }
    let expected = IoTotals { writes: 1, bytes_written: 3, ..IoTotals::default() };
    assert_eq!(of_client(&server, 2), expected);
    assert_eq!(server.control().export_io()[&1], expected);
}

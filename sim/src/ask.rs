//! Packets in the keeper's words, and the files that they are about.

use std::net::IpAddr;
use std::time::Duration;

use keeper::bytes::{FileKey, Handle, Name};
use keeper::identity::{Caller, HostKey, Incarnation, RequestId};
use keeper::request::{
    Callback, CancelRequest, FreeAllRequest, LockRequest, MonitorRequest, OwnerName, RebootNotice,
    ShareRequest, Source, TestRequest, UnlockRequest, UnmonitorRequest, UnshareRequest,
};
use server::engine::request::Request as Asked;

use crate::packet::{Call, Request};

pub fn file_key(file: usize) -> FileKey {
    FileKey::new(&[0xf5, file as u8])
}

pub fn handle(file: usize) -> Handle {
    Handle::new(&[b'h', file as u8, 0])
}

/// What the services do: a packet becomes a question in the keeper's words. `connected` says since
/// when its connection is open.
pub fn ask(id: RequestId, request: &Request, connected: Option<Duration>) -> Asked {
    let name = request.name.clone();
    // A dual-stack socket shows an IPv4 peer under a mapped address.
    let from = match request.from {
        IpAddr::V4(v4) if request.xid.is_multiple_of(3) => IpAddr::V6(v4.to_ipv6_mapped()),
        other => other,
    };
    // Nobody in this world is the server's own machine.
    let source = Source { address: from, transport: request.lane.transport(), local: false };
    let caller = Caller { host: HostKey::new(from, name), lane: request.lane };
    let owner = OwnerName { number: request.number, tag: request.tag.clone() };
    match request.call.clone() {
        Call::Lock { file, range, mode, wait, reclaim, state } => Asked::Lock(LockRequest {
            id,
            caller,
            owner,
            file: file_key(file),
            handle: handle(file),
            range,
            mode,
            wait,
            reclaim,
            monitored: request.monitored,
            incarnation: Incarnation(state),
            form: request.form,
            stateless: request.stateless,
            connected,
        }),
        Call::Test { file, range, mode } => {
            Asked::Test(TestRequest { id, caller, owner, file: file_key(file), range, mode })
        }
        Call::Unlock { file, range } => {
            Asked::Unlock(UnlockRequest { id, caller, owner, file: file_key(file), range })
        }
        Call::Cancel { file, range, mode } => {
            Asked::Cancel(CancelRequest { id, caller, owner, file: file_key(file), range, mode })
        }
        Call::Share { file, access, deny, reclaim } => {
            let (file, tag) = (file_key(file), request.tag.clone());
            Asked::Share(ShareRequest { id, caller, tag, file, access, deny, reclaim })
        }
        Call::Unshare { file } => {
            let (file, tag) = (file_key(file), request.tag.clone());
            Asked::Unshare(UnshareRequest { id, caller, tag, file })
        }
        Call::FreeAll { name } => Asked::FreeAll(FreeAllRequest { id, source, name }),
        Call::Notify { name, state } => {
            let incarnation = Incarnation(state);
            Asked::Reboot(RebootNotice { id, source, name, incarnation })
        }
        Call::Monitor { watched } => {
            let (callback, private) = (callback(), [7; 16]);
            Asked::Monitor(MonitorRequest { id, source, callback, watched, private })
        }
        Call::Unmonitor { watched } => {
            let callback = callback();
            Asked::Unmonitor(UnmonitorRequest { id, source, callback, watched })
        }
    }
}

fn callback() -> Callback {
    Callback { name: Name::from("watcher"), program: 100_021, version: 4, procedure: 16 }
}

//! Translates packets into engine requests, as the server's services do.

use std::net::IpAddr;
use std::time::Duration;

use keeper::bytes::{FileKey, Handle, Name};
use keeper::identity::{Caller, HostKey, Incarnation, OwnerNamespace, RequestId};
use keeper::request::{
    Callback, CancelRequest, FreeAllRequest, LockRequest, MonitorRequest, OwnerName, RebootNotice,
    ShareRequest, Source, TestRequest, UnlockRequest, UnmonitorRequest, UnshareRequest,
};
use server::engine::request::Request as EngineRequest;

use crate::packet::{Call, Request};

pub(crate) fn file_key(file: usize) -> FileKey {
    FileKey::new(&[0xf5, file as u8])
}

pub(crate) fn handle(file: usize) -> Handle {
    Handle::new(&[b'h', file as u8, 0])
}

/// The engine request of a packet. `namespace` is how the server sees it, `connected` is the time at which its connection was opened.
pub(crate) fn engine_request(
    id: RequestId,
    request: &Request,
    namespace: OwnerNamespace,
    connected: Option<Duration>,
) -> EngineRequest {
    let name = request.name.clone();
    // A dual-stack socket reports an IPv4 peer by a mapped address.
    let from = match request.from {
        IpAddr::V4(v4) if request.xid.is_multiple_of(3) => IpAddr::V6(v4.to_ipv6_mapped()),
        other => other,
    };
    // No simulated host is the server's own machine.
    let source = Source {
        address: from,
        transport: request.namespace.transport(),
        local: false,
        reserved: true,
    };
    let caller = Caller { host: HostKey::new(from, name), namespace };
    let owner = OwnerName { number: request.number, tag: request.tag.clone() };
    match request.call.clone() {
        Call::Lock { file, range, mode, wait, reclaim, state } => {
            EngineRequest::Lock(LockRequest {
                id,
                caller,
                owner,
                file: file_key(file),
                handle: handle(file),
                range,
                mode,
                wait,
                reclaim,
                admitted: true,
                monitored: request.monitored,
                incarnation: Incarnation(state),
                form: request.form,
                stateless: request.stateless,
                connected,
            })
        }
        Call::Test { file, range, mode } => EngineRequest::Test(TestRequest {
            id,
            caller,
            owner,
            file: file_key(file),
            range,
            mode,
        }),
        Call::Unlock { file, range } => {
            EngineRequest::Unlock(UnlockRequest { id, caller, owner, file: file_key(file), range })
        }
        Call::Cancel { file, range, mode } => EngineRequest::Cancel(CancelRequest {
            id,
            caller,
            owner,
            file: file_key(file),
            range,
            mode,
        }),
        Call::Share { file, access, deny, reclaim } => {
            let (file, tag) = (file_key(file), request.tag.clone());
            EngineRequest::Share(ShareRequest {
                id,
                caller,
                tag,
                file,
                access,
                deny,
                reclaim,
                admitted: true,
            })
        }
        Call::Unshare { file } => {
            let (file, tag) = (file_key(file), request.tag.clone());
            EngineRequest::Unshare(UnshareRequest { id, caller, tag, file })
        }
        Call::FreeAll { name } => EngineRequest::FreeAll(FreeAllRequest { id, source, name }),
        Call::Notify { name, state } => {
            let incarnation = Incarnation(state);
            EngineRequest::Reboot(RebootNotice { id, source, name, incarnation })
        }
        Call::Monitor { watched } => {
            let (ours, callback, private) =
                (request.namespace.server_address(), callback(), [7; 16]);
            EngineRequest::Monitor(MonitorRequest { id, source, ours, callback, watched, private })
        }
        Call::Unmonitor { watched } => {
            let callback = callback();
            EngineRequest::Unmonitor(UnmonitorRequest { id, source, callback, watched })
        }
    }
}

fn callback() -> Callback {
    Callback { name: Name::from("watcher"), program: 100_021, version: 4, procedure: 16 }
}

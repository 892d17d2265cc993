//! Admission: which callers may make which calls, by address, source port and transport (B3.8,
//! B7.7). The one place for these rules; every service calls [`admit`]. No I/O.
//!
//! "Required" below means that `ports = "reserved"` is in force: for the export that a call concerns,
//! or for the server if it concerns none or one that is no longer exported.
//!
//! | call | address | source port | transport | refused by |
//! |---|---|---|---|---|
//! | NFS: GETATTR, FSSTAT, FSINFO, PATHCONF | admitted by the export | any | any | ACCES |
//! | NFS: all others; MOUNT: MNT | admitted by the export | reserved if required | any | ACCES; PERM |
//! | NLM: requests, their *_MSG forms, FREE_ALL, GRANTED_RES | any | reserved if required | any | AUTH_TOOWEAK |
//! | NSM: NOTIFY | admitted by any export, or loopback | reserved if required | any | AUTH_TOOWEAK |
//! | NSM: MON, UNMON, UNMON_ALL | as NOTIFY | as NOTIFY | TCP, or loopback | AUTH_TOOWEAK |
//! | NSM: SIMU_CRASH | loopback | reserved if required | any | AUTH_TOOWEAK |
//! | rpcbind: SET, UNSET | loopback | reserved | any | FALSE |
//! | MOUNT: DUMP, EXPORT; rpcbind: DUMP, GETADDRLIST | any | any | TCP, or loopback | PROC_UNAVAIL |
//!
//! No call of a stranger gets here (`rpc/callers.rs`): "any" is any address that an export admits or that has
//! locks, and loopback.
//!
//! The address of a caller that wants a new lock is checked together with its permission to use the
//! file (`Files::may_lock`, refused by FAILED); releasing a lock needs only the handle (B2.8).
//! FREE_ALL and GRANTED_RES need no admitted address: the keeper matches them with hosts and grants that
//! it recorded before.

use crate::transport::{Peer, Transport};

/// What a call does, as far as admission depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Reads attributes and file system properties, no contents.
    Inspect,
    /// Mounts an export, reads or changes its files.
    UseFiles,
    /// Acts on locks. A user of a host must not release or deny what its kernel holds.
    Lock,
    /// Reports a reboot of the caller's host.
    ReportReboot,
    /// Has this server call the caller later: not by datagram, whose source can be forged.
    RegisterCallback,
    /// Simulates a crash of this server.
    SimulateCrash,
    /// Changes rpcbind registrations of this host: only its administrator speaks for its services.
    ChangeRegistrations,
    /// Has a short call answered by a long reply: not by datagram, whose source can be forged.
    Dump,
}

/// Why a call is not admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotAdmitted {
    Address,
    Port,
    Transport,
}

/// Whether `peer` may perform `action`. `address_admitted`: the export in question has the peer's
/// address among its clients, or any export if the call concerns none.
pub fn admit(
    action: Action,
    peer: &Peer,
    address_admitted: bool,
    require_reserved_ports: bool,
) -> Result<(), NotAdmitted> {
    let loopback = peer.is_loopback();
    let address = match action {
        Action::Inspect | Action::UseFiles => address_admitted,
        Action::ReportReboot | Action::RegisterCallback => address_admitted || loopback,
        Action::SimulateCrash | Action::ChangeRegistrations => loopback,
        Action::Lock | Action::Dump => true,
    };
    let port = match action {
        Action::Inspect | Action::Dump => true,
        Action::ChangeRegistrations => peer.uses_reserved_port(),
        _ => !require_reserved_ports || peer.uses_reserved_port(),
    };
    let transport = match action {
        Action::RegisterCallback | Action::Dump => loopback || peer.transport == Transport::Tcp,
        _ => true,
    };
    match (address, port, transport) {
        (false, _, _) => Err(NotAdmitted::Address),
        (_, false, _) => Err(NotAdmitted::Port),
        (_, _, false) => Err(NotAdmitted::Transport),
        (true, true, true) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(remote: &str, transport: Transport) -> Peer {
        Peer::new(remote.parse().unwrap(), "10.0.0.1:2049".parse().unwrap(), transport)
    }

    /// Root and an ordinary user of another host.
    fn root_and_user() -> [Peer; 2] {
        ["10.0.0.7:700", "10.0.0.7:40000"].map(|remote| peer(remote, Transport::Tcp))
    }

    #[test]
    fn a_user_is_refused_where_reserved_ports_are_required() {
        let [root, user] = root_and_user();
        for action in
            [Action::UseFiles, Action::Lock, Action::ReportReboot, Action::RegisterCallback]
        {
            assert_eq!(admit(action, &root, true, true), Ok(()), "{action:?}");
            assert_eq!(admit(action, &user, true, true), Err(NotAdmitted::Port), "{action:?}");
            assert_eq!(admit(action, &user, true, false), Ok(()), "{action:?}");
        }
        assert_eq!(admit(Action::Inspect, &user, true, true), Ok(()));
    }

    #[test]
    fn a_host_that_no_export_admits_is_refused() {
        let [root, _] = root_and_user();
        for action in [
            Action::Inspect,
            Action::UseFiles,
            Action::ReportReboot,
            Action::RegisterCallback,
            Action::SimulateCrash,
            Action::ChangeRegistrations,
        ] {
            let refused = admit(action, &root, false, false);
            assert_eq!(refused, Err(NotAdmitted::Address), "{action:?}");
        }
        assert_eq!(admit(Action::Lock, &root, false, true), Ok(()));
    }

    #[test]
    fn this_machine_speaks_for_itself_over_loopback() {
        let root = peer("127.0.0.1:700", Transport::Udp);
        let user = peer("127.0.0.1:40000", Transport::Udp);
        for action in [
            Action::ReportReboot,
            Action::RegisterCallback,
            Action::SimulateCrash,
            Action::ChangeRegistrations,
        ] {
            assert_eq!(admit(action, &root, false, true), Ok(()), "{action:?}");
            assert_eq!(admit(action, &user, false, true), Err(NotAdmitted::Port), "{action:?}");
        }
        let refused = admit(Action::ChangeRegistrations, &user, true, false);
        assert_eq!(refused, Err(NotAdmitted::Port));
    }

    #[test]
    fn a_remote_datagram_neither_registers_nor_gets_a_long_reply() {
        let datagram = peer("10.0.0.7:700", Transport::Udp);
        for action in [Action::RegisterCallback, Action::Dump] {
            let refused = admit(action, &datagram, true, true);
            assert_eq!(refused, Err(NotAdmitted::Transport), "{action:?}");
        }
        assert_eq!(admit(Action::ReportReboot, &datagram, true, true), Ok(()));
    }
}

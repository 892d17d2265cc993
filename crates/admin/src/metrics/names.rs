//! What is counted, in the words of the metrics.

use server::meters::Fate;

use crate::api::ClientState;

pub const CLIENT_STATES: [(ClientState, &str); 7] = [
    (ClientState::Fenced, "fenced"),
    (ClientState::RebootPending, "reboot_pending"),
    (ClientState::Crashed, "crashed"),
    (ClientState::Suspect, "suspect"),
    (ClientState::Recovering, "recovering"),
    (ClientState::Active, "active"),
    (ClientState::Idle, "idle"),
];

pub const FATES: [(Fate, &str); 4] = [
    (Fate::Success, "success"),
    (Fate::NotRun, "not_run"),
    (Fate::Denied, "denied"),
    (Fate::Dropped, "dropped"),
];

/// In the order of `Asked::ALL` and `Result::ALL`.
pub const OPERATIONS: [&str; 6] = ["lock", "test", "unlock", "cancel", "share", "unshare"];
pub const RESULTS: [&str; 6] = ["granted", "denied", "blocked", "grace", "deadlock", "refused"];

/// In the order of `Program::ALL`; procedures by their numbers.
pub const PROGRAMS: [(&str, &[&str]); 5] = [
    (
        "nfs",
        &[
            "null",
            "getattr",
            "setattr",
            "lookup",
            "access",
            "readlink",
            "read",
            "write",
            "create",
            "mkdir",
            "symlink",
            "mknod",
            "remove",
            "rmdir",
            "rename",
            "link",
            "readdir",
            "readdirplus",
            "fsstat",
            "fsinfo",
            "pathconf",
            "commit",
        ],
    ),
    ("mount", &["null", "mnt", "dump", "umnt", "umntall", "export"]),
    (
        "nlm",
        &[
            "null",
            "test",
            "lock",
            "cancel",
            "unlock",
            "granted",
            "test_msg",
            "lock_msg",
            "cancel_msg",
            "unlock_msg",
            "granted_msg",
            "test_res",
            "lock_res",
            "cancel_res",
            "unlock_res",
            "granted_res",
            "other",
            "other",
            "other",
            "other",
            "share",
            "unshare",
            "nm_lock",
            "free_all",
        ],
    ),
    ("nsm", &NSM),
    (
        "rpcbind",
        &[
            "null",
            "set",
            "unset",
            "getport",
            "dump",
            "callit",
            "gettime",
            "uaddr2taddr",
            "taddr2uaddr",
            "getversaddr",
            "indirect",
            "getaddrlist",
            "getstat",
        ],
    ),
];
pub const NSM: [&str; 7] = ["null", "stat", "mon", "unmon", "unmon_all", "simu_crash", "notify"];

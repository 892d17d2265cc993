//! Error messages of `bench`, each with what to try next.

use anyhow::{Error, anyhow};
use client::mount::MountError;
use client::nfs::NfsError;
use client::rpcbind::LookupError;
use client::{CallError, Refusal};
use load::{LoadError, OpenError};
use wire::mount::MountStatus;
use wire::nfs3::Status;

use super::server_name::ServerName;

pub(super) fn advise_to_find(name: &ServerName, error: LookupError) -> Error {
    let host = &name.host;
    match &error {
        LookupError::Connect(reason) => anyhow!(
            "{host} does not answer on port 111 (rpcbind): {reason}. Check that the server is up \
             and not behind a firewall; if it has no rpcbind, use --port 2049"
        ),
        LookupError::NotRegistered { program, version, .. } => anyhow!(
            "{host} has no {} version {version}: see `rpcinfo -p {host}`, or specify the port with \
             --port",
            if *program == wire::mount::PROGRAM { "MOUNT" } else { "NFS" }
        ),
        LookupError::Call(_) | LookupError::BadAddress(_) => anyhow!(
            "rpcbind on {host} gives no usable answer ({error}): specify the port with --port 2049"
        ),
    }
}

pub(super) fn advise(name: &str, error: OpenError) -> Error {
    let advice = match &error {
        OpenError::Connect { .. } => {
            "check that the server is up and not behind a firewall; another port is set with --port"
        }
        OpenError::Mount { error: MountError::Status(status), .. } => match status {
            MountStatus::NoEnt | MountStatus::NotDir | MountStatus::Inval => {
                "no such export: see `showmount -e HOST`"
            }
            MountStatus::Acces | MountStatus::Perm => {
                "this host may not mount it: add it to the export's clients; if the server requires \
                 reserved ports, run this as root"
            }
            _ => "see the server's log",
        },
        OpenError::Mount { error: MountError::Call(error), .. } => on_call(error),
        OpenError::File { error: NfsError::Status(status), .. } => match status {
            Status::Acces | Status::Perm => {
                "no write permission: use --uid with a user who has it, or make the directory \
                 writable"
            }
            Status::RoFs => "the export is read-only: use a writable one",
            Status::NoSpc | Status::DQuot => "free some space: several files of 64 MiB are written",
            _ => "see the server's log",
        },
        OpenError::File { error: NfsError::Call(error), .. } => on_call(error),
        OpenError::File { .. } | OpenError::Wrong(_) => "the server violates the NFSv3 protocol",
    };
    anyhow!("{name}: {error}: {advice}")
}

pub(super) fn advise_on_load(error: LoadError) -> Error {
    const GRACE: u32 = wire::nlm::Status::DeniedGracePeriod as u32;
    match &error {
        LoadError::Status(operation, GRACE) if operation.locks() => {
            anyhow!("{operation}: the server is in its grace period: try again in a minute or two")
        }
        LoadError::NotRun(operation, _) if operation.locks() => anyhow!(
            "{error}: if the server requires reserved ports, run this as root; otherwise leave \
             lock-unlock out of --operations"
        ),
        LoadError::Stalled(_) | LoadError::Nothing(_) | LoadError::Call(..) => {
            anyhow!(
                "{error}: check that the server is up; if it is slow, try --shapes 1x1 --seconds 10"
            )
        }
        _ => error.into(),
    }
}

fn on_call(error: &CallError) -> &'static str {
    match error {
        CallError::Refused(Refusal::Denied(_)) => {
            "caller rejected: run this as root, for a reserved port, or allow any port (`ports = \
             \"any\"`)"
        }
        CallError::Refused(Refusal::NotRun(_)) => {
            "another program is listening there: set the port with --port or --mount-port"
        }
        _ => "no NFS server seems to be listening there: set the port with --port or --mount-port",
    }
}

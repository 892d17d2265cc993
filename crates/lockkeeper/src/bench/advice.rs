//! Why a server cannot be measured, and what to try next.

use anyhow::{Error, anyhow};
use client::mount::MountError;
use client::nfs::NfsError;
use client::rpcbind::LookupError;
use client::{CallError, Refusal};
use load::{LoadError, OpenError};
use wire::mount::MountStatus;
use wire::nfs3::Status;

use super::server_name::ServerName;

pub fn advise_to_find(name: &ServerName, error: LookupError) -> Error {
    let host = &name.host;
    match &error {
        LookupError::Connect(reason) => anyhow!(
            "{host} does not answer on port 111, where its rpcbind would be ({reason}): is the \
             server up, and no firewall between? If it has no rpcbind, name its port: --port 2049"
        ),
        LookupError::NotRegistered { program, version, .. } => anyhow!(
            "{host} has no {} version {version}: see what it has with `rpcinfo -p {host}`, or name \
             the port with --port",
            if *program == wire::mount::PROGRAM { "MOUNT" } else { "NFS" }
        ),
        LookupError::Call(_) | LookupError::BadAddress(_) => anyhow!(
            "the rpcbind of {host} gives no answer that can be used ({error}): name the port with \
             --port 2049"
        ),
    }
}

pub fn advise(name: &str, error: OpenError) -> Error {
    let advice = match &error {
        OpenError::Connect { .. } => {
            "is the server up, and no firewall between? Another port is named with --port"
        }
        OpenError::Mount { error: MountError::Status(status), .. } => match status {
            MountStatus::NoEnt | MountStatus::NotDir | MountStatus::Inval => {
                "it does not export that: see `showmount -e HOST`"
            }
            MountStatus::Acces | MountStatus::Perm => {
                "this host may not mount it: add it to the clients of the export; and if the \
                 server insists on reserved ports, run this as root"
            }
            _ => "see the log of the server",
        },
        OpenError::Mount { error: MountError::Call(error), .. } => on_call(error),
        OpenError::File { error: NfsError::Status(status), .. } => match status {
            Status::Acces | Status::Perm => {
                "who calls may not write there: call as somebody who may, with --uid, or let all \
                 write to a directory for the measurement"
            }
            Status::RoFs => "the export is read-only: measure one that can be written to",
            Status::NoSpc | Status::DQuot => "make room first: some files of 64 MiB are written",
            _ => "see the log of the server",
        },
        OpenError::File { error: NfsError::Call(error), .. } => on_call(error),
        OpenError::File { .. } | OpenError::Wrong(_) => "the server does not keep to NFSv3",
    };
    anyhow!("{name}: {error}: {advice}")
}

pub fn advise_on_load(error: LoadError) -> Error {
    const GRACE: u32 = wire::nlm::Status::DeniedGracePeriod as u32;
    match &error {
        LoadError::Status(operation, GRACE) if operation.locks() => anyhow!(
            "{operation}: after its restart the server waits for locks to be reclaimed: try again in \
             a minute or two"
        ),
        LoadError::NotRun(operation, _) if operation.locks() => anyhow!(
            "{error}: if it insists on reserved ports, run this as root; otherwise leave lock-unlock \
             out of --operations"
        ),
        LoadError::Stalled(_) | LoadError::Nothing(_) | LoadError::Call(..) => {
            anyhow!(
                "{error}: is the server still up? With a slow one, try --shapes 1x1 --seconds 10"
            )
        }
        _ => error.into(),
    }
}

fn on_call(error: &CallError) -> &'static str {
    match error {
        CallError::Refused(Refusal::Denied(_)) => {
            "it does not trust the caller: run this as root, for a reserved port, or allow others \
             (`ports = \"any\"`)"
        }
        CallError::Refused(Refusal::NotRun(_)) => {
            "something else listens there: name the right port with --port or --mount-port"
        }
        _ => "no NFS server seems to listen there: name the right port with --port or --mount-port",
    }
}

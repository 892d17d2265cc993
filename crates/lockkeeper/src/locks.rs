//! From the configuration to the lock service: which store, and how locks behave.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use keeper::bytes::Name;
use keeper::change::Protocol;
use keeper::config::{GraceMode, Unreachable};
use server::Locks;
use store::{Durability, Embedded, Memory, Settings, Store};

use crate::cli;
use crate::config::{self, File};

/// Where locks are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreUrl {
    Embedded(PathBuf),
    Memory,
}

impl StoreUrl {
    pub fn parse(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("memory", "")) => Ok(Self::Memory),
            Some(("embedded", path)) if path.starts_with('/') => Ok(Self::Embedded(path.into())),
            Some(("embedded", _)) => Err(format!("`{text}`: the path must be absolute")),
            _ => Err(format!("`{text}` is no store: write embedded:/PATH or memory:")),
        }
    }
}

/// What the operator is told about the store.
pub struct Chosen {
    pub locks: Locks,
    pub shown: String,
}

pub fn choose(
    args: &cli::Serve,
    file: &File,
    state: &Path,
    reserved_ports: bool,
) -> Result<Chosen> {
    let url = args.store.clone().or_else(|| file.store.url.clone());
    let url = url.unwrap_or_else(|| StoreUrl::Embedded(state.join("store")));
    let durability = match args.durability.or(file.store.durability).unwrap_or_default() {
        config::Durability::Process => Durability::Process,
        config::Durability::Power => Durability::Power,
    };
    let (store, shown): (Box<dyn Store>, String) = match &url {
        StoreUrl::Memory => {
            (Box::new(Memory::new()), "store memory (locks end with the server)".into())
        }
        StoreUrl::Embedded(path) => {
            let settings = Settings::new(path, run_directory(state)?, durability)
                .with_context(|| format!("the lock store {}", path.display()))?;
            let store = Embedded::open(settings)
                .with_context(|| format!("the lock store {}", path.display()))?;
            let word = match durability {
                Durability::Process => "process",
                Durability::Power => "power",
            };
            (Box::new(store), format!("store embedded {}   durability {word}", path.display()))
        }
    };
    let locks = Locks {
        store,
        config: keeper_config(args, file),
        // A memory store forgets it, and clients must never see one twice.
        epoch_copy: Some(state.join("epoch")),
        reserved_ports,
    };
    Ok(Chosen { locks, shown })
}

/// Emptied by a restart of the machine; that is what tells one from a restart of the server. A
/// directory that stays would make a lost page of the journal look whole.
fn run_directory(state: &Path) -> Result<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Ok("/run/lockkeeper".into());
    }
    let candidates = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let candidates = candidates.into_iter().chain([PathBuf::from("/dev/shm")]);
    for candidate in candidates {
        if candidate.is_dir() {
            let user = rustix::process::geteuid().as_raw();
            return Ok(candidate.join(format!("lockkeeper-{user}")));
        }
    }
    bail!(
        "no directory that a restart of the machine empties, for the lock store of {}; set \
         XDG_RUNTIME_DIR to one, or serve with --store memory:",
        state.display()
    )
}

fn keeper_config(args: &cli::Serve, file: &File) -> keeper::config::Config {
    let defaults = keeper::config::Config::default();
    let limits = defaults.limits;
    let recovery = &file.recovery;
    let mut names: Vec<Name> = Vec::new();
    for name in args.names.iter().chain(&file.rpc.names) {
        names.push(Name::new(name.as_bytes()));
    }
    keeper::config::Config {
        window: args.window.or(recovery.window).unwrap_or(defaults.window),
        windows: [
            (Protocol::Nlm, recovery.protocol.nlm.window),
            (Protocol::Nsm, recovery.protocol.nsm.window),
        ]
        .into_iter()
        .filter_map(|(protocol, window)| Some((protocol, window?)))
        .collect(),
        grace: match args.grace.or(recovery.grace).unwrap_or_default() {
            config::Grace::Strict => GraceMode::Strict,
            config::Grace::Instant => GraceMode::Instant,
        },
        unreachable: match recovery.unreachable.unwrap_or_default() {
            config::Unreachable::OnDemand => Unreachable::OnDemand,
            config::Unreachable::Immediate => Unreachable::Immediate,
            config::Unreachable::Retain => Unreachable::Retain,
        },
        limits: keeper::config::Limits {
            clients: file.limits.clients.unwrap_or(limits.clients),
            locks: file.limits.locks.unwrap_or(limits.locks),
            locks_per_client: file.limits.locks_per_client.unwrap_or(limits.locks_per_client),
            locks_per_file: file.limits.locks_per_file.unwrap_or(limits.locks_per_file),
            waiters_per_file: file.limits.waiters_per_file.unwrap_or(limits.waiters_per_file),
            ..limits
        },
        names,
        ..defaults
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_named_by_kind_and_place() {
        assert_eq!(StoreUrl::parse("memory:"), Ok(StoreUrl::Memory));
        let place = StoreUrl::Embedded("/var/lib/x".into());
        assert_eq!(StoreUrl::parse("embedded:/var/lib/x"), Ok(place));
        for wrong in ["", "memory", "embedded:x", "redis://x", "/var/lib/x"] {
            assert!(StoreUrl::parse(wrong).is_err(), "{wrong}");
        }
    }
}

//! From the configuration to the lock service: which store, and how locks behave.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Error, Result, bail};

use admin::Facts;
use keeper::bytes::Name;
use keeper::change::Protocol;
use keeper::config::{GraceMode, Unreachable, Verify};
use server::Locks;
use store::postgres::PostgresSettings;
use store::{Durability, Memory, Store};
use tracing::warn;
use vfs::HandleKey;
use vfs::secrets::{Secrets as _, SecretsInDirectory};

use crate::cli;
use crate::config::{self, File};
use crate::host;
use crate::seat::{self, Wish};
use crate::stores::{StoreUrl, open_embedded};

/// How long the program that is run before clients are let in may take.
pub const HOOK_PATIENCE: Duration = Duration::from_secs(60);

/// The lock service to be, what the operator is told about its store, and the key of file handles.
pub struct Chosen {
    pub locks: Locks,
    pub shown: String,
    pub key: HandleKey,
}

/// Which store is meant, before anything is opened.
pub struct Plan {
    url: StoreUrl,
    durability: Durability,
}

impl Plan {
    pub fn of(args: &cli::Serve, file: &File, state: &Path) -> Result<Self> {
        let named = args.store.as_deref().map(StoreUrl::parse).transpose();
        let url = named.map_err(Error::msg)?.or_else(|| file.store.url.clone());
        let url = url.unwrap_or_else(|| StoreUrl::Embedded(state.join("store")));
        let durability = match args.durability.or(file.store.durability).unwrap_or_default() {
            config::Durability::Process => Durability::Process,
            config::Durability::Power => Durability::Power,
        };
        Ok(Self { url, durability })
    }

    /// What operators are told about the server, whether it serves or stands by.
    pub fn facts(&self, args: &cli::Serve, file: &File) -> Facts {
        let (store, durability) = match &self.url {
            StoreUrl::Memory => ("memory", "none"),
            StoreUrl::Embedded(_) => ("embedded", self.word()),
            StoreUrl::Postgres(_) => ("postgres", self.word()),
        };
        Facts {
            version: env!("CARGO_PKG_VERSION").into(),
            node: node(args, file),
            store: store.into(),
            store_shown: self.url.to_string(),
            durability: durability.into(),
        }
    }

    fn word(&self) -> &'static str {
        match self.durability {
            Durability::Process => "process",
            Durability::Power => "power",
        }
    }
}

fn node(args: &cli::Serve, file: &File) -> String {
    args.node.clone().or_else(|| file.standby.node.clone()).unwrap_or_else(host::name)
}

/// Opens the store. `waiting` hears whom a standby waits for.
pub async fn choose(
    args: &cli::Serve,
    file: &File,
    plan: &Plan,
    state: &Path,
    reserved_ports: bool,
    waiting: impl Fn(&str) + Send + 'static,
) -> Result<Chosen> {
    let (url, durability, word) = (&plan.url, plan.durability, plan.word());
    let mut key = SecretsInDirectory::new(state).secret("handle")?;
    let mut lease = None;
    if args.standby && !matches!(url, StoreUrl::Postgres(_)) {
        bail!("a standby shares a PostgreSQL store: add --store postgres://USER@HOST/DATABASE");
    }
    let (store, shown): (Box<dyn Store>, String) = match url {
        StoreUrl::Memory => {
            (Box::new(Memory::new()), "store memory (locks end with the server)".into())
        }
        StoreUrl::Embedded(path) => {
            let store = open_embedded(path, durability, args.run_directory.as_deref())?;
            (Box::new(store), format!("store embedded {}   durability {word}", path.display()))
        }
        StoreUrl::Postgres(address) => {
            let wish = wish(args, file, address, durability);
            let mut taken = seat::take(&wish, waiting).await.with_context(|| url.to_string())?;
            taken.store.remarks().iter().for_each(|remark| warn!("{remark}"));
            // All servers of one store make the same handles.
            let shared = taken.store.key_or_insert("handle", &key)?;
            key = shared.try_into().ok().context("the handle key in the store is damaged")?;
            lease = Some(taken.lease);
            let node = &wish.settings.node;
            (Box::new(taken.store), format!("store {url}   durability {word}   node {node}"))
        }
    };
    let locks = Locks {
        store,
        config: keeper_config(args, file),
        // A memory store forgets it, and clients must never see one twice.
        epoch_copy: Some(state.join("epoch")),
        lease,
        reserved_ports,
    };
    Ok(Chosen { locks, shown, key: HandleKey::new(key) })
}

fn wish(args: &cli::Serve, file: &File, address: &str, durability: Durability) -> Wish {
    let mut settings = PostgresSettings::new(address, &node(args, file), durability);
    if let Some(lease) = file.standby.lease {
        settings.lease = lease;
    }
    Wish {
        settings,
        standby: args.standby,
        on_takeover: file.standby.on_takeover.clone(),
        on_takeover_timeout: file.standby.on_takeover_timeout.unwrap_or(HOOK_PATIENCE),
    }
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
        verify: match file.nsm.verify.unwrap_or_default() {
            config::Verify::SignsOfLife => Verify::SignsOfLife,
            config::Verify::Ask => Verify::Ask,
            config::Verify::Address => Verify::Address,
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

//! Builds the lock service from the configuration: opens the store and sets the keeper's parameters.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};

use admin::Facts;
use keeper::bytes::Name;
use keeper::change::Protocol;
use keeper::config::{GraceMode, Unreachable, Verify};
use server::roster_copy::RosterFile;
use server::{LockConfig, WritePolicy};
use store::postgres::Failover;
use store::{Durability, Memory, Store};
use tracing::warn;
use vfs::HandleKey;

use crate::cli;
use crate::config::postgres_url::PostgresUrl;
use crate::config::store_url::{PASSWORD_IN_ARGUMENTS, StoreUrl, open_embedded, run_directory};
use crate::config::{self, ConfigError, File};

use super::handle_key;
use super::standby_copy::StandbyCopy;
use super::takeover::{self, TakeoverOptions};

/// Default of `on_takeover_timeout`.
pub(crate) const HOOK_TIMEOUT: Duration = Duration::from_secs(60);

/// The lock service's settings, the banner's description of its store, and the file handle key.
pub(crate) struct LockService {
    pub locks: LockConfig,
    pub shown: String,
    pub key: HandleKey,
}

/// The configured store, not yet opened.
pub(crate) struct StoreChoice {
    url: StoreUrl,
    durability: Durability,
}

impl StoreChoice {
    pub(crate) fn of(args: &cli::Serve, file: &File, state: &Path) -> Result<Self> {
        let named = args.store.as_deref().map(StoreUrl::parse).transpose();
        let password_file = file.store.password_file.as_deref();
        let named = named.map_err(ConfigError)?.map(|url| url.with_server_password(password_file));
        if named.as_ref().is_some_and(StoreUrl::has_password) {
            warn!("{PASSWORD_IN_ARGUMENTS}");
        }
        let url = named.or_else(|| file.store.url.clone());
        let url = url.unwrap_or_else(|| StoreUrl::Embedded(state.join("store")));
        let durability = match args.durability.or(file.store.durability).unwrap_or_default() {
            config::Durability::Process => Durability::Process,
            config::Durability::Power => Durability::Power,
        };
        Ok(Self { url, durability })
    }

    /// Facts for the admin API, valid while serving or standing by.
    pub(crate) fn facts(&self, args: &cli::Serve, file: &File) -> Facts {
        let (store, durability) = match &self.url {
            StoreUrl::Memory => ("memory", "none"),
            StoreUrl::Embedded(_) => ("embedded", self.durability_name()),
            StoreUrl::Postgres(_) => ("postgres", self.durability_name()),
        };
        Facts::new(env!("CARGO_PKG_VERSION"), store)
            .with_node(node(args, file))
            .with_store_shown(self.url.to_string())
            .with_durability(durability)
            .with_is_one_of_pair(self.is_shared_by_pair(args, file))
    }

    /// Whether other servers may use this store: the command line or the configuration says so.
    pub(crate) fn is_shared_by_pair(&self, args: &cli::Serve, file: &File) -> bool {
        let is_one_of_pair = args.standby || args.node.is_some() || file.standby.is_configured();
        is_one_of_pair && matches!(self.url, StoreUrl::Postgres(_))
    }

    fn durability_name(&self) -> &'static str {
        match self.durability {
            Durability::Process => "process",
            Durability::Power => "power",
        }
    }
}

fn node(args: &cli::Serve, file: &File) -> String {
    args.node.clone().or_else(|| file.standby.node.clone()).unwrap_or_else(config::host_name)
}

/// Opens the store; a standby waits until it becomes leader, reporting to `waiting`.
pub(crate) async fn open(
    args: &cli::Serve,
    file: &File,
    choice: &StoreChoice,
    state: &Path,
    require_reserved_ports: bool,
    waiting: impl Fn(&str) + Send + 'static,
) -> Result<LockService> {
    let (url, durability, word) = (&choice.url, choice.durability, choice.durability_name());
    let key;
    let mut lease = None;
    // A store that ends with the process is always new.
    let is_kept = *url != StoreUrl::Memory;
    let roster_copy = is_kept.then(|| state.join("roster"));
    if let Some(path) = &roster_copy {
        // Before a standby waits: a damaged copy must be noticed now, not at the takeover.
        RosterFile::new(path).read()?;
    } else if args.store_lost {
        let why = "--store-lost has no effect on a memory store: it is lost with every stop";
        return Err(ConfigError(why.into()).into());
    }
    if args.standby && !matches!(url, StoreUrl::Postgres(_)) {
        let why = "--standby requires a PostgreSQL store: --store postgres://USER@HOST/DATABASE";
        return Err(ConfigError(why.into()).into());
    }
    let (store, shown): (Box<dyn Store>, String) = match url {
        StoreUrl::Memory => {
            key = handle_key::own(state)?;
            (Box::new(Memory::new()), "store memory (locks are lost when the server ends)".into())
        }
        StoreUrl::Embedded(path) => {
            key = handle_key::own(state)?;
            let store = open_embedded(path, durability, args.run_directory.as_deref())?;
            (Box::new(store), format!("store embedded {}   durability {word}", path.display()))
        }
        StoreUrl::Postgres(address) => {
            let options = takeover_options(args, file, address, durability, state)?;
            let mut acquired =
                takeover::acquire(&options, waiting).await.with_context(|| url.to_string())?;
            acquired.store.warnings().iter().for_each(|remark| warn!("{remark}"));
            // Servers sharing a store issue the same handles.
            key = handle_key::shared(state, &mut acquired.store)?;
            lease = Some(acquired.lease);
            let node = &options.settings.node;
            (Box::new(acquired.store), format!("store {url}   durability {word}   node {node}"))
        }
    };
    let mut locks = LockConfig::new(store)
        .with_config(keeper_config(args, file))
        // Clients must never see an epoch twice, and a memory store forgets it.
        .with_epoch_copy(state.join("epoch"))
        .with_store_lost(args.store_lost)
        .with_writes(write_policy(choice.is_shared_by_pair(args, file), file))
        .with_require_reserved_ports(require_reserved_ports);
    (locks.roster_copy, locks.lease) = (roster_copy, lease);
    Ok(LockService { locks, shown, key: HandleKey::new(key) })
}

/// B6.80
fn write_policy(is_one_of_pair: bool, file: &File) -> WritePolicy {
    match file.standby.writes.unwrap_or_default() {
        config::Writes::Strict if is_one_of_pair => WritePolicy::Strict,
        config::Writes::Strict | config::Writes::Available => WritePolicy::Available,
    }
}

fn takeover_options(
    args: &cli::Serve,
    file: &File,
    url: &PostgresUrl,
    durability: Durability,
    state: &Path,
) -> Result<TakeoverOptions> {
    // The default may be a host name of another form.
    let node = config::node_name::parse(&node(args, file)).map_err(|error| {
        anyhow!("{error}; give this server a name with --node, or node under [standby]")
    })?;
    let mut settings = url.settings(&node, durability);
    if let Some(lease) = file.standby.lease {
        settings.lease = lease;
    }
    settings.failover = match file.store.failover.unwrap_or_default() {
        config::Failover::Asynchronous => Failover::Asynchronous,
        config::Failover::Synchronous => Failover::Synchronous,
    };
    let standby = &file.standby;
    settings.pair = args.standby || standby.node.is_some() || standby.on_takeover.is_some();
    // Without such a directory a start after a failover of the database trusts it less.
    let run = args.run_directory.clone();
    settings.run_directory = run.or_else(|| run_directory(Path::new(&url.to_string())).ok());
    Ok(TakeoverOptions {
        settings,
        standby: args.standby,
        on_takeover: file.standby.on_takeover.clone(),
        on_takeover_timeout: file.standby.on_takeover_timeout.unwrap_or(HOOK_TIMEOUT),
        copy: StandbyCopy { state: state.to_owned(), roster: state.join("roster") },
    })
}

fn keeper_config(args: &cli::Serve, file: &File) -> keeper::config::Config {
    let defaults = keeper::config::Config::default();
    let limits = defaults.limits;
    let recovery = &file.recovery;
    let protocols = [
        (Protocol::NLM, recovery.protocol.nlm.window),
        (Protocol::NSM, recovery.protocol.nsm.window),
    ];
    let windows = protocols.into_iter().filter_map(|(protocol, window)| Some((protocol, window?)));
    let mut names: Vec<Name> = Vec::new();
    for name in args.names.iter().chain(&file.rpc.names) {
        names.push(Name::new(name.as_bytes()));
    }
    keeper::config::Config {
        window: args.window.or(recovery.window).unwrap_or(defaults.window),
        // The flag is for every protocol.
        windows: windows.filter(|_| args.window.is_none()).collect(),
        grace: match args.grace.or(recovery.grace).unwrap_or_default() {
            config::Grace::Strict => GraceMode::Strict,
            config::Grace::Instant => GraceMode::Instant,
        },
        unreachable: match args.unreachable.or(recovery.unreachable).unwrap_or_default() {
            config::Unreachable::OnDemand => Unreachable::OnDemand,
            config::Unreachable::Immediate => Unreachable::Immediate,
            config::Unreachable::Retain => Unreachable::Retain,
        },
        verify: match file.nsm.verify.unwrap_or_default() {
            config::Verify::SignsOfLife => Verify::SignsOfLife,
            config::Verify::Ask => Verify::Ask,
            config::Verify::Address => Verify::Address,
        },
        roaming: file.nsm.roaming,
        limits: keeper::config::Limits {
            clients: file.limits.clients.unwrap_or(limits.clients),
            clients_per_address: file
                .limits
                .clients_per_address
                .unwrap_or(limits.clients_per_address),
            locks: file.limits.locks.unwrap_or(limits.locks),
            locks_per_address: file.limits.locks_per_address.unwrap_or(limits.locks_per_address),
            locks_per_client: file.limits.locks_per_client.unwrap_or(limits.locks_per_client),
            locks_per_file: file.limits.locks_per_file.unwrap_or(limits.locks_per_file),
            waiters_per_file: file.limits.waiters_per_file.unwrap_or(limits.waiters_per_file),
            ..limits
        },
        names,
        formerly: file.rpc.formerly.clone(),
        ..defaults
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    fn config(flags: &[&str], file: &str) -> keeper::config::Config {
        let words = ["lockkeeper", "serve", "/srv"].iter().chain(flags);
        let cli::Command::Serve(args) = cli::Cli::try_parse_from(words).unwrap().command else {
            panic!("not serve");
        };
        keeper_config(&args, &toml::from_str(file).unwrap())
    }

    /// B4.50
    #[test]
    fn a_window_on_the_command_line_is_that_of_every_protocol() {
        const FILE: &str = "[recovery]\nwindow = \"45s\"\n[recovery.protocol.nlm]\nwindow = \"30s\"\n\
                            [recovery.protocol.nsm]\nwindow = \"15s\"\n";
        let seconds = |flags: &[&str]| {
            let config = config(flags, FILE);
            let of = |protocol| config.window(protocol).as_secs();
            (config.window.as_secs(), of(&Protocol::NLM), of(&Protocol::NSM))
        };
        assert_eq!(seconds(&[]), (45, 30, 15));
        assert_eq!(seconds(&["--window", "7s"]), (7, 7, 7));
    }

    #[test]
    fn other_flags_win_over_their_keys() {
        let file = "[recovery]\ngrace = \"strict\"\nunreachable = \"retain\"\n";
        assert_eq!(config(&[], file).unreachable, Unreachable::Retain);
        let flagged = config(&["--unreachable", "immediate", "--grace", "instant"], file);
        assert_eq!(flagged.unreachable, Unreachable::Immediate);
        assert_eq!(flagged.grace, GraceMode::Instant);
    }
}

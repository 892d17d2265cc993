//! Store URLs, and opening a store for a command other than `serve`.

use std::fmt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use store::postgres::{COMMAND_SUFFIX, LeaderWatch, Postgres, TakeoverDecision};
use store::{Durability, Embedded, EmbeddedSettings, Memory, Store};

use super::postgres_url::PostgresUrl;

/// The command line is visible to every user of the machine.
pub(crate) const PASSWORD_IN_ARGUMENTS: &str = "the command line contains the password of the store, \
     which any user can read there (ps); name a file instead: password_file under [store], or \
     passfile in the url";

/// A lock store. `Debug` and `Display` never show a password.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum StoreUrl {
    Embedded(PathBuf),
    Memory,
    Postgres(PostgresUrl),
}

impl StoreUrl {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("memory", "")) => Ok(Self::Memory),
            Some(("embedded", path)) if path.starts_with('/') => Ok(Self::Embedded(path.into())),
            Some(("embedded", _)) => Err(format!("`{text}`: path must be absolute")),
            Some(("postgres" | "postgresql", rest)) if rest.starts_with("//") => {
                if rest.matches('@').count() > 1 {
                    return Err("`@` in a user name or password must be written %40".into());
                }
                Ok(Self::Postgres(PostgresUrl::new(text)))
            }
            // The text may contain a password: do not repeat it.
            Some(("postgres" | "postgresql", _)) => {
                Err("expected postgres://USER@HOST/DATABASE".into())
            }
            kind => Err(format!(
                "unknown kind of store `{}`: expected embedded:/PATH, memory: or \
                 postgres://USER@HOST/DATABASE",
                kind.map_or(text, |(kind, _)| kind)
            )),
        }
    }
}

impl StoreUrl {
    /// With the server's password, if it is a database (B5.96).
    pub(crate) fn with_server_password(self, file: Option<&Path>) -> Self {
        match self {
            Self::Postgres(url) => Self::Postgres(url.with_server_password(file)),
            other => other,
        }
    }

    pub(crate) fn has_password(&self) -> bool {
        matches!(self, Self::Postgres(url) if url.has_password())
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Omits the password.
impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Embedded(path) => write!(f, "embedded:{}", path.display()),
            Self::Memory => f.write_str("memory:"),
            Self::Postgres(url) => url.fmt(f),
        }
    }
}

/// `run` overrides the directory of the mark.
pub(crate) fn open_embedded(
    path: &Path,
    durability: Durability,
    run: Option<&Path>,
) -> Result<Embedded> {
    let shown = || format!("the lock store {}", path.display());
    let run = run.map_or_else(|| run_directory(path), |run| Ok(run.to_owned()))?;
    let settings = EmbeddedSettings::new(path, run, durability).with_context(shown)?;
    Embedded::open(settings).with_context(shown)
}

/// Opens a store for a command; fails while a server uses it.
pub(crate) fn open_unused(url: &StoreUrl) -> Result<Box<dyn Store>> {
    Ok(match url {
        StoreUrl::Memory => Box::new(Memory::new()),
        StoreUrl::Embedded(path) => {
            if !Embedded::exists(path)? {
                let inside = path.join("store");
                match Embedded::exists(&inside) {
                    Ok(true) => bail!(
                        "no store in {}, but in {}: use embedded:{}",
                        path.display(),
                        inside.display(),
                        inside.display()
                    ),
                    _ => bail!("no store in {}", path.display()),
                }
            }
            Box::new(open_embedded(path, Durability::Power, None)?)
        }
        StoreUrl::Postgres(address) => {
            let mut store = look_into(address).with_context(|| url.to_string())?;
            take_unserved(&mut store)?;
            Box::new(store)
        }
    })
}

/// Connects for reading; a server may be using the store.
pub(crate) fn look_into(url: &PostgresUrl) -> Result<Postgres> {
    let node = format!("{} {COMMAND_SUFFIX}", super::host_name());
    Ok(Postgres::connect(url.settings(&node, Durability::Process))?)
}

/// Becomes leader of the store. Watches the present leader for the length of its lease first, and
/// fails if it renews.
pub(crate) fn take_unserved(store: &mut Postgres) -> Result<()> {
    let mut watch = LeaderWatch::default();
    let first = store.leadership()?.leader;
    let lease = first.as_ref().map_or(Duration::ZERO, |leader| leader.lease);
    loop {
        let (leadership, verdict) = store.observe_leader(&mut watch)?;
        if verdict != TakeoverDecision::Wait
            && store.take_leadership_if_unchanged(&leadership)?.is_some()
        {
            return Ok(());
        }
        if let (Some(first), Some(now)) = (&first, &leadership.leader)
            && now.made_progress_since(first)
        {
            bail!("in use by {} since {}; stop that server first", now.node, now.since);
        }
        thread::sleep((lease / 6).max(Duration::from_millis(10)));
    }
}

/// Directory of the store's mark. A reboot must empty it: the mark's absence is how a reboot is told
/// from a restart of the server, and a mark that survived would hide lost journal pages.
pub(crate) fn run_directory(path: &Path) -> Result<PathBuf> {
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
        "the lock store {} needs a directory that is emptied at reboot; set XDG_RUNTIME_DIR, or \
         use --store memory:",
        path.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_named_by_kind_and_place() {
        assert_eq!(StoreUrl::parse("memory:"), Ok(StoreUrl::Memory));
        let place = StoreUrl::Embedded("/var/lib/x".into());
        assert_eq!(StoreUrl::parse("embedded:/var/lib/x"), Ok(place));
        let url = "postgres://me@db/locks";
        assert_eq!(StoreUrl::parse(url), Ok(StoreUrl::Postgres(PostgresUrl::new(url))));
        for wrong in ["", "memory", "embedded:x", "redis://x", "/var/lib/x", "postgres:x"] {
            assert!(StoreUrl::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_password_is_neither_debugged_nor_repeated() {
        let debugged = format!("{:?}", StoreUrl::parse("postgres://me:secret@db/x"));
        assert!(!debugged.contains("secret"), "{debugged}");
        let error = StoreUrl::parse("postgres://me:xy@zzy@db/locks").unwrap_err();
        assert!(error.contains("%40") && !error.contains("zzy"), "{error}");
    }
}

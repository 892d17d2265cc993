//! Which store, by its url; opened for a command that works with it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use store::postgres::{COMMAND, Postgres, PostgresSettings, Verdict, Watch};
use store::{Durability, Embedded, Memory, Settings, Store};

use crate::host;

/// Where locks are kept.
#[derive(Clone, PartialEq, Eq)]
pub enum StoreUrl {
    Embedded(PathBuf),
    Memory,
    Postgres(String),
}

impl StoreUrl {
    pub fn parse(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("memory", "")) => Ok(Self::Memory),
            Some(("embedded", path)) if path.starts_with('/') => Ok(Self::Embedded(path.into())),
            Some(("embedded", _)) => Err(format!("`{text}`: the path must be absolute")),
            Some(("postgres" | "postgresql", rest)) if rest.starts_with("//") => {
                if rest.matches('@').count() > 1 {
                    return Err("an `@` in a password or name is written %40".into());
                }
                Ok(Self::Postgres(text.to_owned()))
            }
            // It may have a password in it, so it is not repeated.
            Some(("postgres" | "postgresql", _)) => {
                Err("a PostgreSQL store is written postgres://USER@HOST/DATABASE".into())
            }
            kind => Err(format!(
                "`{}` is no kind of store: write embedded:/PATH, memory: or \
                 postgres://USER@HOST/DATABASE",
                kind.map_or(text, |(kind, _)| kind)
            )),
        }
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Without the password.
impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Embedded(path) => write!(f, "embedded:{}", path.display()),
            Self::Memory => f.write_str("memory:"),
            Self::Postgres(url) => {
                let (scheme, rest) = url.split_once("//").unwrap_or(("", url));
                // Whatever comes before the last `@` may be a password, or a part of one.
                let (who, place) = rest.rsplit_once('@').unwrap_or(("", rest));
                let user = who.split(':').next().unwrap_or("");
                let (place, options) = place.split_once('?').unwrap_or((place, ""));
                let at = if user.is_empty() { "" } else { "@" };
                write!(f, "{scheme}//{user}{at}{place}")?;
                // An option may be a password as well; only where the server is matters here.
                let host = options.split('&').find(|option| option.starts_with("host="));
                host.map_or(Ok(()), |host| write!(f, "?{host}"))
            }
        }
    }
}

/// `run` is where its mark goes, if not to the usual directory.
pub fn open_embedded(path: &Path, durability: Durability, run: Option<&Path>) -> Result<Embedded> {
    let shown = || format!("the lock store {}", path.display());
    let run = run.map_or_else(|| run_directory(path), |run| Ok(run.to_owned()))?;
    let settings = Settings::new(path, run, durability).with_context(shown)?;
    Embedded::open(settings).with_context(shown)
}

/// A store for a command other than `serve`: nobody may be serving from it.
pub fn open_unused(url: &StoreUrl) -> Result<Box<dyn Store>> {
    Ok(match url {
        StoreUrl::Memory => Box::new(Memory::new()),
        StoreUrl::Embedded(path) => {
            if !path.is_dir() {
                bail!("there is no store in {}", path.display());
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

/// Connected to look, not to write: somebody may be serving.
pub fn look_into(address: &str) -> Result<Postgres> {
    let node = format!("{} {COMMAND}", host::name());
    Ok(Postgres::connect(PostgresSettings::new(address, &node, Durability::Process))?)
}

/// Takes the seat, after looking for as long as its lease whether a server is alive.
pub fn take_unserved(store: &mut Postgres) -> Result<()> {
    let mut watch = Watch::default();
    let first = store.seat()?.holder;
    let lease = first.as_ref().map_or(Duration::ZERO, |holder| holder.lease);
    loop {
        let (seat, verdict) = store.watch(&mut watch)?;
        if verdict != Verdict::Wait && store.take_as_seen(&seat)?.is_some() {
            return Ok(());
        }
        if let (Some(first), Some(now)) = (&first, &seat.holder)
            && now.shows_life_since(first)
        {
            bail!("{} serves from this store since {}; stop it first", now.node, now.since);
        }
        thread::sleep((lease / 6).max(Duration::from_millis(10)));
    }
}

/// Emptied by a restart of the machine; that is what tells one from a restart of the server. A
/// directory that stays would make a lost page of the journal look whole.
pub fn run_directory(path: &Path) -> Result<PathBuf> {
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
        "no directory that a restart of the machine empties, for the lock store {}; set \
         XDG_RUNTIME_DIR to one, or serve with --store memory:",
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
        assert_eq!(StoreUrl::parse(url), Ok(StoreUrl::Postgres(url.into())));
        for wrong in ["", "memory", "embedded:x", "redis://x", "/var/lib/x", "postgres:x"] {
            assert!(StoreUrl::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_password_is_never_shown() {
        let shown = |url: &str| StoreUrl::Postgres(url.into()).to_string();
        assert_eq!(shown("postgres://me:p@ss@db:5/locks"), "postgres://me@db:5/locks");
        assert_eq!(shown("postgres://me:p?ss@db:5/locks"), "postgres://me@db:5/locks");
        let debugged = format!("{:?}", StoreUrl::Postgres("postgres://me:secret@db/x".into()));
        assert!(!debugged.contains("secret"), "{debugged}");
        let error = StoreUrl::parse("postgres://me:xy@zzy@db/locks").unwrap_err();
        assert!(error.contains("%40") && !error.contains("zzy"), "{error}");
        assert_eq!(
            shown("postgres:///locks?password=secret&host=/run/postgresql"),
            "postgres:///locks?host=/run/postgresql"
        );
    }
}

//! `lockkeeper store`: inspect, copy, distrust or clear a store, or record a fenced server. No server may
//! be using it, except for the record, for checking a PostgreSQL store and for copying from an embedded
//! one.

use std::collections::HashSet;
use std::io::{IsTerminal as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::time::Instant;

use anyhow::{Context as _, Error, Result, bail};
use keeper::change::{Client, Exactness, Snapshot};
use keeper::identity::ClientId;
use store::postgres::{Fencing, Leader, Leadership};
use store::{EmbeddedReader, Store as _, StoreError, consistency, transfer};
use vfs::secrets::{Secrets as _, SecretsInDirectory};

use super::tables::many;
use super::terminal;
use crate::cli::StoreCommand;
use crate::config::store_url::{self, PASSWORD_IN_ARGUMENTS, StoreUrl, look_into, open_unused};
use crate::config::{File, host_name};

pub(crate) fn run(command: &StoreCommand) -> Result<()> {
    match command {
        StoreCommand::Copy { from, to } => copy(&url(from)?, &url(to)?),
        StoreCommand::Check { url: text } => look(&url(text)?),
        StoreCommand::Fenced { node, store, config } => {
            let url = match store {
                Some(text) => url(text)?,
                None => File::load(config.as_deref())?.store.url.context(
                    "no store is configured: name it with --store postgres://USER@HOST/DATABASE",
                )?,
            };
            fenced(&url, node)
        }
        StoreCommand::Distrust { url: text, open } => {
            distrust(&url(text)?, if *open { Exactness::Open } else { Exactness::Roster })
        }
        StoreCommand::Clear { url: text, force } => {
            let url = &url(text)?;
            transfer::clear(&mut *open_unused(url)?, *force)?;
            println!("cleared {url}; its epoch and ids continue");
            Ok(())
        }
    }
}

/// The store that an argument names. A URL as this program shows it, without a password, is that of
/// the configuration file.
fn url(text: &str) -> Result<StoreUrl> {
    let url = StoreUrl::parse(text).map_err(Error::msg)?;
    if url.has_password() {
        terminal::print_note(&format!("warning: {PASSWORD_IN_ARGUMENTS}"));
        return Ok(url);
    }
    let configured = File::load(None).ok().and_then(|file| file.store.url);
    Ok(configured.filter(|known| known.to_string() == text).unwrap_or(url))
}

fn fenced(url: &StoreUrl, node: &str) -> Result<()> {
    let StoreUrl::Postgres(address) = url else {
        bail!("only for PostgreSQL stores: {url} is not shared");
    };
    let mut store = look_into(address).with_context(|| url.to_string())?;
    let author = author();
    if !store.set_fenced(node, &author)? {
        let unfenced = store.leadership()?.unfenced;
        match unfenced.is_empty() {
            true => bail!("no server is recorded as unfenced"),
            false => {
                bail!("{node} is not recorded as unfenced; these are: {}", unfenced.join(", "))
            }
        }
    }
    println!("{url}: recorded that {node} is fenced, by {author}");
    Ok(())
}

/// The user of this command, for the record: by the login that it came from, if that is known.
fn author() -> String {
    let uid = rustix::process::getuid().as_raw();
    let login = std::fs::read_to_string("/proc/self/loginuid").ok();
    let login = login.and_then(|text| text.trim().parse::<u32>().ok());
    let host = host_name();
    match login.filter(|login| *login != uid && *login != u32::MAX) {
        Some(login) => format!("uid {login} as uid {uid} on {host}"),
        None => format!("uid {uid} on {host}"),
    }
}

fn distrust(url: &StoreUrl, degree: Exactness) -> Result<()> {
    match url {
        StoreUrl::Memory => bail!("a memory store ends with its server"),
        StoreUrl::Embedded(_) => transfer::distrust(&mut *open_unused(url)?, degree)?,
        StoreUrl::Postgres(address) => {
            let mut store = look_into(address).with_context(|| url.to_string())?;
            store_url::take_unserved(&mut store)?;
            transfer::distrust(&mut store, degree)?;
            match degree {
                Exactness::Open => store.distrust_open()?,
                Exactness::Exact | Exactness::Roster => store.distrust()?,
            }
        }
    }
    let who = match degree {
        Exactness::Open => "any client may reclaim locks",
        Exactness::Exact | Exactness::Roster => "clients will reclaim their locks",
    };
    println!("{url}: {who} after the next start");
    Ok(())
}

fn copy(from: &StoreUrl, to: &StoreUrl) -> Result<()> {
    if from == to {
        bail!("source and destination are the same store: {from}");
    }
    let (mut source, in_use) = open_source(from).with_context(|| from.to_string())?;
    let mut target = open_or_make(to).with_context(|| to.to_string())?;
    let key = handle_key(from)?;
    if let Some(key) = key {
        keep_handle_key(to, key)?;
    }
    let start = Instant::now();
    let mut bar = Bar::new();
    let saved = transfer::copy(&mut *source, &mut *target, |after, of| bar.show(after, of))?;
    bar.end();
    println!(
        "copied {} clients, {} locks and {} shares in {:.1} s",
        saved.clients.len(),
        saved.locks.len(),
        saved.shares.len(),
        start.elapsed().as_secs_f64()
    );
    match key {
        Some(_) => println!("copied the file handle key"),
        None => println!(
            "file handle key not copied: start the first server with the same --state DIR as \
             before, or clients must remount"
        ),
    }
    if in_use {
        println!(
            "a server is using {from}: {to} is a backup of this moment. Before a server starts from \
             it: lockkeeper store distrust --open {to}"
        );
    } else {
        println!("{from} is unchanged: from now on serve only from {to}");
    }
    Ok(())
}

/// The source of a copy, and whether a server is using it.
fn open_source(url: &StoreUrl) -> Result<(Box<dyn store::Store>, bool)> {
    match (open_unused(url), url) {
        (Err(error), StoreUrl::Embedded(path)) if is_in_use(&error) => {
            Ok((Box::new(EmbeddedReader::open(path)?), true))
        }
        (opened, _) => Ok((opened?, false)),
    }
}

fn is_in_use(error: &Error) -> bool {
    matches!(error.downcast_ref(), Some(StoreError::InUse))
}

/// The key that signs file handles: in the database, or in the state directory around an embedded
/// store. `None` if it is not there.
fn handle_key(url: &StoreUrl) -> Result<Option<[u8; 16]>> {
    match url {
        StoreUrl::Embedded(path) => match path.parent() {
            Some(state) if state.join("handle.key").exists() => {
                Ok(Some(SecretsInDirectory::new(state).secret("handle")?))
            }
            _ => Ok(None),
        },
        StoreUrl::Memory => Ok(None),
        StoreUrl::Postgres(address) => {
            let key = look_into(address)?.key("handle")?;
            key.map(|key| key.try_into().ok().context("the file handle key in it is damaged"))
                .transpose()
        }
    }
}

/// Stores the key where a server of that store looks for it. Fails if a different key is there:
/// clients of the two stores have different handles.
fn keep_handle_key(url: &StoreUrl, key: [u8; 16]) -> Result<()> {
    let there = match url {
        StoreUrl::Embedded(path) => {
            let Some(state) = path.parent() else { return Ok(()) };
            let file = state.join("handle.key");
            if !file.exists() {
                std::fs::create_dir_all(state)?;
                let mut options = std::fs::OpenOptions::new();
                let mut file = options.write(true).create_new(true).mode(0o600).open(&file)?;
                file.write_all(&key)?;
                file.sync_all()?;
            }
            SecretsInDirectory::new(state).secret("handle")?.to_vec()
        }
        StoreUrl::Memory => return Ok(()),
        StoreUrl::Postgres(address) => look_into(address)?.key_or_insert("handle", &key)?,
    };
    if there != key {
        bail!(
            "{url} has a different file handle key, so clients would have to remount; if that is \
             acceptable, delete handle.key next to the store, or the row in table `keys`"
        );
    }
    Ok(())
}

/// The destination of a copy need not exist yet.
fn open_or_make(url: &StoreUrl) -> Result<Box<dyn store::Store>> {
    match url {
        StoreUrl::Embedded(path) => {
            Ok(Box::new(store_url::open_embedded(path, store::Durability::Power, None)?))
        }
        StoreUrl::Memory => bail!("a memory store would end with this command"),
        StoreUrl::Postgres(_) => open_unused(url),
    }
}

fn look(url: &StoreUrl) -> Result<()> {
    let saved = match url {
        StoreUrl::Postgres(address) => {
            let mut store = look_into(address).with_context(|| url.to_string())?;
            print!("{}", who_serves(&store.leadership()?));
            for Fencing { node, author, at } in store.fencings()? {
                println!("fenced     {node}, by {author}, at {at}");
            }
            store.load()?
        }
        _ => open_unused(url)?.load()?,
    };
    print!("{}", described(&saved));
    let problems = consistency::problems(&saved);
    if problems.is_empty() {
        println!("verdict    sound");
        return Ok(());
    }
    for problem in &problems {
        println!("problem    {problem}");
    }
    bail!(
        "{url} is inconsistent. Restore it from a backup; or, if no client holds a lock any \
         more, clear it: lockkeeper store clear {url} --force"
    )
}

/// Leader and standbys of a shared store.
fn who_serves(leadership: &Leadership) -> String {
    let mut text = match &leadership.leader {
        None => "serves     none yet\n".to_owned(),
        Some(Leader { node, since, has_released: true, .. }) => {
            format!("serves     none; last {node}, since {since}, stopped cleanly\n")
        }
        Some(Leader { node, since, .. }) => format!("serves     {node}, since {since}\n"),
    };
    for standby in &leadership.standbys {
        let heard = standby.last_seen_ago.as_secs_f64();
        text += &format!(
            "standby    {}, since {}, last seen {heard:.1} s ago\n",
            standby.node, standby.since
        );
    }
    for node in &leadership.unfenced {
        text += &format!(
            "unfenced   {node}: presumed dead; when it is off: lockkeeper store fenced {node}\n"
        );
    }
    text
}

fn described(saved: &Snapshot) -> String {
    let exact = match saved.exactness {
        Exactness::Exact => "complete: every acknowledged lock is in the store",
        Exactness::Roster => "all clients known; locks may be missing and will be reclaimed",
        Exactness::Open => "clients and locks may be missing; any client may reclaim",
    };
    let stop = match (saved.stopped_cleanly, saved.in_grace) {
        (true, false) => "clean",
        (true, true) => "clean, in a grace period",
        (false, true) => "not clean, in a grace period",
        (false, false) => "not clean",
    };
    let grace = match (saved.exactness, reclaiming(saved)) {
        (Exactness::Exact | Exactness::Roster, 0) => {
            "no grace period: there is nothing to reclaim".into()
        }
        (Exactness::Exact, clients) => {
            format!("a grace period, for {} to reclaim", many(clients as u64, "client"))
        }
        (Exactness::Roster | Exactness::Open, clients) => format!(
            "a grace period of full length, for {} to reclaim",
            many(clients as u64, "client")
        ),
    };
    format!(
        "epoch      {}   NSM state {}\nclients    {}\nlocks      {}\nshares     {}\n\
         exactness  {exact}\nlast stop  {stop}\nnext start {grace}\n",
        saved.epoch.0,
        saved.epoch.nsm_state(),
        saved.clients.len(),
        saved.locks.len(),
        saved.shares.len(),
    )
}

/// The clients that the next start waits for, however the last one ended: with an exact store those
/// with monitored locks or shares, else all that are monitored.
fn reclaiming(saved: &Snapshot) -> usize {
    let holders: HashSet<ClientId> = saved
        .locks
        .values()
        .filter(|lock| lock.monitored)
        .map(|lock| lock.owner.host)
        .chain(saved.shares.values().map(|share| share.owner.host))
        .collect();
    let waited_for = |client: &Client| match saved.exactness {
        Exactness::Exact => holders.contains(&client.id),
        Exactness::Roster | Exactness::Open => client.registrant.is_none() && client.monitored,
    };
    saved.clients.values().filter(|client| waited_for(client)).count()
}

/// A progress bar; hidden unless stderr is a terminal.
struct Bar {
    shown: bool,
}

impl Bar {
    const WIDTH: usize = 40;

    fn new() -> Self {
        Self { shown: std::io::stderr().is_terminal() }
    }

    fn show(&mut self, after: usize, of: usize) {
        if self.shown && of > 0 {
            let full = Self::WIDTH * after / of;
            let bar = "#".repeat(full) + &"-".repeat(Self::WIDTH - full);
            eprint!("\r[{bar}] {after} of {of}");
            let _ = std::io::stderr().flush();
        }
    }

    fn end(&mut self) {
        if self.shown {
            eprintln!();
        }
    }
}

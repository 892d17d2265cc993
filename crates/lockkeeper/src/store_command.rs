//! `lockkeeper store`: look into a store, move its state, empty it. Nobody may be serving from it.

use std::io::{IsTerminal as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::time::Instant;

use anyhow::{Context as _, Error, Result, bail};
use keeper::change::{Exactness, Snapshot};
use store::postgres::{Holder, Seat};
use store::{Store as _, check, transfer};
use vfs::secrets::{Secrets as _, SecretsInDirectory};

use crate::cli::StoreCommand;
use crate::stores::{self, StoreUrl, look_into, open_unused};

pub fn run(command: &StoreCommand) -> Result<()> {
    match command {
        StoreCommand::Copy { from, to } => copy(&url(from)?, &url(to)?),
        StoreCommand::Check { url: text } => look(&url(text)?),
        StoreCommand::Distrust { url: text } => distrust(&url(text)?),
        StoreCommand::Clear { url: text, force } => {
            let url = &url(text)?;
            transfer::clear(&mut *open_unused(url)?, *force)?;
            println!("{url} is empty; its epoch and ids go on");
            Ok(())
        }
    }
}

fn url(text: &str) -> Result<StoreUrl> {
    StoreUrl::parse(text).map_err(Error::msg)
}

fn distrust(url: &StoreUrl) -> Result<()> {
    let StoreUrl::Postgres(address) = url else {
        bail!("an embedded store knows by itself how far it can be trusted");
    };
    let mut store = look_into(address).with_context(|| url.to_string())?;
    stores::take_unserved(&mut store)?;
    store.distrust()?;
    println!("{url}: the next start takes the locks for incomplete, and clients reclaim theirs");
    Ok(())
}

fn copy(from: &StoreUrl, to: &StoreUrl) -> Result<()> {
    if from == to {
        bail!("{from} is the same store");
    }
    let mut source = open_unused(from).with_context(|| from.to_string())?;
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
        Some(_) => println!("the key of file handles came along"),
        None => println!(
            "the key of file handles stays where it is: start the first server with the same \
             --state DIR as before, or clients must mount again"
        ),
    }
    println!("{from} still has them: serve from {to} alone from now on");
    Ok(())
}

/// What signs file handles, if it is where it is looked for: in the database, or in the state directory
/// that an embedded store is in.
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
            key.map(|key| key.try_into().ok().context("the handle key in it is damaged"))
                .transpose()
        }
    }
}

/// Puts it where a server of that store will find it. Another one that is there already stays, and
/// nothing is copied: clients of the two stores have different handles.
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
            "{url} has another key of file handles, so clients would have to mount again; if they \
             may, delete handle.key beside the store, or the row of `keys` in the database"
        );
    }
    Ok(())
}

/// The second store of a copy may not be there yet.
fn open_or_make(url: &StoreUrl) -> Result<Box<dyn store::Store>> {
    match url {
        StoreUrl::Embedded(path) => {
            Ok(Box::new(stores::open_embedded(path, store::Durability::Power, None)?))
        }
        StoreUrl::Memory => bail!("a store in memory ends with this command"),
        StoreUrl::Postgres(_) => open_unused(url),
    }
}

fn look(url: &StoreUrl) -> Result<()> {
    let saved = match url {
        StoreUrl::Postgres(address) => {
            let mut store = look_into(address).with_context(|| url.to_string())?;
            print!("{}", who_serves(&store.seat()?));
            store.load()?
        }
        _ => open_unused(url)?.load()?,
    };
    print!("{}", described(&saved));
    let problems = check::problems(&saved);
    if problems.is_empty() {
        println!("verdict    sound");
        return Ok(());
    }
    for problem in &problems {
        println!("problem    {problem}");
    }
    bail!(
        "{url} contradicts itself. Restore it from a backup; or, if no client holds a lock any \
         more, clear it: lockkeeper store clear {url} --force"
    )
}

/// Who serves from a store that several share, and who waits.
fn who_serves(seat: &Seat) -> String {
    let mut text = match &seat.holder {
        None => "serves     nobody yet\n".to_owned(),
        Some(Holder { node, since, left: true, .. }) => {
            format!(
                "serves     nobody; the last was {node}, since {since}, and it stopped cleanly\n"
            )
        }
        Some(Holder { node, since, .. }) => format!("serves     {node}, since {since}\n"),
    };
    for standby in &seat.standbys {
        let heard = standby.heard.as_secs_f64();
        text += &format!(
            "standby    {}, since {}, last heard of {heard:.1} s ago\n",
            standby.node, standby.since
        );
    }
    text
}

fn described(saved: &Snapshot) -> String {
    let exact = match saved.exactness {
        Exactness::Exact => "every acknowledged lock is there",
        Exactness::Roster => {
            "all clients are there; locks may be missing, so they will be reclaimed"
        }
    };
    let stop = match (saved.stopped_cleanly, saved.in_grace) {
        (true, _) => "clean: the next start needs no grace period",
        (false, true) => "in a grace period: the next start begins another",
        (false, false) => "not clean: the next start begins a grace period",
    };
    format!(
        "epoch      {}   NSM state {}\nclients    {}\nlocks      {}\nshares     {}\n\
         exactness  {exact}\nlast stop  {stop}\n",
        saved.epoch.0,
        saved.epoch.nsm_state(),
        saved.clients.len(),
        saved.locks.len(),
        saved.shares.len(),
    )
}

/// How far it is, on a terminal; silent elsewhere.
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

//! The public interface of the library, kept in a file: what `lockkeeper::*` exports, item by item. It is
//! read from the sources, so it needs neither a build nor a nightly compiler. A type that a signature
//! names and that is not exported is an error, as is one of another project's crate that is not allowed
//! below.

mod exports;
mod items;
mod sources;

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Result, bail, ensure};

use exports::Exports;
use items::Described;
use sources::Sources;

const FACADE: &str = "crates/lockkeeper/src";
const KEPT: &str = "crates/lockkeeper/api.txt";

/// Types of other projects that are part of the interface, since it is about them.
const FOREIGN: &[&str] = &[
    // Data without copying, from the back end to the socket.
    "bytes::Bytes",
    // Which networks may mount.
    "ipnet::IpNet",
    // Where futures run.
    "tokio::runtime::Handle",
    // Requests that reach the program from the admin API.
    "tokio::sync::mpsc",
    "tokio::sync::oneshot",
];

/// Compares the interface with the kept one; with `LOCKKEEPER_UPDATE=1`, rewrites that.
pub(crate) fn check() -> Result<()> {
    let found = describe()?;
    if std::env::var_os("LOCKKEEPER_UPDATE").is_some_and(|value| value == "1") {
        fs::write(KEPT, found)?;
        return Ok(());
    }
    let kept = fs::read_to_string(KEPT).unwrap_or_default();
    if found == kept {
        return Ok(());
    }
    let (before, now) = (by_item(&kept), by_item(&found));
    for (sign, lines) in [("-", before.difference(&now)), ("+", now.difference(&before))] {
        lines.for_each(|(item, line)| println!("{sign} {item} {line}"));
    }
    bail!(
        "the interface of the library has changed: if that is meant, run LOCKKEEPER_UPDATE=1 cargo \
         xtask api, and note it in CHANGELOG.md"
    );
}

/// Lines that are the same in several items are told apart.
fn by_item(text: &str) -> BTreeSet<(&str, &str)> {
    let mut item = "";
    let lines = text.lines().map(|line| match line.strip_prefix(' ') {
        Some(detail) => (item, detail.trim()),
        None => {
            item = line;
            (line, "")
        }
    });
    lines.collect()
}

fn describe() -> Result<String> {
    let mut sources = Sources::default();
    let exports = Exports::read(FACADE, &mut sources)?;
    let mut text = String::new();
    let mut problems = Vec::new();
    for export in exports.all() {
        let Described { lines, names } = items::describe(export, &mut sources)?;
        text.push_str(&lines);
        for (used_in, name) in names {
            let allowed = exports.has(&name) || FOREIGN.iter().any(|it| name.is_of(it));
            if !allowed {
                problems.push(format!("{used_in}: {name} is not exported"));
            }
        }
    }
    problems.sort();
    problems.dedup();
    ensure!(problems.is_empty(), "{}", problems.join("\n"));
    Ok(text)
}

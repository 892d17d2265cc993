//! A store's contents as lines of text, and the listings beside the fixtures.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use keeper::change::{Client, Exactness, Lock, Share, Snapshot};
use keeper::identity::{Owner, Transport};
use keeper::request::{Access, Mode};
use testbed::fixtures::Fixture;

/// `listing.txt`, written by the version of the fixture: facts, one per line, and rows.
pub struct Listing {
    facts: BTreeMap<String, String>,
    rows: String,
}

/// How the first row begins.
const FIRST_ROW: &str = "epoch ";

impl Listing {
    pub fn of(fixture: &Fixture) -> Self {
        let text = fixture.text("listing.txt").unwrap();
        let at = text.find(&format!("\n{FIRST_ROW}")).unwrap() + 1;
        let (facts, rows) = text.split_at(at);
        let facts = facts.lines().map(|line| line.rsplit_once(' ').unwrap());
        let facts = facts.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        Self { facts, rows: rows.to_owned() }
    }

    pub fn fact(&self, name: &str) -> &str {
        self.facts.get(name).unwrap_or_else(|| panic!("no {name:?} in {:?}", self.facts))
    }

    pub fn exactness(&self, fact: &str) -> Exactness {
        match self.fact(fact) {
            "exact" => Exactness::Exact,
            "roster" => Exactness::Roster,
            other => panic!("exactness {other}"),
        }
    }

    pub fn is(&self, saved: &Snapshot) -> bool {
        self.rows == rows(saved)
    }

    /// Panics with the lines that differ.
    pub fn assert_is(&self, saved: &Snapshot, what: &str) {
        let found = rows(saved);
        let (expected, found): (BTreeSet<_>, BTreeSet<_>) =
            (self.rows.lines().collect(), found.lines().collect());
        let missing: Vec<_> = expected.difference(&found).collect();
        let surplus: Vec<_> = found.difference(&expected).collect();
        assert!(self.is(saved), "{what}\nmissing: {missing:#?}\nnot expected: {surplus:#?}");
    }
}

/// Everything but the exactness, in the format of `crates/cli/tests/fixtures/listing.sql`.
fn rows(saved: &Snapshot) -> String {
    let mut text = format!("{FIRST_ROW}{}\nids below {}\n", saved.epoch.0, saved.ids_below);
    writeln!(text, "in grace {}", yes(saved.in_grace)).unwrap();
    writeln!(text, "stopped cleanly {}", yes(saved.stopped_cleanly)).unwrap();
    saved.clients.values().for_each(|row| text += &client(row));
    saved.locks.values().for_each(|row| text += &lock(row));
    saved.shares.values().for_each(|row| text += &share(row));
    text
}

fn client(row: &Client) -> String {
    let protocol = row.protocol.name();
    let mut text =
        format!("client {} {protocol} {} {}", row.id.0, row.address, name(row.name.bytes()));
    write!(text, " incarnation {}", row.incarnation.0).unwrap();
    text += if row.monitored { " monitored" } else { "" };
    text += if row.fenced { " fenced" } else { "" };
    write!(text, " registered {} epoch {}", row.registered_at_ms, row.epoch.0).unwrap();
    if !row.used.is_empty() {
        let used: Vec<String> = row.used.iter().map(ToString::to_string).collect();
        write!(text, " used {}", used.join(",")).unwrap();
    }
    if let Some(reboot) = row.reboot {
        let (from, to, before) = (reboot.from.0, reboot.to.0, reboot.before.0);
        write!(text, " reboot {from} to {to} before {before}").unwrap();
    }
    if let Some(registrant) = &row.registrant {
        let callback = &registrant.callback;
        let (program, version, procedure) =
            (callback.program, callback.version, callback.procedure);
        write!(text, " calls {}", name(callback.name.bytes())).unwrap();
        write!(text, " {program}.{version}.{procedure}").unwrap();
        write!(text, " watches {}", name(registrant.watched.bytes())).unwrap();
        write!(text, " private {}", hex(&registrant.private)).unwrap();
    }
    text + "\n"
}

fn lock(row: &Lock) -> String {
    let last = match row.range.last() {
        u64::MAX => "end".to_owned(),
        last => last.to_string(),
    };
    format!(
        "lock {}{} file {} bytes {}-{last} {} incarnation {}{} since {}\n",
        row.id.0,
        owner(&row.owner),
        hex(row.file.bytes()),
        row.range.first(),
        if row.mode == Mode::Exclusive { "exclusive" } else { "shared" },
        row.incarnation.0,
        if row.monitored { " monitored" } else { "" },
        row.since_ms,
    )
}

fn share(row: &Share) -> String {
    format!(
        "share {}{} file {} access {} deny {} incarnation {} since {}\n",
        row.id.0,
        owner(&row.owner),
        hex(row.file.bytes()),
        access(row.access),
        access(row.deny),
        row.incarnation.0,
        row.since_ms,
    )
}

fn owner(owner: &Owner) -> String {
    let transport = match owner.namespace.transport() {
        Transport::Tcp => "tcp",
        Transport::Udp => "udp",
    };
    let (ours, version) = (owner.namespace.server_address(), owner.namespace.version());
    let (host, number, tag) = (owner.host.0, owner.number, hex(owner.tag.bytes()));
    format!(" host {host} at {ours} {transport} v{version} number {number} tag {tag}")
}

fn access(access: Access) -> &'static str {
    match (access.read, access.write) {
        (true, true) => "read+write",
        (true, false) => "read",
        (false, true) => "write",
        (false, false) => "none",
    }
}

fn yes(so: bool) -> &'static str {
    if so { "yes" } else { "no" }
}

/// As PostgreSQL's `encode(name, 'escape')` writes it.
fn name(bytes: &[u8]) -> String {
    let mut text = String::from("\"");
    for byte in bytes {
        match byte {
            b'\\' => text += "\\\\",
            1..=0x7f => text.push(char::from(*byte)),
            _ => write!(text, "\\{byte:03o}").unwrap(),
        }
    }
    text + "\""
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

//! The copy of the roster in the state directory: the epoch, the last token and the monitored hosts,
//! kept apart from the store. At a start it shows that the store is older than what was acknowledged,
//! or that it is gone (B4.100, B4.101); and it names the hosts to notify (B4.92).
//!
//! ```text
//! lockkeeper roster 1
//! epoch 3600000
//! token 17
//! host 10.0.0.7 626f62 10.0.0.1,10.0.0.2      address, name (hexadecimal), our addresses used
//! checksum 8c6b0e0f2a3d4c5b                   SipHash-1-3 of all lines before
//! ```
//!
//! `judge` and the bytes are pure; `file` reads and writes them, `refresh` keeps them up to date.

mod file;
mod refresh;

use std::fmt::Write as _;
use std::hash::Hasher as _;
use std::net::IpAddr;

use keeper::bytes::Name;
use keeper::change::{Client, Exactness, Snapshot};
use keeper::config::RosterEntry;
use keeper::identity::Epoch;
use siphasher::sip::SipHasher13;
use store::Token;

pub use file::{CopyError, RosterFile};
pub use refresh::CopyHealth;
pub(crate) use refresh::{Schedule, refresh_before_stop, refresh_regularly};

const HEADER: &str = "lockkeeper roster";
const VERSION: u64 = 1;

/// What the copy holds. All of it was durable in the store when it was written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RosterCopy {
    pub epoch: Epoch,
    pub token: Token,
    pub hosts: Vec<RosterEntry>,
}

/// Where a store stands, for the comparison with the copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StorePosition {
    pub epoch: Epoch,
    pub token: Token,
    /// No server has ever started with it.
    pub is_new: bool,
}

impl StorePosition {
    pub fn of(saved: &Snapshot, token: Token) -> Self {
        let rows = saved.clients.len() + saved.locks.len() + saved.shares.len();
        let is_new = saved.epoch == Epoch::default() && rows == 0;
        Self { epoch: saved.epoch, token, is_new }
    }
}

/// Why a start is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The store is new, but one was in use before.
    StoreMissing,
}

/// How far a store can be trusted, by the evidence of the copy. `store_lost` is the operator's word
/// that acknowledged locks are lost, whatever the store says. Of this judgement and that of the store
/// itself the worse one holds.
pub fn judge(
    store: StorePosition,
    copy: Option<&RosterCopy>,
    store_lost: bool,
) -> Result<Exactness, Refusal> {
    match copy {
        _ if store_lost => Ok(Exactness::Open),
        Some(_) if store.is_new => Err(Refusal::StoreMissing),
        Some(copy) if (copy.epoch, copy.token) > (store.epoch, store.token) => Ok(Exactness::Open),
        Some(_) | None => Ok(Exactness::Exact),
    }
}

/// The epoch of a start from an open store: a lost commit may have used the next one already, and
/// clients act only on a state that they have not seen (B4.104).
pub fn open_epoch(next: Epoch, random: u64) -> Epoch {
    const SPREAD: u64 = 4096;
    Epoch(next.0.saturating_add(1 + random % SPREAD))
}

/// The entry of a client; `None` if it is not notified of restarts.
pub(crate) fn entry(client: &Client) -> Option<RosterEntry> {
    (client.is_host() && client.monitored).then(|| RosterEntry {
        address: client.address,
        name: client.name.clone(),
        used: client.used.clone(),
    })
}

/// Why bytes are no copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DecodeError {
    Damaged,
    /// Written by a newer version of the program, in this format.
    Newer(u64),
}

impl RosterCopy {
    /// What a store holds that was loaded.
    pub fn of(saved: &Snapshot, token: Token) -> Self {
        let hosts = saved.clients.values().filter_map(|client| entry(client)).collect();
        Self { epoch: saved.epoch, token, hosts }
    }

    pub fn encode(&self) -> String {
        let Self { epoch, token, hosts } = self;
        let mut text = format!("{HEADER} {VERSION}\nepoch {}\ntoken {}\n", epoch.0, token.0);
        for RosterEntry { address, name, used } in hosts {
            let _ = write!(text, "host {address} ");
            for byte in name.bytes() {
                let _ = write!(text, "{byte:02x}");
            }
            let used: Vec<String> = used.iter().map(ToString::to_string).collect();
            let _ = writeln!(text, " {}", used.join(","));
        }
        let sum = checksum(&text);
        let _ = writeln!(text, "checksum {sum:016x}");
        text
    }

    pub fn decode(text: &str) -> Result<Self, DecodeError> {
        let version = text.strip_prefix(HEADER).and_then(|rest| rest.lines().next());
        match version.and_then(|version| version.trim().parse().ok()) {
            Some(VERSION) => decode(text).ok_or(DecodeError::Damaged),
            Some(newer) if newer > VERSION => Err(DecodeError::Newer(newer)),
            _ => Err(DecodeError::Damaged),
        }
    }
}

fn decode(text: &str) -> Option<RosterCopy> {
    let (body, last) = text.strip_suffix('\n')?.rsplit_once('\n')?;
    let body = &text[..=body.len()];
    let sum = u64::from_str_radix(last.strip_prefix("checksum ")?, 16).ok()?;
    if sum != checksum(body) {
        return None;
    }
    let mut lines = body.lines().skip(1);
    let epoch = lines.next()?.strip_prefix("epoch ")?.parse().ok()?;
    let token = lines.next()?.strip_prefix("token ")?.parse().ok()?;
    let hosts = lines.map(decode_host).collect::<Option<_>>()?;
    Some(RosterCopy { epoch: Epoch(epoch), token: Token(token), hosts })
}

fn decode_host(line: &str) -> Option<RosterEntry> {
    let mut words = line.strip_prefix("host ")?.split(' ');
    let (address, name, used) = (words.next()?, words.next()?, words.next()?);
    let digits = name.as_bytes().chunks(2);
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let name = digits.map(byte).collect::<Option<Vec<u8>>>()?;
    let used = used.split(',').filter(|word| !word.is_empty()).map(|word| word.parse().ok());
    let used = used.collect::<Option<Vec<IpAddr>>>()?;
    Some(RosterEntry { address: address.parse().ok()?, name: Name::new(&name), used })
}

fn checksum(text: &str) -> u64 {
    let mut hasher = SipHasher13::new();
    hasher.write(text.as_bytes());
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(address: &str, name: &[u8], used: &[&str]) -> RosterEntry {
        let used = used.iter().map(|address| address.parse().unwrap()).collect();
        RosterEntry { address: address.parse().unwrap(), name: Name::new(name), used }
    }

    fn copy(epoch: u64, token: u64) -> RosterCopy {
        let hosts = vec![
            host("10.0.0.7", b"bob", &["10.0.0.1", "fd00::1"]),
            host("fd00::7", b"a b\n\xff\0", &[]),
            host("10.0.0.8", b"", &["10.0.0.1"]),
        ];
        RosterCopy { epoch: Epoch(epoch), token: Token(token), hosts }
    }

    fn store(epoch: u64, token: u64) -> StorePosition {
        StorePosition { epoch: Epoch(epoch), token: Token(token), is_new: epoch == 0 }
    }

    #[test]
    fn a_copy_is_read_as_it_was_written() {
        let copies = [copy(3_600_000, 17), RosterCopy::default()];
        for copy in copies {
            assert_eq!(RosterCopy::decode(&copy.encode()), Ok(copy));
        }
    }

    /// B4.103
    #[test]
    fn every_changed_or_missing_byte_is_noticed() {
        let text = copy(7, 9).encode();
        for at in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 1;
            if let Ok(changed) = String::from_utf8(bytes) {
                assert!(RosterCopy::decode(&changed).is_err(), "{at}: {changed}");
            }
            assert!(RosterCopy::decode(&text[..at]).is_err(), "{at}");
        }
        assert_eq!(RosterCopy::decode(&(text.clone() + "\n")), Err(DecodeError::Damaged));
        let newer = text.replacen("roster 1", "roster 2", 1);
        assert_eq!(RosterCopy::decode(&newer), Err(DecodeError::Newer(2)));
    }

    /// B4.100
    #[test]
    fn a_store_older_than_the_copy_is_open() {
        let judged = |store, copy: &RosterCopy| judge(store, Some(copy), false);
        assert_eq!(judged(store(7, 9), &copy(7, 9)), Ok(Exactness::Exact));
        assert_eq!(judged(store(7, 10), &copy(7, 9)), Ok(Exactness::Exact));
        assert_eq!(judged(store(8, 1), &copy(7, 9)), Ok(Exactness::Exact));
        assert_eq!(judged(store(7, 8), &copy(7, 9)), Ok(Exactness::Open), "same epoch, older");
        assert_eq!(judged(store(6, 99), &copy(7, 9)), Ok(Exactness::Open), "an earlier epoch");
        assert_eq!(judge(store(0, 0), None, false), Ok(Exactness::Exact), "a new installation");
        assert_eq!(judge(store(7, 9), None, false), Ok(Exactness::Exact), "no copy");
    }

    /// B4.101
    #[test]
    fn a_new_store_beside_a_copy_is_refused_unless_it_is_declared_lost() {
        assert_eq!(judge(store(0, 0), Some(&copy(7, 9)), false), Err(Refusal::StoreMissing));
        let empty = RosterCopy { hosts: Vec::new(), ..copy(7, 9) };
        assert_eq!(judge(store(0, 0), Some(&empty), false), Err(Refusal::StoreMissing));
        assert_eq!(judge(store(0, 0), Some(&copy(7, 9)), true), Ok(Exactness::Open));
        assert_eq!(judge(store(0, 0), None, true), Ok(Exactness::Open));
        assert_eq!(judge(store(7, 9), Some(&copy(7, 9)), true), Ok(Exactness::Open));
    }

    #[test]
    fn a_store_with_an_epoch_or_rows_is_not_new() {
        let new = Snapshot::default();
        assert!(StorePosition::of(&new, Token(0)).is_new);
        let cleared = Snapshot { epoch: Epoch(7), ..Snapshot::default() };
        assert!(!StorePosition::of(&cleared, Token(3)).is_new);
    }

    /// B4.104
    #[test]
    fn an_open_epoch_skips_up_to_4096_and_never_none() {
        let skipped = |random| open_epoch(Epoch(100), random).0 - 100;
        assert_eq!((skipped(0), skipped(4095), skipped(4096)), (1, 4096, 1));
        assert!((1..=4096).contains(&skipped(u64::MAX)));
    }
}

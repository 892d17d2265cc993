//! Which lines lead to which host, those that were reset lately, and who holds locks. No I/O and no
//! clock; `W` is what keeps a witness up for as long as it exists.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use keeper::bytes::Name;
use keeper::identity::{HostKey, Incarnation, Lane};

use super::line::{End, How, Line};
use super::round::testimony_of_reset;
use super::verdict::Testimony;

/// A reset is remembered for as long as a rebooted client repeats its notice.
pub const REMEMBERED: Duration = Duration::from_secs(15 * 60);
/// And so many of them in all; then the oldest are forgotten.
const RESETS_MAX: usize = 8192;
/// Lock times of so many incarnations of one host are kept: the one we know, the next, and room for
/// hosts whose state changes without a reboot.
const INCARNATIONS_MAX: usize = 4;

pub struct Registry<W> {
    open: HashMap<IpAddr, Vec<Arc<Line>>>,
    resets: HashMap<IpAddr, VecDeque<Arc<Line>>>,
    /// The addresses of all resets that are remembered, the oldest first.
    resets_in_order: VecDeque<IpAddr>,
    holders: HashMap<IpAddr, Vec<Holder<W>>>,
    witnesses: usize,
}

impl<W> Default for Registry<W> {
    fn default() -> Self {
        Self {
            open: HashMap::new(),
            resets: HashMap::new(),
            resets_in_order: VecDeque::new(),
            holders: HashMap::new(),
            witnesses: 0,
        }
    }
}

/// A host that holds locks.
struct Holder<W> {
    name: Name,
    lane: Lane,
    /// When it was last given something.
    touched: Instant,
    witness: Option<W>,
    /// When it last took a lock, by the state that the request carried.
    taken: Vec<(Incarnation, Instant)>,
}

/// A line to ask about a host.
pub struct Candidate {
    pub line: Arc<Line>,
    /// It is known to be of that host. If it has no name, its life counts, but not its end.
    pub is_named: bool,
}

/// A host of which a line was reset by itself.
pub struct Suspect {
    pub host: HostKey,
    pub end: End,
    /// It has no other line that could be asked first.
    pub alone: bool,
}

impl<W> Registry<W> {
    pub fn insert(&mut self, line: Arc<Line>) {
        self.open.entry(line.address).or_default().push(line);
    }

    /// Takes out a line that has ended. What it knew of the other end's kernel passes on to lines
    /// that were opened while it lived.
    fn remove(&mut self, line: &Arc<Line>) {
        let Some(there) = self.open.get_mut(&line.address) else { return };
        if let Some(at) = there.iter().position(|other| Arc::ptr_eq(other, line)) {
            there.swap_remove(at);
        }
        let Some(end) = line.end() else { return };
        let (since, names) = (line.since(), line.names());
        for other in there.iter().filter(|other| other.opened <= end.life) {
            if names.iter().any(|name| other.is_of(name)) {
                other.lived_at(since);
            }
        }
        if there.is_empty() {
            self.open.remove(&line.address);
        }
        if end.how != How::Otherwise && line.is_named() && line.testifies_death() {
            self.remember(line.clone(), end.at);
        }
    }

    fn remember(&mut self, line: Arc<Line>, now: Instant) {
        self.forget_resets(now);
        if self.resets_in_order.len() >= RESETS_MAX {
            self.forget_oldest();
        }
        self.resets_in_order.push_back(line.address);
        self.resets.entry(line.address).or_default().push_back(line);
    }

    fn forget_resets(&mut self, now: Instant) {
        while let Some(oldest) = self.resets_in_order.front().and_then(|at| self.resets.get(at))
            && oldest.front().and_then(|line| line.end()).is_none_or(|end| is_old(end.at, now))
        {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        let Some(address) = self.resets_in_order.pop_front() else { return };
        if let Some(there) = self.resets.get_mut(&address) {
            there.pop_front();
            if there.is_empty() {
                self.resets.remove(&address);
            }
        }
    }

    /// The lines to ask about a host, the oldest first. A line that has no name yet counts if every
    /// line from that address that has one is of this host: two machines may share an address.
    pub fn lines_of(&self, host: &HostKey, before: Instant, max: usize) -> Vec<Candidate> {
        let there = self.open.get(&host.address()).map_or(&[][..], Vec::as_slice);
        let alone = !there.iter().any(|line| line.is_named() && !line.is_of(host.name()));
        let mut lines: Vec<_> = there
            .iter()
            .filter(|line| line.opened <= before && line.has_spoken())
            .map(|line| Candidate { line: line.clone(), is_named: line.is_of(host.name()) })
            .filter(|candidate| candidate.is_named || (alone && !candidate.line.is_named()))
            .collect();
        lines.sort_by_key(|candidate| candidate.line.opened);
        lines.truncate(max);
        lines
    }

    /// Lines of that host, opened before that, that were reset lately.
    pub fn resets_of(
        &self,
        host: &HostKey,
        before: Instant,
        max: usize,
        now: Instant,
    ) -> Vec<Testimony> {
        let there = self.resets.get(&host.address()).into_iter().flatten().rev();
        there
            .filter(|line| line.opened <= before && line.is_of(host.name()))
            .filter(|line| line.end().is_some_and(|end| !is_old(end.at, now)))
            .take(max)
            .filter_map(testimony_of_reset)
            .collect()
    }

    /// Takes out a line that has ended, and says whose reboot that may be a sign of.
    pub fn end(&mut self, line: &Arc<Line>, end: End) -> Vec<Suspect> {
        self.remove(line);
        if end.how != How::Reset || !line.testifies_death() {
            return Vec::new();
        }
        let names = line.names().into_iter();
        let suspect = |name| {
            let host = HostKey::new(line.address, name);
            let alone = self.lines_of(&host, end.at, 1).is_empty();
            Suspect { host, end, alone }
        };
        names.map(suspect).collect()
    }

    /// The host holds locks. Answers false if that was known; else `witness` is asked for one,
    /// unless there are too many.
    pub fn hold(
        &mut self,
        host: &HostKey,
        lane: Lane,
        witnesses_max: usize,
        now: Instant,
        witness: impl FnOnce() -> Option<W>,
    ) -> bool {
        let there = self.holders.entry(host.address()).or_default();
        if let Some(known) = there.iter_mut().find(|holder| holder.name == *host.name()) {
            known.touched = now;
            return false;
        }
        let witness = if self.witnesses < witnesses_max { witness() } else { None };
        self.witnesses += usize::from(witness.is_some());
        let (name, taken) = (host.name().clone(), Vec::new());
        there.push(Holder { name, lane, touched: now, witness, taken });
        true
    }

    /// The hosts that were last known to hold locks.
    pub fn holders(&self) -> impl Iterator<Item = HostKey> {
        let holders = self.holders.iter();
        holders.flat_map(|(address, there)| {
            there.iter().map(|holder| HostKey::new(*address, holder.name.clone()))
        })
    }

    /// The host held nothing at that time. One that was given something since stays.
    pub fn release(&mut self, host: &HostKey, at: Instant) {
        let Some(there) = self.holders.get_mut(&host.address()) else { return };
        let is_it = |holder: &mut Holder<W>| holder.name == *host.name() && holder.touched <= at;
        let gone = there.extract_if(.., is_it);
        self.witnesses -= gone.filter(|holder| holder.witness.is_some()).count();
        if there.is_empty() {
            self.holders.remove(&host.address());
        }
    }

    /// Whether the machine at the other end of this line holds locks.
    pub fn is_holder(&self, line: &Line) -> bool {
        let there = self.holders.get(&line.address);
        there.is_some_and(|there| there.iter().any(|holder| line.is_of(&holder.name)))
    }

    pub fn lane(&self, host: &HostKey) -> Option<Lane> {
        self.holder(host).map(|holder| holder.lane)
    }

    fn holder(&self, host: &HostKey) -> Option<&Holder<W>> {
        self.holders.get(&host.address())?.iter().find(|holder| holder.name == *host.name())
    }

    /// A request for a lock came at that time; only what holders do is of interest.
    pub fn took(&mut self, host: &HostKey, incarnation: Incarnation, at: Instant) {
        let Some(there) = self.holders.get_mut(&host.address()) else { return };
        let holder = there.iter_mut().find(|holder| holder.name == *host.name());
        let Some(taken) = holder.map(|holder| &mut holder.taken) else { return };
        match taken.iter_mut().find(|(known, _)| *known == incarnation) {
            Some((_, last)) => *last = at.max(*last),
            None => {
                taken.push((incarnation, at));
                if taken.len() > INCARNATIONS_MAX {
                    let oldest = taken.iter().map(|(_, at)| *at).min();
                    taken.retain(|(_, at)| Some(*at) != oldest);
                }
            }
        }
    }

    /// When this incarnation of the host last took a lock. A reclaim carries no state, and only a
    /// kernel that held the lock before sends one.
    pub fn taken(&self, host: &HostKey, incarnation: Incarnation) -> Option<Instant> {
        let is_it = |known: Incarnation| known == incarnation || !known.is_known();
        let taken = self.holder(host)?.taken.iter();
        taken.filter(|(known, _)| is_it(*known)).map(|(_, at)| *at).max()
    }
}

fn is_old(at: Instant, now: Instant) -> bool {
    now.saturating_duration_since(at) > REMEMBERED
}

#[cfg(test)]
impl<W> Registry<W> {
    /// Open lines, remembered resets.
    pub fn sizes(&self) -> (usize, usize) {
        let resets: usize = self.resets.values().map(VecDeque::len).sum();
        assert_eq!(resets, self.resets_in_order.len());
        (self.open.values().map(Vec::len).sum(), resets)
    }
}

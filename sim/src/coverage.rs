//! How often runs reached each state of interest: a judge proves nothing about states that no seed
//! reaches.

use std::collections::BTreeMap;

/// Any thousand seeds must reach each of these.
pub(crate) const REQUIRED: [&str; 46] = [
    "double restart in grace",
    "reclaim refused",
    "roster restore",
    "kill inside a roster grace",
    "open restore",
    "kill inside an open grace",
    "store lost",
    "backup restored",
    "store failed over",
    "store failed over under the server",
    "kernel of a reclaim identified",
    "unrecorded reclaim",
    "deadlock",
    "cycle closed by a grant",
    "forged notice",
    "false reboot",
    "deaf holder",
    "dead waiter",
    "late GRANTED answer",
    "lost COMMIT outcome",
    "power loss",
    "crash between write and reply",
    "GRANTED overtakes BLOCKED",
    "silent give-up",
    "grant undone",
    "releasable lock released",
    "reboot notice pending",
    "gave up a LOCK that waits for a worker",
    "request behind one that waits for a worker",
    "outage longer than the window",
    "grace extended",
    "store stalls during a grace period",
    "store stalls during a reclaim",
    "lease not fresh",
    "mount before the notice",
    "reboot accepted: nothing reclaimed",
    "false report believed for want of a reclaim",
    "old kernel released beside a later one",
    "reboot notice unverified",
    "notice with a spoofed source",
    "user resets its own connection",
    "witness stands",
    "reset seen",
    "call stopped by a firewall",
    "client boots with another address",
    "unknown host refused",
];

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    counts: BTreeMap<&'static str, u64>,
}

impl Coverage {
    pub fn reach(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    pub fn add(&mut self, other: &Coverage) {
        for (what, count) in &other.counts {
            *self.counts.entry(what).or_default() += count;
        }
    }

    pub fn count(&self, what: &str) -> u64 {
        self.counts.get(what).copied().unwrap_or(0)
    }

    pub fn never_reached(&self) -> Vec<&'static str> {
        REQUIRED.into_iter().filter(|what| self.count(what) == 0).collect()
    }

    /// The required states first, then all others.
    pub fn rows(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let rare = REQUIRED.into_iter().map(|what| (what, self.count(what)));
        let rest = self.counts.iter().filter(|(what, _)| !REQUIRED.contains(what));
        rare.chain(rest.map(|(what, count)| (*what, *count)))
    }
}

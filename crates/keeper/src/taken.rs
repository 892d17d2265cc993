//! What a host holds and awaits, counted by the kernel that took it.

use std::collections::BTreeMap;

use crate::identity::Incarnation;

/// Locks and waiters carry the state of the kernel that sent them, or none; shares never carry one.
#[derive(Default)]
pub(crate) struct Taken {
    /// The number of locks and waiters by the state they carry.
    by_state: BTreeMap<Incarnation, usize>,
    /// The same for entries that carry no state: shares by the state that the host was known to be in,
    /// and locks and waiters as `UNKNOWN`; further by the reports that had arrived.
    stateless: BTreeMap<(Incarnation, u32), usize>,
    /// The reboot reports that have arrived in this epoch, as far as something was taken between
    /// them.
    reports: u32,
    /// Something was taken since the last report.
    since_report: bool,
}

impl Taken {
    pub(crate) fn reports(&self) -> u32 {
        self.reports
    }

    /// Separates what was taken before a report that arrives now from what is taken after it:
    /// entries with a smaller number were taken before.
    pub(crate) fn mark_report(&mut self) -> u32 {
        if std::mem::take(&mut self.since_report) || self.reports == 0 {
            self.reports = self.reports.saturating_add(1);
        }
        self.reports
    }

    pub(crate) fn count(&mut self, incarnation: Incarnation, reports: u32) {
        self.since_report = true;
        if incarnation.is_known() {
            *self.by_state.entry(incarnation).or_default() += 1;
        } else {
            *self.stateless.entry((incarnation, reports)).or_default() += 1;
        }
    }

    pub(crate) fn uncount(&mut self, incarnation: Incarnation, reports: u32) {
        if incarnation.is_known() {
            count_down(&mut self.by_state, incarnation);
        } else {
            count_down(&mut self.stateless, (incarnation, reports));
        }
    }

    pub(crate) fn count_share(&mut self, incarnation: Incarnation, reports: u32) {
        self.since_report = true;
        *self.stateless.entry((incarnation, reports)).or_default() += 1;
    }

    pub(crate) fn uncount_share(&mut self, incarnation: Incarnation, reports: u32) {
        count_down(&mut self.stateless, (incarnation, reports));
    }

    /// Whether something carries a state other than these two, or carries none, was taken before
    /// this report and may be of another kernel than these.
    pub(crate) fn has_others(
        &self,
        one: Incarnation,
        other: Option<Incarnation>,
        report: u32,
    ) -> bool {
        let differs = |taken: Incarnation| taken != one && Some(taken) != other;
        let mut stateless = self.stateless.keys();
        self.by_state.keys().any(|taken| differs(*taken))
            || stateless.any(|(taken, reports)| differs(*taken) && *reports < report)
    }

    /// Whether something of this kernel was taken before this report, or carries its state.
    pub(crate) fn has_of(&self, kernel: Incarnation, report: u32) -> bool {
        let mut stateless = self.stateless.range((kernel, 0)..(kernel, report));
        self.by_state.contains_key(&kernel) || stateless.next().is_some()
    }

    /// The oldest incarnation, except this one. Entries without any state come last: a later kernel
    /// may have taken some of them.
    pub(crate) fn oldest(&self, except: Option<Incarnation>) -> Option<Incarnation> {
        let stateless = self.stateless.keys().map(|(taken, _)| taken);
        let all = self.by_state.keys().chain(stateless).filter(|taken| Some(**taken) != except);
        all.min_by_key(|taken| (!taken.is_known(), **taken)).copied()
    }
}

fn count_down<K: Ord>(counts: &mut BTreeMap<K, usize>, key: K) {
    if let Some(count) = counts.get_mut(&key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&key);
        }
    }
}

//! A bounded number of permits, shared fairly among callers: unprivileged users and the network cannot
//! take them all, so some are always left for root.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use server::{Network, ReadBudget};

/// Callers that share a quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum CallerClass {
    /// Root and the server's own user: may take all permits.
    Trusted,
    User(u32),
    /// All callers over TCP of this machine, which are not distinguishable; for reads, all over TCP.
    Network,
    /// Callers over TCP of another machine, before it is known whether they have the token.
    Machine(Network),
}

/// Engine time for reads, a budget for each kind of caller (B7.123).
#[derive(Debug)]
pub(crate) struct Budgets {
    trusted: ReadBudget,
    users: ReadBudget,
    network: ReadBudget,
}

impl Default for Budgets {
    fn default() -> Self {
        Self::new(Duration::from_millis(200), Duration::from_millis(100))
    }
}

impl Budgets {
    /// Per second: `trusted` for operators, `others` for the users of the socket, and as much for TCP.
    pub(crate) fn new(trusted: Duration, others: Duration) -> Self {
        Self {
            trusted: ReadBudget::per_second(trusted),
            users: ReadBudget::per_second(others),
            network: ReadBudget::per_second(others),
        }
    }

    pub(crate) fn of(&self, class: CallerClass) -> &ReadBudget {
        match class {
            CallerClass::Trusted => &self.trusted,
            CallerClass::User(_) => &self.users,
            CallerClass::Network | CallerClass::Machine(_) => &self.network,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Quota {
    max: usize,
    taken: Mutex<HashMap<CallerClass, usize>>,
}

/// Returned when dropped.
#[derive(Debug)]
pub(crate) struct QuotaPermit {
    quota: Arc<Quota>,
    class: CallerClass,
}

impl Quota {
    pub(crate) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, taken: Mutex::default() })
    }

    /// `None` if the caller's quota is used up: a quarter for one user or machine, half for the network, three
    /// quarters for all untrusted callers together.
    pub(crate) fn take(self: &Arc<Self>, class: CallerClass) -> Option<QuotaPermit> {
        let mut taken = self.taken();
        let all: usize = taken.values().sum();
        let trusted = taken.get(&CallerClass::Trusted).copied().unwrap_or(0);
        let own = taken.entry(class).or_default();
        let has_room = match class {
            CallerClass::Trusted => true,
            CallerClass::User(_) | CallerClass::Machine(_) => *own < self.max / 4,
            CallerClass::Network => *own < self.max / 2,
        };
        let others_have = class == CallerClass::Trusted || all - trusted < self.max - self.max / 4;
        if all >= self.max || !has_room || !others_have {
            return None;
        }
        *own += 1;
        Some(QuotaPermit { quota: self.clone(), class })
    }

    fn taken(&self) -> MutexGuard<'_, HashMap<CallerClass, usize>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for QuotaPermit {
    fn drop(&mut self) {
        let mut taken = self.quota.taken();
        if let Some(own) = taken.get_mut(&self.class) {
            *own = own.saturating_sub(1);
        }
        taken.retain(|_, own| *own > 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take_all(quota: &Arc<Quota>, class: CallerClass) -> Vec<QuotaPermit> {
        std::iter::from_fn(|| quota.take(class)).collect()
    }

    #[test]
    fn nobody_but_root_can_have_them_all() {
        let quota = Quota::new(64);
        let one = take_all(&quota, CallerClass::User(1));
        assert_eq!(one.len(), 16);
        let network = take_all(&quota, CallerClass::Network);
        assert_eq!(network.len(), 32);
        assert_eq!(take_all(&quota, CallerClass::User(2)).len(), 0);
        let root = take_all(&quota, CallerClass::Trusted);
        assert_eq!(root.len(), 16);
        drop((one, network));
        assert_eq!(take_all(&quota, CallerClass::Trusted).len(), 48);
        drop(root);
        assert_eq!(take_all(&quota, CallerClass::Trusted).len(), 64);
        assert!(quota.taken().is_empty());
    }

    /// B7.143
    #[test]
    fn no_machine_of_the_network_can_have_them_all() {
        let quota = Quota::new(64);
        let class =
            |from: &str| crate::caller::Peer::Tcp { from: from.parse().unwrap() }.connects_as();
        let attacker = take_all(&quota, class("10.0.0.7:40000"));
        assert_eq!(attacker.len(), 16);
        assert!(quota.take(class("10.0.0.8:40000")).is_some());
        assert!(quota.take(class("127.0.0.1:40000")).is_some());
        let attacker = take_all(&quota, class("[2001:db8::7]:40000"));
        assert_eq!(attacker.len(), 16);
        assert!(quota.take(class("[2001:db8::8]:40000")).is_none(), "of the same network");
        assert!(quota.take(class("10.0.0.8:40000")).is_some());
    }

    #[test]
    fn a_place_that_was_left_can_be_taken_again() {
        let quota = Quota::new(64);
        let mut one = take_all(&quota, CallerClass::User(1));
        assert!(quota.take(CallerClass::User(1)).is_none());
        one.pop();
        assert!(quota.take(CallerClass::User(1)).is_some());
    }
}

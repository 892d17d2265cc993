//! Probes on behalf of waiters: is a waiter present to take its turn, does the holder of what it
//! waits for answer? All waiters that a probe concerns are judged by its one answer.

use std::collections::BTreeSet;

use crate::identity::ClientId;
use crate::waiters::WaiterId;

/// Whose host is probed on behalf of a waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ProbeSubject {
    /// The waiter itself: its range is free, and its host was not heard lately.
    Waiter,
    /// The holder of what it waits for.
    Holder,
}

/// Outstanding probes; at most one of each subject for a waiter and a host.
#[derive(Default)]
pub(crate) struct WaiterProbes {
    by_host: BTreeSet<(ClientId, WaiterId, ProbeSubject)>,
    by_waiter: BTreeSet<(WaiterId, ClientId, ProbeSubject)>,
}

impl WaiterProbes {
    pub(crate) fn len(&self) -> usize {
        self.by_host.len()
    }

    /// False if it is outstanding already.
    pub(crate) fn insert(&mut self, host: ClientId, waiter: WaiterId, of: ProbeSubject) -> bool {
        self.by_waiter.insert((waiter, host, of));
        self.by_host.insert((host, waiter, of))
    }

    /// Takes out the probes of a host, which has been answered, in order of the waiters' arrival.
    pub(crate) fn take_host(&mut self, host: ClientId) -> Vec<(WaiterId, ProbeSubject)> {
        let mut taken = Vec::new();
        while let Some(&(at, waiter, of)) = self.first_of_host(host)
            && at == host
        {
            self.by_host.remove(&(host, waiter, of));
            self.by_waiter.remove(&(waiter, host, of));
            taken.push((waiter, of));
        }
        taken
    }

    /// Takes out the waiters of a host that was probed for their own sake, in order of arrival.
    pub(crate) fn take_own(&mut self, host: ClientId) -> Vec<WaiterId> {
        let all = (host, WaiterId(0), ProbeSubject::Waiter)
            ..=(host, WaiterId(u64::MAX), ProbeSubject::Holder);
        let own = self.by_host.range(all).filter(|(_, _, of)| *of == ProbeSubject::Waiter);
        let own: Vec<WaiterId> = own.map(|(_, waiter, _)| *waiter).collect();
        for waiter in &own {
            self.by_host.remove(&(host, *waiter, ProbeSubject::Waiter));
            self.by_waiter.remove(&(*waiter, host, ProbeSubject::Waiter));
        }
        own
    }

    /// Drops the probes of a waiter that is gone.
    pub(crate) fn remove_waiter(&mut self, waiter: WaiterId) {
        while let Some(&(of, host, subject)) = self.first_of_waiter(waiter)
            && of == waiter
        {
            self.by_waiter.remove(&(waiter, host, subject));
            self.by_host.remove(&(host, waiter, subject));
        }
    }

    fn first_of_host(&self, host: ClientId) -> Option<&(ClientId, WaiterId, ProbeSubject)> {
        self.by_host.range((host, WaiterId(0), ProbeSubject::Waiter)..).next()
    }

    fn first_of_waiter(&self, waiter: WaiterId) -> Option<&(WaiterId, ClientId, ProbeSubject)> {
        self.by_waiter.range((waiter, ClientId(0), ProbeSubject::Waiter)..).next()
    }
}

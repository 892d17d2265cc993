//! Parked requests: held back until grace ends (B4.9) or a probe is answered (B3.8, B3.14, B4.15).
//! Bounded (I10); UNLOCK and CANCEL withdraw them.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use crate::bytes::FileKey;
use crate::identity::{Caller, ClientId, Incarnation, RequestId};
use crate::range::Range;
use crate::reboot_reports::{Arrival, RebootReport};
use crate::request::{
    LockRequest, Mode, OwnerName, ProbeAnswer, Question, ShareRequest, TestRequest,
};

/// A parked request, with the probes already made for it, so that none is repeated.
#[derive(Clone, Debug)]
pub(crate) enum Parked {
    Lock(LockRequest, ProbeHistory),
    Share(ShareRequest, ProbeHistory),
    Test(TestRequest),
    /// A report that a host rebooted.
    RebootReport(RebootReport),
}

/// A probe and its answer; `None` if it timed out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProbeOutcome {
    pub client: ClientId,
    pub question: Question,
    pub answer: Option<ProbeAnswer>,
}

/// A request whose wait is over, because of a probe or, if `None`, because grace ended.
#[derive(Debug)]
pub(crate) struct ReadyRequest {
    pub parked: Parked,
    pub probe: Option<ProbeOutcome>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct ProbeHistory {
    /// The recorded incarnation when the caller's old kernel was probed.
    pub kernel: Option<Incarnation>,
    /// When the request first had that kernel probed.
    pub arrived: Option<Arrival>,
    /// Hosts that hold what is wanted and answered a probe.
    pub holders: Vec<ClientId>,
}

impl Parked {
    /// Whether this is a LOCK of the owner on the file: inside the range, or exactly this range and
    /// mode.
    fn is_lock_of(
        &self,
        caller: &Caller,
        owner: &OwnerName,
        file: &FileKey,
        range: Range,
        mode: Option<Mode>,
    ) -> bool {
        match self {
            Parked::Lock(request, _) => {
                request.caller == *caller
                    && request.owner == *owner
                    && request.file == *file
                    && match mode {
                        Some(mode) => request.mode == mode && request.range == range,
                        None => range.covers(request.range),
                    }
            }
            _ => false,
        }
    }

    /// Where the request came from.
    pub(crate) fn address(&self) -> IpAddr {
        match self {
            Parked::Lock(request, _) => request.caller.host.address(),
            Parked::Share(request, _) => request.caller.host.address(),
            Parked::Test(request) => request.caller.host.address(),
            Parked::RebootReport(report) => report.source,
        }
    }

    pub(crate) fn request(&self) -> Option<RequestId> {
        match self {
            Parked::Lock(request, _) => Some(request.id),
            Parked::Share(request, _) => Some(request.id),
            Parked::Test(request) => Some(request.id),
            Parked::RebootReport(report) => report.request,
        }
    }
}

#[derive(Default)]
pub(crate) struct Parking {
    held_back: VecDeque<(Duration, Parked)>,
    probes: BTreeMap<(ClientId, Question), Vec<Parked>>,
    /// Requests whose wait is over, in the order in which they are to be decided.
    ready: VecDeque<ReadyRequest>,
    count: usize,
    /// Those of each address.
    by_address: BTreeMap<IpAddr, usize>,
}

impl Parking {
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// Parked requests that came from an address.
    pub(crate) fn len_at(&self, address: IpAddr) -> usize {
        self.by_address.get(&address).copied().unwrap_or(0)
    }

    fn count_in(&mut self, parked: &Parked) {
        self.count += 1;
        *self.by_address.entry(parked.address()).or_default() += 1;
    }

    fn count_out(&mut self, address: IpAddr) {
        self.count -= 1;
        if let Some(there) = self.by_address.get_mut(&address) {
            *there -= 1;
            if *there == 0 {
                self.by_address.remove(&address);
            }
        }
    }

    pub(crate) fn hold_back(&mut self, until: Duration, parked: Parked) {
        self.count_in(&parked);
        self.held_back.push_back((until, parked));
    }

    /// When the first request held back by grace must be answered.
    pub(crate) fn first_deadline(&self) -> Option<Duration> {
        self.held_back.front().map(|(until, _)| *until)
    }

    pub(crate) fn pop_held_back(&mut self, by: Duration) -> Option<Parked> {
        if self.first_deadline()? > by {
            return None;
        }
        let (_, parked) = self.held_back.pop_front()?;
        self.count_out(parked.address());
        Some(parked)
    }

    /// Grace has ended: what it held back is decided before anything else.
    pub(crate) fn resume_held_back(&mut self) {
        for (_, parked) in self.held_back.drain(..).rev() {
            self.ready.push_front(ReadyRequest { parked, probe: None });
        }
    }

    /// Has a request decided anew, after the ranges it freed have gone to their waiters.
    pub(crate) fn resume(&mut self, parked: Parked) {
        self.count_in(&parked);
        self.ready.push_front(ReadyRequest { parked, probe: None });
    }

    /// Parks a request until the question is answered.
    pub(crate) fn await_probe(&mut self, host: ClientId, question: Question, parked: Parked) {
        self.count_in(&parked);
        self.probes.entry((host, question)).or_default().push(parked);
    }

    /// Merges a repeated report into the one that awaits a probe of the host. Returns the request
    /// of the earlier one, which the new one replaces: a sender takes replies to its last call only.
    pub(crate) fn merge_report(
        &mut self,
        host: ClientId,
        report: &RebootReport,
    ) -> Option<RequestId> {
        let first = (host, Question::SameKernel(Incarnation::UNKNOWN));
        let parked = self.probes.range_mut(first..=(host, Question::State)).flat_map(|(_, it)| it);
        let same = |parked: &&mut RebootReport| {
            let RebootReport { source, name, to, .. } = report;
            (&parked.source, &parked.name, &parked.to) == (source, name, to)
                && (report.unverified || !parked.unverified)
        };
        let mut reports = parked.filter_map(|parked| match parked {
            Parked::RebootReport(report) => Some(report),
            _ => None,
        });
        std::mem::replace(&mut reports.find(same)?.request, report.request)
    }

    /// Makes ready what waited for this answer; requests that arrive now wait for the next. Reboot
    /// reports come first, because other requests may be of the dead kernel.
    pub(crate) fn answer(&mut self, probe: ProbeOutcome) {
        if let Some(mut parked) = self.probes.remove(&(probe.client, probe.question)) {
            parked.sort_by_key(|parked| !matches!(parked, Parked::RebootReport(_)));
            let ready =
                parked.into_iter().map(|parked| ReadyRequest { parked, probe: Some(probe) });
            self.ready.extend(ready);
        }
    }

    pub(crate) fn pop_ready(&mut self) -> Option<ReadyRequest> {
        let ready = self.ready.pop_front()?;
        self.count_out(ready.parked.address());
        Some(ready)
    }

    /// Removes the LOCKs that an owner no longer wants: one range and mode (CANCEL), or everything
    /// inside a range (UNLOCK). Returns their ids.
    pub(crate) fn withdraw(
        &mut self,
        caller: &Caller,
        owner: &OwnerName,
        file: &FileKey,
        range: Range,
        mode: Option<Mode>,
    ) -> Vec<RequestId> {
        if self.count == 0 {
            return Vec::new();
        }
        self.take_out(|parked| parked.is_lock_of(caller, owner, file, range, mode))
    }

    /// Removes what `unwanted` selects and returns the request ids.
    pub(crate) fn take_out(&mut self, unwanted: impl Fn(&Parked) -> bool) -> Vec<RequestId> {
        let (mut out, mut addresses) = (Vec::new(), Vec::new());
        let mut keep = |parked: &Parked| {
            let unwanted = unwanted(parked);
            if unwanted {
                out.extend(parked.request());
                addresses.push(parked.address());
            }
            !unwanted
        };
        self.held_back.retain(|(_, parked)| keep(parked));
        // An outstanding probe stays outstanding even if nothing waits for it.
        for waiting in self.probes.values_mut() {
            waiting.retain(&mut keep);
        }
        self.ready.retain(|ready| keep(&ready.parked));
        for address in addresses {
            self.count_out(address);
        }
        out
    }
}

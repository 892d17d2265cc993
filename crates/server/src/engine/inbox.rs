//! The inbox: inputs that have arrived and are not decided yet, in order of arrival, bounded (I10). No
//! I/O and no clock, so that the simulator runs the same code.

use std::collections::{BTreeSet, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use keeper::Keeper;
use keeper::identity::{ClientId, GrantId, HostKey, NoticeId};
use keeper::request::{GrantAnswer, NoticeResult, ProbeAnswer, Question};

use super::request::{Request, STALL_MAX};

/// The most reads of the keeper that may wait (I10).
const READS_MAX: usize = 1024;

/// The most reads in a batch.
const READS_AT_ONCE: usize = 4;

/// An input of the keeper. `S` is the sink of a reply.
pub enum Input<S> {
    Request(Request, S),
    Granted(GrantId, GrantAnswer),
    Noticed(NoticeId, NoticeResult),
    Probed(ClientId, Question, ProbeAnswer),
    /// A connection of this host was reset by its peer, without a probe. `life` is the last sign of
    /// life on it (`Time::mono`).
    Reset {
        host: HostKey,
        life: Duration,
    },
    /// A call came from this address. `local`: the address is this machine's.
    Heard {
        address: IpAddr,
        local: bool,
    },
    /// In an open grace: a host that uses an export called, through this address of ours.
    Mounted {
        address: IpAddr,
        ours: IpAddr,
    },
    /// A machine that calls itself so uses files from this address, through this address of ours.
    Appeared {
        host: HostKey,
        ours: IpAddr,
    },
    /// The addresses of this machine have changed; `None` if they are not known.
    Addresses(Option<BTreeSet<IpAddr>>),
    /// Reads the keeper. Must be short: other inputs wait.
    Read(Box<dyn FnOnce(&Keeper) + Send>),
    Timeout,
    Stop,
}

/// Undecided inputs, oldest first.
pub struct Inbox<S> {
    waiting: VecDeque<(Duration, Input<S>)>,
    requests: usize,
    requests_max: usize,
    reads: usize,
    heavy: usize,
}

impl<S> Inbox<S> {
    /// `requests_max` bounds the inputs that peers cause (I10). Reports of the server itself are
    /// bounded by the callbacks and probes under way.
    pub fn new(requests_max: usize) -> Self {
        Self { waiting: VecDeque::new(), requests: 0, requests_max, reads: 0, heavy: 0 }
    }

    /// Adds an input. False if there is no room: the input is dropped, and the peer retransmits.
    pub fn push(&mut self, input: Input<S>, now: Duration) -> bool {
        match &input {
            Input::Request(..) if self.requests >= self.requests_max => return false,
            Input::Heard { .. } | Input::Mounted { .. } | Input::Appeared { .. }
                if self.waiting.len() >= self.requests_max =>
            {
                return false;
            }
            Input::Read(_) if self.reads >= READS_MAX => return false,
            Input::Read(_) => self.reads += 1,
            Input::Request(request, _) => {
                self.requests += 1;
                self.heavy += usize::from(!request.is_light());
            }
            _ => self.heavy += 1,
        }
        self.waiting.push_back((now, input));
        true
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether all inputs are decided in microseconds.
    pub fn is_light(&self) -> bool {
        self.heavy == 0
    }

    /// Takes all inputs up to the first [`Input::Stop`], and drops the rest if there is one. Reads come
    /// last and few at a time, the rest stays: locks go first (B7.123).
    pub fn take(&mut self) -> Vec<Input<S>> {
        let waiting = std::mem::take(&mut self.waiting);
        (self.requests, self.reads, self.heavy) = (0, 0, 0);
        let stop = waiting.iter().position(|(_, input)| matches!(input, Input::Stop));
        let upto = stop.map_or(waiting.len(), |stop| stop + 1);
        let (mut inputs, mut reads) = (Vec::with_capacity(upto), Vec::new());
        for (since, input) in waiting.into_iter().take(upto) {
            match input {
                Input::Read(_) if stop.is_none() && reads.len() < READS_AT_ONCE => {
                    reads.push(input);
                }
                Input::Read(_) if stop.is_none() => {
                    self.reads += 1;
                    self.waiting.push_back((since, input));
                }
                input => inputs.push(input),
            }
        }
        inputs.extend(reads);
        inputs
    }

    /// Takes the requests that have waited for [`STALL_MAX`] (I11); other inputs stay.
    pub fn take_expired(&mut self, now: Duration) -> Vec<(Request, S)> {
        let mut expired = Vec::new();
        for (since, input) in std::mem::take(&mut self.waiting) {
            match input {
                Input::Request(request, sink) if since + STALL_MAX <= now => {
                    self.requests -= 1;
                    self.heavy -= usize::from(!request.is_light());
                    expired.push((request, sink));
                }
                input => self.waiting.push_back((since, input)),
            }
        }
        expired
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tests::lock_request;
    use keeper::identity::RequestId;
    use keeper::request::{OperatorAction, OperatorRequest};

    fn lock(id: u64) -> Input<u64> {
        Input::Request(Request::Lock(lock_request(id, "alice", "10.0.0.1")), id)
    }

    #[test]
    fn locks_go_before_reads() {
        let mut inbox = Inbox::new(10);
        let read = || Input::Read(Box::new(|_: &Keeper| {}));
        for _ in 0..READS_AT_ONCE + 2 {
            assert!(inbox.push(read(), Duration::ZERO));
        }
        assert!(inbox.push(lock(1), Duration::ZERO));
        let taken = inbox.take();
        assert!(matches!(taken[0], Input::Request(_, 1)));
        assert_eq!(taken.len(), 1 + READS_AT_ONCE);
        assert!(!inbox.is_empty());
        assert_eq!(inbox.take().len(), 2);
        assert!(inbox.is_empty());
    }

    fn heard() -> Input<u64> {
        Input::Heard { address: [10, 0, 0, 1].into(), local: false }
    }

    fn operator() -> Input<u64> {
        let (id, by) = (RequestId(9), "operator".into());
        let action = OperatorAction::EndGrace;
        Input::Request(Request::Operator(OperatorRequest { id, by, action }), 9)
    }

    #[test]
    fn what_peers_can_make_wait_is_bounded_and_reports_are_not() {
        let mut inbox = Inbox::new(2);
        let now = Duration::ZERO;
        assert!(inbox.push(lock(1), now) && inbox.push(lock(2), now));
        assert!(!inbox.push(lock(3), now));
        assert!(!inbox.push(heard(), now));
        assert!(inbox.push(Input::Timeout, now));
        for _ in 0..READS_MAX {
            assert!(inbox.push(Input::Read(Box::new(|_| ())), now));
        }
        assert!(!inbox.push(Input::Read(Box::new(|_| ())), now));
        assert_eq!(inbox.take().len(), 3 + READS_AT_ONCE);
        assert!(inbox.push(lock(4), now));
        let mut rest = 0;
        while !inbox.is_empty() {
            rest += inbox.take().len();
        }
        assert_eq!(rest, 1 + READS_MAX - READS_AT_ONCE);
        assert!(inbox.push(heard(), now));
    }

    #[test]
    fn only_locks_and_reads_are_light() {
        let mut inbox = Inbox::new(10);
        let now = Duration::ZERO;
        assert!(inbox.push(lock(1), now) && inbox.push(Input::Read(Box::new(|_| ())), now));
        assert!(inbox.is_light());
        assert!(inbox.push(operator(), now));
        assert!(!inbox.is_light());
        assert_eq!(inbox.take_expired(STALL_MAX).len(), 2);
        assert!(inbox.is_light());
        assert!(inbox.push(Input::Timeout, now));
        assert!(!inbox.is_light());
        inbox.take();
        assert!(inbox.is_light());
    }

    #[test]
    fn requests_expire_by_their_own_age_and_make_room() {
        let mut inbox = Inbox::new(2);
        assert!(inbox.push(lock(1), Duration::ZERO));
        assert!(inbox.push(lock(2), Duration::from_secs(1)));
        let expired = inbox.take_expired(STALL_MAX);
        assert_eq!(expired.iter().map(|(_, sink)| *sink).collect::<Vec<_>>(), [1]);
        assert!(inbox.push(lock(3), STALL_MAX) && !inbox.push(lock(4), STALL_MAX));
    }

    #[test]
    fn nothing_follows_a_stop() {
        let mut inbox = Inbox::new(10);
        for input in [lock(1), Input::Stop, lock(2)] {
            assert!(inbox.push(input, Duration::ZERO));
        }
        let taken = inbox.take();
        assert!(matches!(taken[..], [Input::Request(..), Input::Stop]));
    }
}

//! What has arrived and is not decided yet, in order of arrival and bounded (I10). No I/O and no
//! clock, so that the simulator runs exactly this.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

use keeper::Keeper;
use keeper::identity::{ClientId, GrantId, HostKey, NoticeId};
use keeper::request::{GrantAnswer, NoticeResult, ProbeAnswer, Question};

use super::request::{Request, STALL_MAX};

/// Reads of the keeper that wait; more are refused (I10).
const READS_MAX: usize = 1024;

/// Everything that enters the keeper. `S` is the sink of a reply.
pub enum Input<S> {
    Request(Request, S),
    Granted(GrantId, GrantAnswer),
    Noticed(NoticeId, NoticeResult),
    Probed(ClientId, Question, ProbeAnswer),
    /// An old connection of this host was reset, unasked.
    Reset(HostKey),
    Heard(IpAddr),
    /// A bounded look at the keeper: other inputs wait meanwhile.
    Read(Box<dyn FnOnce(&Keeper) + Send>),
    Timeout,
    Stop,
}

/// Inputs that wait to be decided, oldest first.
pub struct Inbox<S> {
    waiting: VecDeque<(Duration, Input<S>)>,
    requests: usize,
    requests_max: usize,
    reads: usize,
    heavy: usize,
}

impl<S> Inbox<S> {
    /// `requests_max` bounds what peers can make wait (I10); what the server itself reports is
    /// bounded by what it has under way.
    pub fn new(requests_max: usize) -> Self {
        Self { waiting: VecDeque::new(), requests: 0, requests_max, reads: 0, heavy: 0 }
    }

    /// False if there is no room: the input is dropped, as a full socket buffer drops it, and its
    /// sender asks again.
    pub fn push(&mut self, input: Input<S>, now: Duration) -> bool {
        match &input {
            Input::Request(..) if self.requests >= self.requests_max => return false,
            Input::Heard(_) if self.waiting.len() >= self.requests_max => return false,
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

    /// Whether all that waits is decided in microseconds.
    pub fn is_light(&self) -> bool {
        self.heavy == 0
    }

    /// All that waits. After a stop nothing enters the keeper any more.
    pub fn take(&mut self) -> Vec<Input<S>> {
        (self.requests, self.reads, self.heavy) = (0, 0, 0);
        let mut inputs: Vec<Input<S>> = self.waiting.drain(..).map(|(_, input)| input).collect();
        if let Some(stop) = inputs.iter().position(|input| matches!(input, Input::Stop)) {
            inputs.truncate(stop + 1);
        }
        inputs
    }

    /// Takes out the requests that have waited too long for a store that does not work (I11).
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

//! One request, one effect (R3.8, I8): a repeat within two minutes gets the same answer, a repeat of
//! one in progress gets none yet.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::rc::Rc;

use keeper::bytes::Name;
use keeper::identity::Transport;

use crate::packet::{Answer, Call, Request};
use crate::queue::{MINUTE, Ms, SECOND};

const REMEMBERED: Ms = 2 * MINUTE;
const FRESH: Ms = 10 * SECOND;

#[derive(Debug)]
struct Entry {
    call: Call,
    name: Name,
    since: Ms,
    /// When it was last answered.
    active: Ms,
    /// With the number of the decision.
    answer: Option<(Answer, u64)>,
}

#[derive(Debug)]
pub enum Seen {
    New,
    InProgress,
    Answered(Answer, u64),
}

type Key = (IpAddr, Transport, u32);

#[derive(Debug, Default)]
pub struct Replay {
    entries: BTreeMap<Key, Entry>,
}

fn key(request: &Request) -> Key {
    (request.from, request.lane.transport(), request.xid)
}

impl Replay {
    pub fn see(&mut self, request: &Rc<Request>, now: Ms) -> Seen {
        if let Some(entry) = self.entries.get_mut(&key(request))
            && entry.call == request.call
            && entry.since + REMEMBERED > now
        {
            entry.active = now;
            return match &entry.answer {
                Some((answer, decided)) => Seen::Answered(answer.clone(), *decided),
                None => Seen::InProgress,
            };
        }
        let (call, name) = (request.call.clone(), request.name.clone());
        let entry = Entry { call, name, since: now, active: now, answer: None };
        self.entries.insert(key(request), entry);
        Seen::New
    }

    pub fn answered(&mut self, request: &Request, answer: &Answer, decided: u64, now: Ms) {
        if let Some(entry) = self.entries.get_mut(&key(request)) {
            entry.answer = Some((answer.clone(), decided));
            entry.active = now;
        }
    }

    /// No reply was sent: a repeat is a new request.
    pub fn forget(&mut self, request: &Request) {
        self.entries.remove(&key(request));
    }

    /// A rebooted host may count its transaction ids from anywhere. Its neighbours behind the same
    /// address may not: their repeats are still repeats. Nor is forgotten what is only seconds old: the
    /// notice may be late, and the entry of the new life.
    pub fn forget_host(&mut self, address: IpAddr, name: &Name, now: Ms) {
        self.entries.retain(|(from, _, _), entry| {
            let fresh = entry.answer.is_none() || entry.active + FRESH > now;
            *from != address || entry.name != *name || fresh
        });
    }
}

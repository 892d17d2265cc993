//! A call that is answered later, by whoever comes to know the answer.

use std::time::Instant;

use wire::rpc::{self, Accepted, Call, Denial};
use wire::{Message, Writer};

use crate::dispatch::{Underway, accepted};
use crate::meters::Fate;
use crate::transport::{Mailbag, Peer};

/// Dropped without an answer, it is as if the call had never come: a repetition is a new one.
pub struct Task {
    pub call: Call,
    pub peer: Peer,
    underway: Underway,
}

impl Task {
    pub fn new(call: Call, peer: Peer, underway: Underway) -> Self {
        Self { call, peer, underway }
    }

    /// Since when the connection that it came by is open; datagrams have none.
    pub fn connected(&self) -> Option<Instant> {
        self.underway.connected()
    }

    /// The procedure ran; `results` writes what it gives back.
    pub fn reply(self, mail: &mut Mailbag, results: impl FnOnce(&mut Writer)) {
        let reply = success(self.call.xid, results);
        self.underway.finish(&reply, &reply, Fate::Success, mail);
    }

    /// The procedure ran and gives back nothing here, because its result is sent in another way;
    /// `kept` is what a repetition needs to send it again.
    pub fn reply_void(self, mail: &mut Mailbag, kept: &Message) {
        let reply = success(self.call.xid, |_| ());
        self.underway.finish(kept, &reply, Fate::Success, mail);
    }

    /// The procedure did not run.
    pub fn not_run(self, mail: &mut Mailbag, why: Accepted) {
        let reply = accepted(self.call.xid, why);
        self.underway.finish(&reply, &reply, Fate::NotRun, mail);
    }

    /// The caller may not call.
    pub fn deny(self, mail: &mut Mailbag, why: Denial) {
        let mut out = Writer::new();
        rpc::write_denied(&mut out, self.call.xid, why);
        let reply = out.finish();
        self.underway.finish(&reply, &reply, Fate::Denied, mail);
    }
}

pub fn success(xid: u32, results: impl FnOnce(&mut Writer)) -> Message {
    let mut out = Writer::new();
    rpc::write_accepted(&mut out, xid, Accepted::Success);
    results(&mut out);
    out.finish()
}

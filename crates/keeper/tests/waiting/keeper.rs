//! The keeper, asked as clients ask it; every GRANTED is accepted at once.

use std::collections::{BTreeMap, BTreeSet};

use lockkeeper_keeper::Keeper;
use lockkeeper_keeper::bytes::{FileKey, Handle, Name, OwnerTag};
use lockkeeper_keeper::change::Snapshot;
use lockkeeper_keeper::config::Config;
use lockkeeper_keeper::event::Event;
use lockkeeper_keeper::identity::{
    Caller, Epoch, HostKey, Incarnation, LockId, OwnerNamespace, RequestId, Transport,
};
use lockkeeper_keeper::range::Range;
use lockkeeper_keeper::request::*;
use lockkeeper_keeper::step::{Message, Outcome, Reply, Step};
use lockkeeper_keeper::time::Time;

use super::Answer;
use super::model::{BYTES, Bytes, Request};

pub struct KeeperUnderTest {
    keeper: Keeper,
    /// The thread of each waiting request: NLM does not tell threads apart.
    threads: BTreeMap<(usize, usize, usize, bool), usize>,
    closed: bool,
}

impl KeeperUnderTest {
    pub fn new() -> Self {
        let now = Time::default();
        let mut keeper = Keeper::restore(Snapshot::default(), Epoch(1), Config::default(), now);
        keeper.poll_step();
        Self { keeper, threads: BTreeMap::new(), closed: false }
    }

    pub fn lock(&mut self, request: Request) -> Answer {
        let Request { owner, thread, first, last, mode } = request;
        let (caller, name) = owner_of(owner);
        let request = LockRequest {
            id: RequestId(1),
            caller,
            owner: name,
            file: FileKey::from("file"),
            handle: Handle::from("file"),
            range: range(first, last),
            mode,
            wait: true,
            reclaim: false,
            admitted: true,
            monitored: true,
            incarnation: Incarnation(3),
            form: Form::Call,
            stateless: false,
            connected: None,
        };
        self.keeper.handle_lock(request, Time::default());
        let answer = self.run().expect("a reply");
        if answer == Answer::Waits {
            self.threads.insert((owner, first, last, mode == Mode::Exclusive), thread);
        }
        answer
    }

    pub fn unlock(&mut self, owner: usize, first: usize, last: usize) {
        let (caller, owner) = owner_of(owner);
        let request = UnlockRequest {
            id: RequestId(1),
            caller,
            owner,
            file: FileKey::from("file"),
            range: range(first, last),
        };
        self.keeper.handle_unlock(request, Time::default());
        self.run();
    }

    /// Handles all steps; returns the answer to a LOCK.
    fn run(&mut self) -> Option<Answer> {
        let mut answer = None;
        while let Some(Step { messages, events, .. }) = self.keeper.poll_step() {
            self.closed |= events.iter().any(|event| matches!(event, Event::CycleClosed { .. }));
            for message in messages {
                match message {
                    Message::Reply(_, Reply::Lock(outcome)) => {
                        answer = Some(match outcome {
                            Outcome::Granted => Answer::Granted,
                            Outcome::Blocked => Answer::Waits,
                            Outcome::Deadlock => Answer::Deadlock,
                            other => panic!("{other:?}"),
                        });
                    }
                    Message::Reply(_, Reply::Unlock) => {}
                    Message::Grant(grant) => {
                        let answer = GrantAnswer::Accepted;
                        self.keeper.handle_grant_answer(grant.id, answer, Time::default());
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
        answer
    }

    /// Whether a grant has closed a cycle since the last call.
    pub fn take_closed(&mut self) -> bool {
        std::mem::take(&mut self.closed)
    }

    pub fn waiting(&self) -> BTreeSet<Request> {
        let waiters = self.keeper.waiters(LockId(0));
        let request = |owner: usize, range: Range, mode: Mode| {
            let (first, last) = (range.first() as usize, range.last() as usize);
            let thread = self.threads[&(owner, first, last, mode == Mode::Exclusive)];
            Request { owner, thread, first, last, mode }
        };
        waiters.map(|it| request(it.owner.number as usize, it.range, it.mode)).collect()
    }

    pub fn held_by(&self, owner: usize) -> Bytes {
        let mut bytes = [None; BYTES];
        for lock in self.keeper.locks(LockId(0)).filter(|lock| lock.owner.number == owner as u32) {
            bytes[lock.range.first() as usize..=lock.range.last() as usize].fill(Some(lock.mode));
        }
        bytes
    }
}

/// Two hosts, the owners by number.
fn owner_of(owner: usize) -> (Caller, OwnerName) {
    let host = if owner.is_multiple_of(2) { "alice" } else { "bob" };
    let host = HostKey::new("10.0.0.1".parse().unwrap(), Name::from(host));
    let namespace = OwnerNamespace::new("10.0.0.100".parse().unwrap(), Transport::Tcp, 4);
    (Caller { host, namespace }, OwnerName { number: owner as u32, tag: OwnerTag::from("x") })
}

fn range(first: usize, last: usize) -> Range {
    Range::between(first as u64, last as u64).unwrap()
}

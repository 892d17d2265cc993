//! The keeper, asked as a client asks it.

use lockkeeper_keeper::Keeper;
use lockkeeper_keeper::bytes::{FileKey, Handle, Name, OwnerTag};
use lockkeeper_keeper::change::Snapshot;
use lockkeeper_keeper::config::Config;
use lockkeeper_keeper::identity::{
    Caller, Epoch, HostKey, Incarnation, OwnerNamespace, RequestId, Transport,
};
use lockkeeper_keeper::range::Range;
use lockkeeper_keeper::request::*;
use lockkeeper_keeper::step::{Message, Outcome, Reply, TestResult};
use lockkeeper_keeper::time::Time;

use super::operation::{Answer, Held, LAST, OWNERS, Operation, Verb};

pub struct KeeperUnderTest {
    keeper: Keeper,
    file: FileKey,
    handle: Handle,
    owners: Vec<(Caller, OwnerName)>,
}

impl KeeperUnderTest {
    pub fn new() -> Self {
        let now = Time::default();
        let mut keeper = Keeper::restore(Snapshot::default(), Epoch(1), Config::default(), now);
        keeper.poll_step();
        // Two hosts, two namespaces, two numbers, two tags: each part alone makes another owner.
        let owner = |host: &str, transport, number, tag: &str| {
            let host = HostKey::new("10.0.0.1".parse().unwrap(), Name::from(host));
            let namespace = OwnerNamespace::new("10.0.0.100".parse().unwrap(), transport, 4);
            let owner = OwnerName { number, tag: OwnerTag::from(tag) };
            (Caller { host, namespace }, owner)
        };
        let owners = vec![
            owner("alice", Transport::Tcp, 0, "x"),
            owner("alice", Transport::Tcp, 1, "x"),
            owner("alice", Transport::Tcp, 0, "y"),
            owner("alice", Transport::Udp, 0, "x"),
            owner("bob", Transport::Tcp, 0, "x"),
        ];
        assert_eq!(owners.len(), OWNERS);
        Self { keeper, file: FileKey::from("file"), handle: Handle::from("file"), owners }
    }

    pub fn judge(&mut self, operation: Operation) -> Answer {
        let Operation { owner, verb, offset, length } = operation;
        let Ok(range) = Range::at(offset, length) else { return Answer::OffsetTooLarge };
        let (caller, owner) = self.owners[owner].clone();
        let (id, file, now) = (RequestId(1), self.file.clone(), Time::default());
        match verb {
            Verb::Lock(mode) => {
                let request = LockRequest {
                    id,
                    caller,
                    owner,
                    file,
                    handle: self.handle.clone(),
                    range,
                    mode,
                    wait: false,
                    reclaim: false,
                    admitted: true,
                    monitored: true,
                    incarnation: Incarnation(3),
                    form: Form::Call,
                    stateless: false,
                    connected: None,
                };
                self.keeper.handle_lock(request, now);
            }
            Verb::Unlock => {
                let request = UnlockRequest { id, caller, owner, file, range };
                self.keeper.handle_unlock(request, now);
            }
            Verb::Test(mode) => {
                let request = TestRequest { id, caller, owner, file, range, mode };
                self.keeper.handle_test(request, now);
            }
        }
        let step = self.keeper.poll_step().expect("a reply");
        let [Message::Reply(_, reply)] = step.messages.as_slice() else {
            panic!("one reply and nothing else, not {:?}", step.messages)
        };
        match reply {
            Reply::Lock(Outcome::Granted) | Reply::Unlock => Answer::Done,
            Reply::Lock(Outcome::Denied) => Answer::Conflict,
            Reply::Test(TestResult::Free) => Answer::Free,
            Reply::Test(TestResult::Held(holder)) => Answer::Held(held(holder.range, holder.mode)),
            other => panic!("no answer to {operation:?}: {other:?}"),
        }
    }

    /// What an owner holds, in order.
    pub fn held_by(&self, owner: usize) -> Vec<Held> {
        let (caller, name) = &self.owners[owner];
        let host = self.keeper.host(&caller.host).map(|client| client.id);
        let locks = self.keeper.locks_on(&self.file).filter(|lock| {
            Some(lock.owner.host) == host
                && lock.owner.namespace == caller.namespace
                && lock.owner.number == name.number
                && lock.owner.tag == name.tag
        });
        let mut held: Vec<_> = locks.map(|lock| held(lock.range, lock.mode)).collect();
        held.sort_by_key(|held| held.first);
        held
    }
}

fn held(range: Range, mode: Mode) -> Held {
    let last = if range.last() == u64::MAX { LAST } else { range.last() };
    Held { first: range.first(), last, mode }
}

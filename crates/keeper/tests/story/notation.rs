//! The text form of a step: first what becomes durable (`write`, `erase`), then the events
//! (`event`), then what is sent (`reply`, `send`, `probe`), in the order in which the driver does
//! it. Ids are shown by short names, assigned in order of appearance.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use lockkeeper_keeper::bytes::Name;
use lockkeeper_keeper::change::{Change, Client, Exactness, Lock, Share};
use lockkeeper_keeper::event::{Event, GraceEnd, Proof, Rejection, Release, ReleasedItem};
use lockkeeper_keeper::identity::{
    ClientId, Epoch, HostKey, Incarnation, Owner, RequestId, Transport,
};
use lockkeeper_keeper::request::{Access, Form, Mode, Question};
use lockkeeper_keeper::step::{
    CancelOutcome, Grant, Message, Notice, NoticeTarget, OperatorError, Outcome, Refusal, Reply,
    Step, TestResult,
};

use super::language::SERVER_ADDRESS;

/// Short names for everything that has an id.
#[derive(Clone, Default)]
pub struct Names {
    pub peers: BTreeMap<HostKey, String>,
    pub clients: BTreeMap<ClientId, String>,
    pub locks: Numbers,
    pub shares: Numbers,
    pub grants: Numbers,
    pub epoch: Epoch,
    /// Requests without a reply so far.
    pub open: BTreeMap<RequestId, String>,
}

/// Numbers from 1, in order of appearance.
#[derive(Clone, Default)]
pub struct Numbers(Vec<u64>);

impl Numbers {
    /// The number of an id that has appeared; otherwise 0.
    fn known(&self, id: u64) -> usize {
        self.0.iter().position(|known| *known == id).map_or(0, |at| at + 1)
    }

    fn of(&mut self, id: u64) -> usize {
        let known = self.0.iter().position(|known| *known == id);
        known.map_or_else(
            || {
                self.0.push(id);
                self.0.len()
            },
            |at| at + 1,
        )
    }

    /// The id behind a number.
    pub fn id(&self, number: u64) -> Result<u64, String> {
        let id = self.0.get((number as usize).wrapping_sub(1));
        id.copied().ok_or(format!("there is no number {number} yet"))
    }
}

impl Names {
    /// `asked` is the only request, which a bare `reply` answers.
    pub fn step(&mut self, step: &Step, asked: Option<RequestId>) -> Vec<String> {
        let mut lines = Vec::new();
        for change in &step.changes {
            lines.extend(self.change(change));
        }
        let sent = step.events.iter().filter(|event| matches!(event, Event::NoticeSent { .. }));
        let notices = step.messages.iter().filter(|message| matches!(message, Message::Notice(_)));
        assert_eq!(sent.count(), notices.count(), "an event for each notice: {step:?}");
        for event in &step.events {
            lines.extend(self.event(event).map(|event| format!("event  {event}")));
        }
        for message in &step.messages {
            lines.push(self.message(message, asked));
        }
        lines
    }

    fn change(&mut self, change: &Change) -> Option<String> {
        Some(match change {
            Change::Started { epoch, grace } => {
                self.epoch = *epoch;
                let grace = match grace {
                    None => "",
                    Some(Exactness::Exact) => ", in grace",
                    Some(Exactness::Roster) => ", in grace of a roster",
                    Some(Exactness::Open) => ", in an open grace",
                };
                format!("write  epoch {}{grace}", epoch.0)
            }
            Change::GraceEnded => "write  grace is over".into(),
            Change::Stopped => "write  stopped cleanly".into(),
            Change::IdsBelow(_) => return None,
            Change::Client(client) => {
                self.learn(client);
                format!("write  {}", self.client_row(client))
            }
            Change::ClientGone(id) => match self.clients.get(id) {
                Some(watch) if watch.contains("'s watch on ") => format!("erase  {watch}"),
                _ => format!("erase  host {}", self.client(*id)),
            },
            Change::Lock(lock) => format!("write  {}", self.lock_row(lock)),
            Change::LockGone(id) => format!("erase  lock {}", self.locks.of(id.0)),
            Change::Share(share) => format!("write  {}", self.share_row(share)),
            Change::ShareGone(id) => format!("erase  share {}", self.shares.of(id.0)),
        })
    }

    /// Records the name of a client.
    pub fn learn(&mut self, client: &Client) {
        let called = match &client.registrant {
            None if client.protocol.is_foreign() => {
                format!("{} by {}", self.peer(&client.key()), client.protocol.name())
            }
            None => self.peer(&client.key()),
            Some(registrant) => {
                format!("{}'s watch on {}", self.peer(&client.key()), registrant.watched)
            }
        };
        self.clients.insert(client.id, called);
    }

    fn peer(&self, key: &HostKey) -> String {
        self.peers.get(key).cloned().unwrap_or(format!("{:?} at {}", key.name(), key.address()))
    }

    pub fn client(&self, id: ClientId) -> String {
        self.clients.get(&id).cloned().unwrap_or(format!("client {}", id.0))
    }

    fn recipient(&self, client: Option<ClientId>, to: IpAddr) -> String {
        client.map_or_else(|| to.to_string(), |client| self.client(client))
    }

    fn client_row(&self, client: &Client) -> String {
        if client.registrant.is_some() {
            let told = match (client.incarnation.is_known(), client.reboot) {
                (false, _) => String::new(),
                (true, Some(_)) => format!(", to be told of {}", state(client.incarnation)),
                (true, None) => format!(", told of {}", state(client.incarnation)),
            };
            return self.client(client.id) + &told;
        }
        if client.protocol.is_foreign() {
            return format!("{}, {}", self.client(client.id), state(client.incarnation));
        }
        let mut row = format!("host {}: ", self.client(client.id));
        row += &state(client.incarnation);
        if let Some(reboot) = client.reboot {
            row += &format!(", rebooted from {}", reboot.from.0);
        }
        row += if client.monitored { ", monitored" } else { ", not monitored" };
        if client.fenced {
            row += ", fenced";
        }
        let used: Vec<_> = client.used.iter().map(ToString::to_string).collect();
        if used != [SERVER_ADDRESS] {
            row += &format!(", uses {}", used.join(" and "));
        }
        if client.epoch != self.epoch {
            row += &format!(", since epoch {}", client.epoch.0);
        }
        row
    }

    pub fn owner(&self, owner: &Owner) -> String {
        let host = self.client(owner.host);
        let mut who = match owner.number {
            0 if owner.tag.bytes() == host.as_bytes() => return host,
            number => format!("{host}({number}"),
        };
        if owner.tag.bytes() != format!("{}@{host}", owner.number).as_bytes() {
            who += &format!(", tag {:?}", owner.tag);
        }
        if owner.namespace.transport() == Transport::Udp {
            who += ", over udp";
        }
        if owner.namespace.version() != 4 {
            who += &format!(", nlm {}", owner.namespace.version());
        }
        if owner.namespace.server_address().to_string() != SERVER_ADDRESS {
            who += &format!(", by {}", owner.namespace.server_address());
        }
        who + ")"
    }

    fn lock_row(&mut self, lock: &Lock) -> String {
        let owner = self.owner(&lock.owner);
        let number = self.locks.of(lock.id.0);
        let unmonitored = if lock.monitored { "" } else { ", unmonitored" };
        format!(
            "lock {number}: {owner} {} {:?} {}, {}{unmonitored}",
            lock.file,
            lock.range,
            mode(lock.mode),
            state(lock.incarnation)
        )
    }

    fn share_row(&mut self, share: &Share) -> String {
        let owner = self.owner(&share.owner);
        let number = self.shares.of(share.id.0);
        format!(
            "share {number}: {owner} {} for {} denying {}, {}",
            share.file,
            access(share.access),
            access(share.deny),
            state(share.incarnation)
        )
    }

    pub fn lock_number(&mut self, id: u64) -> usize {
        self.locks.of(id)
    }

    fn message(&mut self, message: &Message, asked: Option<RequestId>) -> String {
        match message {
            Message::Reply(request, reply) => {
                let sentence = self.open.remove(request);
                let sentence = sentence.expect("one reply for each request, and no other");
                let whose = if asked == Some(*request) {
                    String::new()
                } else {
                    format!(", to: {sentence}")
                };
                format!("reply  {}{whose}", reply_text(reply))
            }
            Message::Grant(grant) => format!("send   {}", self.grant(grant)),
            Message::Notice(notice) => format!("send   {}", self.notice(notice)),
            Message::Probe(client, Question::SameKernel(_)) => {
                format!("probe  {}'s kernel", self.client(*client))
            }
            Message::Probe(client, Question::Reachable) => {
                format!("probe  {}", self.client(*client))
            }
            Message::Probe(client, Question::State) => {
                format!("probe  {}'s monitor", self.client(*client))
            }
        }
    }

    fn grant(&mut self, grant: &Grant) -> String {
        let number = self.grants.of(grant.id.0);
        let mut text = format!(
            "grant {number} to {} from {}: {} {} {:?} {}",
            grant.to,
            grant.namespace().server_address(),
            self.owner(&grant.owner),
            grant.handle,
            grant.range,
            mode(grant.mode)
        );
        let host = self.client(grant.owner.host);
        if self.peers.iter().any(|(key, peer)| *peer == host && key.name() != &grant.name) {
            text += &format!(", called {:?}", grant.name);
        }
        if grant.form == Form::Message {
            text += ", as a message";
        }
        text + &attempt(grant.attempt)
    }

    fn notice(&self, notice: &Notice) -> String {
        let whom = self.recipient(notice.client, notice.to);
        let state = notice.state;
        let what = match &notice.target {
            NoticeTarget::Host(bodies) => {
                let bodies: Vec<_> =
                    bodies.iter().map(|(ours, name)| format!("{name} from {ours}")).collect();
                format!("notice to {whom}: state {state}, as {}", bodies.join(", "))
            }
            NoticeTarget::Registrant { callback, name, private } => format!(
                "callback for {whom}: {name} is in state {state}, program {}/{}/{}, private {:02x}",
                callback.program, callback.version, callback.procedure, private[0]
            ),
        };
        what + &attempt(notice.attempt)
    }

    fn event(&self, event: &Event) -> Option<String> {
        let name = |client: &ClientId| self.client(*client);
        Some(match event {
            Event::Started { epoch, clients, locks, exactness } => format!(
                "started: epoch {}, {}, {}, {}",
                epoch.0,
                count(*clients, "client"),
                count(*locks, "lock"),
                match exactness {
                    Exactness::Exact => "exact",
                    Exactness::Roster => "roster",
                    Exactness::Open => "open",
                }
            ),
            Event::GraceStarted { hosts: 1 } => "grace began, 1 host is missing".into(),
            Event::GraceStarted { hosts } => format!("grace began, {hosts} hosts are missing"),
            Event::GraceEnded { why } => match why {
                GraceEnd::Complete => "grace ended: everything is back".into(),
                GraceEnd::Deadline => "grace ended: the window is over".into(),
                GraceEnd::Operator(by) => format!("grace ended by {by}"),
            },
            Event::Stopped => "stopped".into(),
            Event::Registered { client } => format!("{} is registered", name(client)),
            Event::Unregistered { client } => format!("{} is unregistered", name(client)),
            Event::Rebooted { client, to, proof, released } => format!(
                "{} rebooted to {}, {}; {released} released",
                name(client),
                state(*to),
                match proof {
                    Proof::NothingHeld => "it held nothing".into(),
                    Proof::Reset => "its old connection was reset".into(),
                    Proof::Notice => "as its address says and nothing denies".into(),
                    Proof::Stateless => "as it keeps no state".into(),
                    Proof::Unreclaimed => "as its address says and it reclaims nothing".into(),
                    Proof::Roamed(source) => {
                        format!("as {source} says and its own address is silent")
                    }
                    Proof::Operator(by) => format!("says {by}"),
                }
            ),
            Event::RebootPending { client, to, why } => {
                format!(
                    "{}'s reboot to {} is pending: {}",
                    name(client),
                    state(*to),
                    rejection(*why)
                )
            }
            Event::WatchedRebooted { source, name, to, registrants } => format!(
                "{name}, which is watched, rebooted to {}, says {source}; {} told",
                state(*to),
                count(*registrants, "registrant")
            ),
            Event::MonitorRefused { source, watched, why } => {
                format!("SM_MON of {source} for {watched} is refused: {}", refusal(*why))
            }
            Event::FreeAllRefused { source, name } => {
                format!("FREE_ALL of {source} names {name:?}, who is unknown")
            }
            Event::FreeAllPending { client, source, why } => {
                format!(
                    "a FREE_ALL of {} from {source} is pending: {}",
                    name(client),
                    rejection(*why)
                )
            }
            Event::NoticeUnknown { source, name } => {
                format!("a notice from {source} names {name:?}, who is unknown")
            }
            Event::StatesAlternate { client, one, other } => {
                let (one, other) = (state(*one), state(*other));
                format!("{} alternates between {one} and {other}", name(client))
            }
            Event::Suspect { client, was, is } => {
                format!(
                    "{} is suspect: it was in {}, now {}",
                    name(client),
                    state(*was),
                    state(*is)
                )
            }
            Event::Crashed { client } => format!("{} was not heard of in the window", name(client)),
            Event::Released { client, count, why } => format!(
                "{count} of {} released: {}",
                name(client),
                match why {
                    Release::FreeAll => "it asked for that".into(),
                    Release::Unanswered => "not reclaimed, wanted, and it does not answer".into(),
                    Release::Unreachable => "it cannot be reached".into(),
                    Release::Unreclaimed => "it reports a reboot and reclaims nothing".into(),
                    Release::OldKernel => "the kernel that took them is gone".into(),
                    Release::RosterEnd => "not reclaimed from the roster".into(),
                    Release::Operator(by) => format!("by {by}"),
                }
            ),
            Event::ReleasedByOperator { client, id, what, by } => {
                let what = match what {
                    ReleasedItem::Lock(range, how) => {
                        format!("lock {}, {range:?} {},", self.locks.known(id.0), mode(*how))
                    }
                    ReleasedItem::Share => format!("share {}", self.shares.known(id.0)),
                };
                format!("{what} of {} released by {by}", name(client))
            }
            Event::StaleRequest { client, incarnation } => {
                format!("a stale request of {} in {}", name(client), state(*incarnation))
            }
            // Every story shows it by the locks themselves.
            Event::ReclaimUnrecorded { client } => {
                format!("{} reclaims what is not recorded", name(client))
            }
            Event::RosterCopyUsed { hosts } => format!("{} from the copy", count(*hosts, "host")),
            Event::Releasable { client, count: kept } => {
                format!("{} of {} releasable", count(*kept, "record"), name(client))
            }
            Event::AddressesNotified { count: told, by } => {
                format!("{by} has {} notified", count(*told, "address"))
            }
            Event::Reclaimed { client } => format!("{} has everything back", name(client)),
            Event::ReclaimRefused { client } => format!("a reclaim of {} is refused", name(client)),
            Event::CycleClosed { client } => format!("{} closed a circle", name(client)),
            Event::Deadlock { client } => format!("{} would close a circle", name(client)),
            Event::GrantUndone { client, .. } => {
                format!("{} does not want its grant", name(client))
            }
            Event::PassedOver { client } => format!("{} is passed over", name(client)),
            Event::NoticeSent { .. } => return None,
            Event::NoticeAnswered { client, to, .. } => {
                format!("{} answered the notice", self.recipient(*client, *to))
            }
            Event::NoticeFailed { client, to, .. } => {
                format!("{} did not answer", self.recipient(*client, *to))
            }
            Event::OwnersMoved { client, from, to, count } => {
                format!("{count} of {} moved from {from} to {to}", name(client))
            }
            Event::OwnersAmbiguous { client, at } => {
                format!("what {} means by its request at {at} is ambiguous", name(client))
            }
            Event::NotReconnected { client } => format!("{} did not come back", name(client)),
            Event::NotificationEnded { told, answered, failed, took } => {
                let seconds = took.as_secs();
                format!(
                    "notification ended: {told} told, {answered} answered, {failed} failed, {seconds} s"
                )
            }
            Event::NoticeGivenUp { client, to, .. } => {
                format!("{} is not notified any more", self.recipient(*client, *to))
            }
            Event::Refused { client, why } => match client {
                Some(client) => format!("{} is refused: {}", name(client), refusal(*why)),
                None => format!("a stranger is refused: {}", refusal(*why)),
            },
            Event::Fenced { client, by } => format!("{} is fenced by {by}", name(client)),
            Event::FenceExtended { client } => {
                format!("{} is fenced too: the name is", name(client))
            }
            Event::Unfenced { client, by } => format!("{} is unfenced by {by}", name(client)),
            Event::Renotified { client, by } => {
                format!("{} is notified again by {by}", name(client))
            }
            Event::Forgotten { name, by, .. } => format!("{name} is forgotten by {by}"),
        })
    }
}

fn reply_text(reply: &Reply) -> String {
    match reply {
        Reply::Lock(outcome) | Reply::Share(outcome) => match outcome {
            Outcome::Granted => "granted".into(),
            Outcome::Denied => "denied".into(),
            Outcome::Blocked => "blocked".into(),
            Outcome::Grace => "grace".into(),
            Outcome::Deadlock => "deadlock".into(),
            Outcome::Refused(why) => format!("refused: {}", refusal(*why)),
        },
        Reply::Registered(Ok(_)) => "registered".into(),
        Reply::Registered(Err(why)) => format!("refused: {}", refusal(*why)),
        Reply::Unregistered(true) => "unregistered".into(),
        Reply::Unregistered(false) => "unknown".into(),
        Reply::Unlock => "unlocked".into(),
        Reply::Unshare => "unshared".into(),
        Reply::Cancel(CancelOutcome::Done) => "cancelled".into(),
        Reply::Cancel(CancelOutcome::TooLate) => "too late to cancel".into(),
        Reply::Test(TestResult::Free) => "free".into(),
        Reply::Test(TestResult::Grace) => "grace".into(),
        Reply::Test(TestResult::Held(holder)) => format!(
            "held {:?} {} by {:?}, number {}",
            holder.range,
            mode(holder.mode),
            holder.owner.tag,
            holder.owner.number
        ),
        Reply::Acknowledged => "heard".into(),
        Reply::NoReply => "silence".into(),
        Reply::Monitor(Ok(())) => "monitored".into(),
        Reply::Monitor(Err(why)) => format!("refused: {}", refusal(*why)),
        Reply::Unmonitor => "not monitored any more".into(),
        Reply::Operator(Ok(done)) => format!("done, {} released", done.released),
        Reply::Operator(Err(why)) => match why {
            OperatorError::NoSuchLock => "no such lock".into(),
            OperatorError::NoSuchClient => "no such client".into(),
            OperatorError::Busy => "it is busy".into(),
            OperatorError::NotInGrace => "it is not grace".into(),
            OperatorError::NoReport => "no report is pending".into(),
        },
    }
}

fn refusal(why: Refusal) -> &'static str {
    match why {
        Refusal::TooManyLocks => "too many locks",
        Refusal::TooManyLocksOnFile => "too many locks on the file",
        Refusal::TooManyLocksOfHost => "too many locks of the host",
        Refusal::TooManyWaitersOnFile => "too many waiters on the file",
        Refusal::TooManyRegistrations => "too many registrations",
        Refusal::OwnProtocol => "not a protocol of the program",
        Refusal::TooManyClients => "too many clients",
        Refusal::TooManyClientsOfAddress => "too many clients at the address",
        Refusal::TooManyLocksOfAddress => "too many locks of the address",
        Refusal::TooManyParkedOfAddress => "too many requests of the address held back",
        Refusal::TooManyParked => "too many requests held back",
        Refusal::Fenced => "fenced",
        Refusal::Withdrawn => "withdrawn",
        Refusal::StaleRequest => "that kernel is gone",
    }
}

pub fn rejection(why: Rejection) -> &'static str {
    match why {
        Rejection::Alive => "the old kernel lives",
        Rejection::Unproven => "nothing proves it",
        Rejection::Elsewhere => "it came from another address",
        Rejection::Unreclaimed => "a reclaim would refute it",
        Rejection::Unverified => "its monitor does not say so",
    }
}

pub fn mode(mode: Mode) -> &'static str {
    match mode {
        Mode::Shared => "shared",
        Mode::Exclusive => "exclusive",
    }
}

pub fn access(access: Access) -> &'static str {
    match (access.read, access.write) {
        (false, false) => "nothing",
        (true, false) => "read",
        (false, true) => "write",
        (true, true) => "both",
    }
}

pub fn state(incarnation: Incarnation) -> String {
    if incarnation.is_known() { format!("state {}", incarnation.0) } else { "no state".into() }
}

fn attempt(attempt: u32) -> String {
    if attempt > 1 { format!(", attempt {attempt}") } else { String::new() }
}

/// `1 lock`, `2 locks`.
pub fn count(number: u64, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// `90 s`, `15 min`, `24 h`, `1.5 s`.
pub fn span(time: Duration) -> String {
    let seconds = time.as_secs();
    if time.subsec_nanos() > 0 {
        format!("{} s", time.as_secs_f64())
    } else if seconds >= 3600 && seconds.is_multiple_of(3600) {
        format!("{} h", seconds / 3600)
    } else if seconds > 120 && seconds.is_multiple_of(60) {
        format!("{} min", seconds / 60)
    } else {
        format!("{seconds} s")
    }
}

/// Names as the story writes them, not as they are on the wire.
pub fn quoted(name: &Name) -> String {
    format!("{name:?}")
}

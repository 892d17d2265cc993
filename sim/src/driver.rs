//! The one driver around the keeper: a bounded queue, one step for what has gathered, one commit at
//! a time, and only then the messages. The server has its own; this one is small enough to see that
//! it keeps the order, and narrow enough (`Input` in, `Batch` out) to be replaced by that one.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use keeper::Keeper;
use keeper::bytes::{FileKey, Handle, Name};
use keeper::change::Change;
use keeper::identity::{Caller, ClientId, GrantId, HostKey, Incarnation, NoticeId, RequestId};
use keeper::request::*;
use keeper::step::{Message, Step};
use keeper::time::Time;
use store::Token;

use crate::packet::{Call, Request};
use crate::queue::{Ms, SECOND};
use crate::replay::Replay;

/// More than this and packets are dropped, as a full socket buffer drops them (I10).
const QUEUE_MAX: usize = 256;
/// How long a request may wait for a stalled store (I11).
pub const STALL_MAX: Ms = 5 * SECOND;

/// Everything that enters the keeper.
#[derive(Clone, Debug)]
pub enum Input {
    Request(RequestId, Rc<Request>),
    Granted(GrantId, GrantAnswer),
    Noticed(NoticeId, NoticeResult),
    Probed(ClientId, Question, ProbeAnswer),
    Reset(ClientId),
    Heard(IpAddr),
    Operator(RequestId, OperatorAction),
    Timeout,
    Stop,
}

/// An attempt to tell somebody something has exactly one result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Answered {
    Grant(GrantId, u32),
    Notice(NoticeId, u32),
}

/// A message, and what is true about it.
#[derive(Debug)]
pub struct Outgoing {
    pub message: Message,
    /// The number of the decision.
    pub decided: u64,
    /// For a grant: the wait that it ends, and the life of the host that waits.
    pub block: u64,
    pub life: u32,
}

/// What is committed as one and told afterwards.
#[derive(Debug, Default)]
pub struct Batch {
    pub changes: Vec<Change>,
    pub outgoing: Vec<Outgoing>,
    pub token: Token,
    pub stops: bool,
}

pub struct Driver {
    pub keeper: Keeper,
    pub started: Ms,
    queue: VecDeque<(Ms, Input)>,
    pub replay: Replay,
    pub asked: BTreeMap<RequestId, Rc<Request>>,
    pub committing: Option<Batch>,
    /// What was sent and not answered yet, and who may answer.
    pub attempts: BTreeMap<Answered, IpAddr>,
    /// Lives of the hosts that we have or had connections of, and the server cannot see.
    pub connections: BTreeMap<(IpAddr, Name), Vec<u32>>,
    pub token: Token,
    next_request: u64,
    pub gathering: bool,
    pub timer: Option<Ms>,
    /// Planted: a host is known by its port, too.
    pub hosts_by_port: bool,
}

impl Driver {
    pub fn new(keeper: Keeper, started: Ms, token: Token) -> Self {
        Self {
            keeper,
            started,
            queue: VecDeque::new(),
            replay: Replay::default(),
            asked: BTreeMap::new(),
            committing: None,
            attempts: BTreeMap::new(),
            connections: BTreeMap::new(),
            token,
            next_request: 0,
            gathering: false,
            timer: None,
            hosts_by_port: false,
        }
    }

    pub fn time(&self, now: Ms, wall_ms: u64) -> Time {
        Time { mono: Duration::from_millis(now - self.started), wall_ms }
    }

    pub fn new_id(&mut self) -> RequestId {
        self.next_request += 1;
        RequestId(self.next_request)
    }

    /// False if the queue is full and the request is gone.
    pub fn enqueue(&mut self, input: Input, now: Ms) -> bool {
        if self.queue.len() >= QUEUE_MAX && matches!(input, Input::Request(..)) {
            return false;
        }
        self.queue.push_back((now, input));
        true
    }

    pub fn has_input(&self) -> bool {
        !self.queue.is_empty()
    }

    pub fn drain(&mut self) -> Vec<Input> {
        let mut inputs: Vec<Input> = self.queue.drain(..).map(|(_, input)| input).collect();
        // After a stop nothing enters the keeper.
        if let Some(stop) = inputs.iter().position(|input| matches!(input, Input::Stop)) {
            inputs.truncate(stop + 1);
        }
        inputs
    }

    /// Takes out the requests that have waited too long for a stalled store.
    pub fn expired(&mut self, now: Ms) -> Vec<Rc<Request>> {
        let mut expired = Vec::new();
        self.queue.retain(|(since, input)| match input {
            Input::Request(_, request) if since + STALL_MAX <= now => {
                expired.push(request.clone());
                false
            }
            _ => true,
        });
        expired
    }

    pub fn hand_in(&mut self, input: &Input, now: Time) {
        match input {
            Input::Request(id, request) => {
                self.asked.insert(*id, request.clone());
                hand_in(&mut self.keeper, *id, request, self.hosts_by_port, now);
            }
            Input::Granted(grant, answer) => self.keeper.handle_granted(*grant, *answer, now),
            Input::Noticed(notice, result) => self.keeper.handle_noticed(*notice, *result, now),
            Input::Probed(client, question, answer) => {
                self.keeper.handle_probed(*client, *question, *answer, now);
            }
            Input::Reset(client) => self.keeper.handle_reset(*client, now),
            Input::Heard(address) => self.keeper.handle_heard(*address, now),
            Input::Operator(id, action) => {
                let by = Name::from("operator");
                let request = OperatorRequest { id: *id, by, action: action.clone() };
                self.keeper.handle_operator(request, now);
            }
            Input::Timeout => self.keeper.handle_timeout(now),
            Input::Stop => self.keeper.handle_stop(now),
        }
    }

    pub fn take_step(&mut self) -> Step {
        self.keeper.poll_step().unwrap_or_default()
    }
}

pub fn file_key(file: usize) -> FileKey {
    FileKey::new(&[0xf5, file as u8])
}

pub fn handle(file: usize) -> Handle {
    Handle::new(&[b'h', file as u8, 0])
}

/// What the services do: a packet becomes a question in the keeper's words.
fn hand_in(keeper: &mut Keeper, id: RequestId, request: &Request, by_port: bool, now: Time) {
    let mut name = request.name.clone();
    if by_port {
        name = Name::from(&*format!("{name}:{}", request.xid / 16));
    }
    // A dual-stack socket shows an IPv4 peer under a mapped address.
    let from = match request.from {
        IpAddr::V4(v4) if request.xid.is_multiple_of(3) => IpAddr::V6(v4.to_ipv6_mapped()),
        other => other,
    };
    let caller = Caller { host: HostKey::new(from, name), lane: request.lane };
    let owner = OwnerName { number: request.number, tag: request.tag.clone() };
    match request.call.clone() {
        Call::Lock { file, range, mode, wait, reclaim, state } => keeper.handle_lock(
            LockRequest {
                id,
                caller,
                owner,
                file: file_key(file),
                handle: handle(file),
                range,
                mode,
                wait,
                reclaim,
                monitored: request.monitored,
                incarnation: Incarnation(state),
                form: request.form,
                stateless: request.stateless,
                connected: None,
            },
            now,
        ),
        Call::Test { file, range, mode } => keeper
            .handle_test(TestRequest { id, caller, owner, file: file_key(file), range, mode }, now),
        Call::Unlock { file, range } => keeper
            .handle_unlock(UnlockRequest { id, caller, owner, file: file_key(file), range }, now),
        Call::Cancel { file, range, mode } => keeper.handle_cancel(
            CancelRequest { id, caller, owner, file: file_key(file), range, mode },
            now,
        ),
        Call::Share { file, access, deny, reclaim } => {
            let (file, tag) = (file_key(file), request.tag.clone());
            keeper.handle_share(ShareRequest { id, caller, tag, file, access, deny, reclaim }, now);
        }
        Call::Unshare { file } => {
            let (file, tag) = (file_key(file), request.tag.clone());
            keeper.handle_unshare(UnshareRequest { id, caller, tag, file }, now);
        }
        Call::FreeAll { name } => {
            keeper.handle_free_all(FreeAllRequest { id, source: from, name }, now);
        }
        Call::Notify { name, state } => {
            let (source, incarnation) = (from, Incarnation(state));
            keeper.handle_reboot(RebootNotice { id, source, name, incarnation }, now);
        }
        Call::Monitor { watched } => {
            let (source, callback) = (from, callback());
            let private = [7; 16];
            keeper.handle_monitor(MonitorRequest { id, source, callback, watched, private }, now);
        }
        Call::Unmonitor { watched } => {
            let (source, callback) = (from, callback());
            keeper.handle_unmonitor(UnmonitorRequest { id, source, callback, watched }, now);
        }
    }
}

fn callback() -> Callback {
    Callback { name: Name::from("watcher"), program: 100_021, version: 4, procedure: 16 }
}

//! The status monitor protocol, NSM version 1 (C702 chapter 11): reboot notices from clients, and
//! registrations of hosts that want to be notified.
//!
//! One function per procedure; the keeper decides. Calls are answered on the thread that runs the
//! engine.

use std::net::IpAddr;
use std::sync::Arc;

use keeper::bytes::Name;
use keeper::identity::Incarnation;
use keeper::request::{Callback, MonitorRequest, RebootNotice, UnmonitorRequest};
use keeper::step::Reply;
use tokio::sync::Notify;
use tracing::warn;
use vfs::BlockingMode;
use wire::nsm::{self, MonArgs, MonId, MyId, NotifyArgs, Outcome, StatReply, StateReply};
use wire::rpc::Procedure;
use wire::{Decode, Encode, Writer, nlm};

use super::{ServeOutcome, Service, decode, simple, source};
use crate::engine::request::{Request, StallPolicy};
use crate::engine::{Decision, Engine};
use crate::files::Files;
use crate::metrics::{RefusalReason, RefusedCall};
use crate::refusals::{Refusals, RefusedCaller};
use crate::rpc::admission::{Action, NotAdmitted, admit};
use crate::rpc::pending::{IncomingCall, PendingCall};
use crate::transport::{Peer, ReplyBatch};

pub(crate) struct Nsm {
    files: Arc<Files>,
    engine: Engine,
    /// Our NSM state, constant while the server runs.
    state: i32,
    refusals: Arc<Refusals>,
    require_reserved_ports: bool,
    /// Notified by SM_SIMU_CRASH, which is refused without it.
    crash: Option<Arc<Notify>>,
}

impl Nsm {
    pub(crate) fn new(
        files: Arc<Files>,
        engine: Engine,
        state: u32,
        refusals: Arc<Refusals>,
        require_reserved_ports: bool,
        crash: Option<Arc<Notify>>,
    ) -> Self {
        Self { files, engine, state: state as i32, refusals, require_reserved_ports, crash }
    }

    fn admit(&self, action: Action, peer: &Peer) -> Result<(), NotAdmitted> {
        let address_admitted = self.files.admits(peer.remote.ip());
        admit(action, peer, address_admitted, self.require_reserved_ports)
    }

    fn admits(&self, action: Action, peer: &Peer) -> bool {
        self.admit(action, peer).is_ok()
    }

    fn monitor(&self, incoming: &mut IncomingCall<'_>) -> ServeOutcome {
        let from = incoming.peer.remote.ip();
        let args = MonArgs::from_bytes(incoming.call.args.clone());
        if let Err(why) = self.admit(Action::RegisterCallback, incoming.peer) {
            let name = args.as_ref().map_or(&[][..], |args| &args.mon_id.mon_name);
            note_refusal(&self.refusals, from, &Name::new(name), why.into());
            return ServeOutcome::TOO_WEAK;
        }
        let Ok(MonArgs { mon_id, private }) = args else { return ServeOutcome::GARBAGE };
        let (watched, callback) = (Name::new(&mon_id.mon_name), callback(&mon_id.my_id));
        if !is_callback_program(callback.program) {
            note_refusal(&self.refusals, from, &watched, RefusalReason::Program);
            let mut replies = ReplyBatch::default();
            fail(incoming.defer(), self.state, &mut replies);
            replies.send();
            return ServeOutcome::Deferred;
        }
        let (id, source) = (self.engine.new_id(), source(incoming.peer));
        let ours = incoming.peer.local.ip();
        let name = watched.clone();
        let request = MonitorRequest { id, source, ours, callback, watched, private };
        let (call, state, refusals) = (incoming.defer(), self.state, self.refusals.clone());
        let sink = move |decision, replies: &mut _| {
            if let Decision::Stalled(_) = decision {
                note_refusal(&refusals, from, &name, RefusalReason::Store);
            }
            answer(call, state, decision, replies);
        };
        self.engine.ask(Request::Monitor(request), Box::new(sink));
        ServeOutcome::Deferred
    }

    /// Ends the registration for one host, or all of them.
    fn unmonitor(
        &self,
        incoming: &mut IncomingCall<'_>,
        my_id: &MyId,
        watched: Option<Name>,
    ) -> ServeOutcome {
        let (id, source) = (self.engine.new_id(), source(incoming.peer));
        let request = UnmonitorRequest { id, source, callback: callback(my_id), watched };
        self.ask(incoming, Request::Unmonitor(request))
    }

    fn notify(&self, incoming: &mut IncomingCall<'_>) -> ServeOutcome {
        let NotifyArgs { mon_name, state } = decode!(incoming.call);
        let (id, source) = (self.engine.new_id(), source(incoming.peer));
        let (name, incarnation) = (Name::new(&mon_name), Incarnation(state as u32));
        self.ask(incoming, Request::Reboot(RebootNotice { id, source, name, incarnation }))
    }

    fn simulate_crash(&self, peer: &Peer) -> ServeOutcome {
        match &self.crash {
            Some(crash) if self.admits(Action::SimulateCrash, peer) => {
                warn!("simulating a crash, as requested by {}", peer.remote);
                crash.notify_one();
                ServeOutcome::Reply
            }
            _ => ServeOutcome::TOO_WEAK,
        }
    }

    fn ask(&self, incoming: &mut IncomingCall<'_>, request: Request) -> ServeOutcome {
        let (call, state) = (incoming.defer(), self.state);
        let sink = move |decision, replies: &mut _| answer(call, state, decision, replies);
        self.engine.ask(request, Box::new(sink));
        ServeOutcome::Deferred
    }
}

/// Whether a registrant may have this program called: a lock manager, the status monitor's test
/// program, or a transient number (RFC 5531, 8.3). No other program is called on request.
fn is_callback_program(program: u32) -> bool {
    const STATUS_SIMULATOR: u32 = 200_048;
    const TRANSIENT: std::ops::RangeInclusive<u32> = 0x4000_0000..=0x5fff_ffff;
    matches!(program, nlm::PROGRAM | STATUS_SIMULATOR) || TRANSIENT.contains(&program)
}

fn callback(id: &MyId) -> Callback {
    Callback {
        name: Name::new(&id.my_name),
        program: id.program,
        version: id.version,
        procedure: id.procedure,
    }
}

/// Doing any of it again gives the same answer; a notice that was not believed is even meant to be
/// judged again.
impl Service for Nsm {
    fn program(&self) -> u32 {
        nsm::PROGRAM
    }

    fn versions(&self) -> &'static [u32] {
        &[nsm::VERSION]
    }

    fn serve(
        &self,
        incoming: &mut IncomingCall<'_>,
        _: BlockingMode,
        out: &mut Writer,
    ) -> ServeOutcome {
        let (call, peer) = (incoming.call, incoming.peer);
        match call.procedure {
            nsm::Null::NUMBER => ServeOutcome::Reply,
            nsm::Stat::NUMBER => simple(call, out, |_: nsm::Name| StatReply {
                outcome: Outcome::Success,
                state: self.state,
            }),
            nsm::Unmon::NUMBER | nsm::UnmonAll::NUMBER
                if !self.admits(Action::RegisterCallback, peer) =>
            {
                ServeOutcome::TOO_WEAK
            }
            nsm::Notify::NUMBER if !self.admits(Action::ReportReboot, peer) => {
                ServeOutcome::TOO_WEAK
            }
            nsm::Mon::NUMBER => self.monitor(incoming),
            nsm::Unmon::NUMBER => {
                let MonId { mon_name, my_id } = decode!(call);
                self.unmonitor(incoming, &my_id, Some(Name::new(&mon_name)))
            }
            nsm::UnmonAll::NUMBER => self.unmonitor(incoming, &decode!(call), None),
            nsm::Notify::NUMBER => self.notify(incoming),
            nsm::SimuCrash::NUMBER => self.simulate_crash(peer),
            _ => ServeOutcome::NO_SUCH_PROCEDURE,
        }
    }

    fn flush(&self) {
        self.engine.flush();
    }

    fn has_unflushed(&self) -> bool {
        self.engine.has_input()
    }
}

fn answer(call: PendingCall, state: i32, decision: Decision, replies: &mut ReplyBatch) {
    match decision {
        Decision::Reply(Reply::Acknowledged) => call.reply(replies, |_| ()),
        Decision::Reply(Reply::Unmonitor) => {
            call.reply(replies, |out| StateReply { state }.encode(out));
        }
        Decision::Reply(Reply::Monitor(Ok(()))) => {
            let outcome = Outcome::Success;
            call.reply(replies, |out| StatReply { outcome, state }.encode(out));
        }
        Decision::Reply(Reply::Monitor(Err(_))) | Decision::Stalled(StallPolicy::Refuse) => {
            fail(call, state, replies);
        }
        // Without a reply the sender repeats its notice, which is then judged again.
        _ => {}
    }
}

/// STAT_FAIL.
fn fail(call: PendingCall, state: i32, replies: &mut ReplyBatch) {
    let outcome = Outcome::Failure;
    call.reply_failure(replies, |out| StatReply { outcome, state }.encode(out));
}

fn note_refusal(refusals: &Refusals, from: IpAddr, watched: &Name, why: RefusalReason) {
    let call = RefusedCall::Monitor;
    refusals.note(RefusedCaller { call, from, name: watched }, why);
}

//! NSM version 1: who has restarted, and who wants to know.

use std::sync::Arc;

use keeper::bytes::Name;
use keeper::identity::Incarnation;
use keeper::request::{Callback, MonitorRequest, RebootNotice, UnmonitorRequest};
use keeper::step::Reply;
use tokio::sync::Notify;
use tracing::warn;
use vfs::Patience;
use wire::nsm::{self, MonArgs, MonId, MyId, NotifyArgs, Outcome, StatReply, StateReply};
use wire::rpc::{Call, Procedure};
use wire::{Decode, Encode, Writer, nlm};

use super::{Served, Service, simple, source};
use crate::engine::request::{Request, WhenStalled};
use crate::engine::{Decision, Engine};
use crate::files::Files;
use crate::rpc::admission::Admission;
use crate::rpc::pending::{Incoming, PendingCall};
use crate::transport::{Peer, ReplyBatch, Transport};

pub struct Nsm {
    files: Arc<Files>,
    engine: Engine,
    /// Ours: it does not change while we run.
    state: i32,
    reserved_ports: bool,
    /// Notified when a program on this host asks for a crash; without it, none is simulated.
    crash: Option<Arc<Notify>>,
}

impl Nsm {
    pub fn new(
        files: Arc<Files>,
        engine: Engine,
        state: u32,
        reserved_ports: bool,
        crash: Option<Arc<Notify>>,
    ) -> Self {
        Self { files, engine, state: state as i32, reserved_ports, crash }
    }

    fn may_ask(&self, peer: &Peer) -> bool {
        let admission = Admission {
            admitted: self.files.admits(peer.remote.ip()),
            local: peer.is_loopback(),
            reserved_port: peer.uses_reserved_port(),
        };
        admission.speaks_for_host(self.reserved_ports)
    }

    /// A registration makes us call its sender: not at the word of a datagram, which anybody can
    /// send in its name (R6.3).
    fn may_register(&self, peer: &Peer) -> bool {
        peer.is_loopback() || peer.transport == Transport::Tcp
    }

    fn question(&self, call: &Call, peer: &Peer) -> Result<Request, wire::xdr::Error> {
        let id = self.engine.new_id();
        let source = source(peer);
        let args = call.args.clone();
        Ok(match call.procedure {
            nsm::Mon::NUMBER => {
                let MonArgs { mon_id, private } = MonArgs::from_bytes(args)?;
                let (watched, callback) = (name(&mon_id.mon_name), callback(&mon_id.my_id));
                Request::Monitor(MonitorRequest { id, source, callback, watched, private })
            }
            nsm::Unmon::NUMBER => {
                let mon_id = MonId::from_bytes(args)?;
                let watched = Some(name(&mon_id.mon_name));
                let callback = callback(&mon_id.my_id);
                Request::Unmonitor(UnmonitorRequest { id, source, callback, watched })
            }
            nsm::UnmonAll::NUMBER => {
                let callback = callback(&MyId::from_bytes(args)?);
                Request::Unmonitor(UnmonitorRequest { id, source, callback, watched: None })
            }
            _ => {
                let NotifyArgs { mon_name, state } = NotifyArgs::from_bytes(args)?;
                let (name, incarnation) = (name(&mon_name), Incarnation(state as u32));
                Request::Reboot(RebootNotice { id, source, name, incarnation })
            }
        })
    }
}

/// Programs that registrants have themselves called at: their lock manager, a status monitor's own
/// test program, and the numbers that are free for anybody (RFC 5531, 8.3). We call no other on
/// request.
fn is_callback_program(program: u32) -> bool {
    const STATUS_SIMULATOR: u32 = 200_048;
    const TRANSIENT: std::ops::RangeInclusive<u32> = 0x4000_0000..=0x5fff_ffff;
    matches!(program, nlm::PROGRAM | STATUS_SIMULATOR) || TRANSIENT.contains(&program)
}

fn name(name: &nsm::Name) -> Name {
    Name::new(name)
}

fn callback(id: &MyId) -> Callback {
    Callback {
        name: name(&id.my_name),
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

    fn serve(&self, incoming: &mut Incoming<'_>, _: Patience, out: &mut Writer) -> Served {
        let (call, peer) = (incoming.call, incoming.peer);
        match call.procedure {
            nsm::Null::NUMBER => Served::Reply,
            nsm::Stat::NUMBER => simple(call, out, |_: nsm::Name| StatReply {
                outcome: Outcome::Success,
                state: self.state,
            }),
            nsm::Mon::NUMBER..=nsm::UnmonAll::NUMBER | nsm::Notify::NUMBER => {
                let registers = call.procedure != nsm::Notify::NUMBER;
                if !self.may_ask(peer) || (registers && !self.may_register(peer)) {
                    return Served::TOO_WEAK;
                }
                let Ok(request) = self.question(call, peer) else { return Served::GARBAGE };
                if let Request::Monitor(request) = &request
                    && !is_callback_program(request.callback.program)
                {
                    StatReply { outcome: Outcome::Failure, state: self.state }.encode(out);
                    return Served::Reply;
                }
                let (call, state) = (incoming.defer(), self.state);
                let sink = move |decision, replies: &mut _| answer(call, state, decision, replies);
                self.engine.ask(request, Box::new(sink));
                Served::Later
            }
            nsm::SimuCrash::NUMBER => match &self.crash {
                Some(crash) if peer.is_loopback() && self.may_ask(peer) => {
                    warn!("a crash is simulated, as {} asks", peer.remote);
                    crash.notify_one();
                    Served::Reply
                }
                _ => Served::TOO_WEAK,
            },
            _ => Served::NO_SUCH_PROCEDURE,
        }
    }

    fn flush(&self) {
        self.engine.flush();
    }
}

fn answer(call: PendingCall, state: i32, decision: Decision, replies: &mut ReplyBatch) {
    let outcome = match decision {
        Decision::Reply(Reply::Heard) => return call.reply(replies, |_| ()),
        Decision::Reply(Reply::Unmonitor) => {
            return call.reply(replies, |out| StateReply { state }.encode(out));
        }
        Decision::Reply(Reply::Monitor(Ok(()))) => Outcome::Success,
        Decision::Reply(Reply::Monitor(Err(_))) => Outcome::Failure,
        Decision::Stalled(WhenStalled::Refuse) => Outcome::Failure,
        // Without a reply the sender repeats its notice, and then it is judged again.
        _ => return,
    };
    call.reply(replies, |out| StatReply { outcome, state }.encode(out));
}

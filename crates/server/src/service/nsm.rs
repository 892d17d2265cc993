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
use wire::{Decode, Encode, Writer};

use super::{Served, Service, simple};
use crate::engine::request::{Request, WhenStalled};
use crate::engine::{Decision, Engine};
use crate::rpc::pending::{Incoming, PendingCall};
use crate::transport::{Peer, ReplyBatch};

pub struct Nsm {
    engine: Engine,
    /// Ours: it does not change while we run.
    state: i32,
    reserved_ports: bool,
    /// Notified when a program on this host asks for a crash; without it, none is simulated.
    crash: Option<Arc<Notify>>,
}

impl Nsm {
    pub fn new(
        engine: Engine,
        state: u32,
        reserved_ports: bool,
        crash: Option<Arc<Notify>>,
    ) -> Self {
        Self { engine, state: state as i32, reserved_ports, crash }
    }

    /// Only root of a machine speaks for it.
    fn may_ask(&self, peer: &Peer) -> bool {
        !self.reserved_ports || peer.uses_reserved_port()
    }

    fn question(&self, call: &Call, peer: &Peer) -> Result<Request, wire::xdr::Error> {
        let id = self.engine.new_id();
        let source = peer.remote.ip();
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
                if !self.may_ask(peer) {
                    return Served::TOO_WEAK;
                }
                let Ok(request) = self.question(call, peer) else { return Served::GARBAGE };
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

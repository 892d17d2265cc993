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
use wire::rpc::{Accepted, AuthStatus, Call, Denial, Procedure};
use wire::{Decode, Encode};

use super::{Deferred, Repeat};
use crate::driver::core::Ask;
use crate::driver::{Driver, Ticket};
use crate::task::Task;
use crate::transport::Mailbag;

pub struct Nsm {
    driver: Driver,
    /// Ours: it does not change while we run.
    state: i32,
    reserved_ports: bool,
    /// Told when somebody on this host wants a crash; without it, nobody gets one.
    crash: Option<Arc<Notify>>,
}

impl Nsm {
    pub fn new(
        driver: Driver,
        state: u32,
        reserved_ports: bool,
        crash: Option<Arc<Notify>>,
    ) -> Self {
        Self { driver, state: state as i32, reserved_ports, crash }
    }

    /// Only root of a machine speaks for it.
    fn may_ask(&self, task: &Task) -> bool {
        !self.reserved_ports || task.peer.uses_reserved_port()
    }

    fn question(&self, task: &Task) -> Result<Ask, wire::xdr::Error> {
        let id = self.driver.new_id();
        let source = task.peer.remote.ip();
        let args = task.call.args.clone();
        Ok(match task.call.procedure {
            nsm::Mon::NUMBER => {
                let MonArgs { mon_id, private } = MonArgs::from_bytes(args)?;
                let (watched, callback) = (name(&mon_id.mon_name), callback(&mon_id.my_id));
                Ask::Monitor(MonitorRequest { id, source, callback, watched, private })
            }
            nsm::Unmon::NUMBER => {
                let mon_id = MonId::from_bytes(args)?;
                let watched = Some(name(&mon_id.mon_name));
                let callback = callback(&mon_id.my_id);
                Ask::Unmonitor(UnmonitorRequest { id, source, callback, watched })
            }
            nsm::UnmonAll::NUMBER => {
                let callback = callback(&MyId::from_bytes(args)?);
                Ask::Unmonitor(UnmonitorRequest { id, source, callback, watched: None })
            }
            _ => {
                let NotifyArgs { mon_name, state } = NotifyArgs::from_bytes(args)?;
                let (name, incarnation) = (name(&mon_name), Incarnation(state as u32));
                Ask::Reboot(RebootNotice { id, source, name, incarnation })
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

impl Deferred for Nsm {
    fn program(&self) -> u32 {
        nsm::PROGRAM
    }

    fn versions(&self) -> &'static [u32] {
        &[nsm::VERSION]
    }

    /// Doing any of it again gives the same answer; a notice that was not believed is even meant
    /// to be judged again.
    fn repeat(&self, _: &Call) -> Repeat {
        Repeat::Harmless
    }

    fn take(&self, task: Task, _: Patience, mail: &mut Mailbag) -> Option<Task> {
        match task.call.procedure {
            nsm::Null::NUMBER => task.reply(mail, |_| ()),
            nsm::Stat::NUMBER => match nsm::Name::from_bytes(task.call.args.clone()) {
                Ok(_) => {
                    let reply = StatReply { outcome: Outcome::Success, state: self.state };
                    task.reply(mail, |out| reply.encode(out));
                }
                Err(_) => task.not_run(mail, Accepted::GarbageArgs),
            },
            nsm::Mon::NUMBER..=nsm::UnmonAll::NUMBER | nsm::Notify::NUMBER => {
                if !self.may_ask(&task) {
                    task.deny(mail, Denial::Auth(AuthStatus::TooWeak));
                    return None;
                }
                match self.question(&task) {
                    Ok(ask) => self.driver.ask(ask, Box::new(Reach { task, state: self.state })),
                    Err(_) => task.not_run(mail, Accepted::GarbageArgs),
                }
            }
            nsm::SimuCrash::NUMBER => match &self.crash {
                Some(crash) if task.peer.is_loopback() && self.may_ask(&task) => {
                    warn!("a crash is simulated, as {} asks", task.peer.remote);
                    task.reply(mail, |_| ());
                    crash.notify_one();
                }
                _ => task.deny(mail, Denial::Auth(AuthStatus::TooWeak)),
            },
            _ => task.not_run(mail, Accepted::ProcedureUnavailable),
        }
        None
    }

    fn flush(&self) {
        self.driver.flush();
    }
}

/// A question that is with the keeper.
struct Reach {
    task: Task,
    state: i32,
}

impl Reach {
    fn monitored(self, outcome: Outcome, mail: &mut Mailbag) {
        let reply = StatReply { outcome, state: self.state };
        self.task.reply(mail, |out| reply.encode(out));
    }
}

impl Ticket for Reach {
    fn answer(self: Box<Self>, reply: Reply, mail: &mut Mailbag) {
        match reply {
            Reply::Heard => self.task.reply(mail, |_| ()),
            Reply::Monitor(Ok(())) => self.monitored(Outcome::Success, mail),
            Reply::Monitor(Err(_)) => self.monitored(Outcome::Failure, mail),
            Reply::Unmonitor => {
                let reply = StateReply { state: self.state };
                self.task.reply(mail, |out| reply.encode(out));
            }
            // No reply makes the sender repeat its notice, and then it is judged again.
            _ => {}
        }
    }

    fn stalled(self: Box<Self>, ask: &Ask, mail: &mut Mailbag) {
        if ask.may_be_refused() {
            self.monitored(Outcome::Failure, mail);
        }
    }
}

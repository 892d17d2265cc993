//! The answer to a lock request, in the form and version of the question.

use std::time::Instant;

use keeper::identity::{Caller, Incarnation};
use keeper::request::Form;
use keeper::step::{Cancelled, Holder, Outcome, Reply, Tested};
use wire::nlm::{self, Status, TestOutcome, Version, Versioned};
use wire::{Message, Writer};

use super::Kind;
use crate::driver::Ticket;
use crate::driver::core::Ask;
use crate::liveness::Liveness;
use crate::outbound::Outbound;
use crate::task::Task;
use crate::transport::Mailbag;

/// How a question was asked, as far as its answer needs to know.
#[derive(Debug, Clone)]
pub struct Letter {
    pub kind: Kind,
    pub form: Form,
    pub version: Version,
    pub cookie: nlm::Cookie,
    /// The client waits for the lock: it must never hear DENIED (Linux takes that for ENOLCK).
    pub waits: bool,
    pub reclaim: bool,
}

impl Letter {
    fn write(&self, outcome: &TestOutcome, out: &mut Writer) {
        let (version, cookie) = (self.version, self.cookie.clone());
        let told = |status: Status| {
            let status = match status {
                Status::Denied if self.waits && self.kind != Kind::Cancel => Status::DeniedNoLocks,
                status => status,
            };
            status.for_version(version, self.waits)
        };
        match self.kind {
            Kind::Test => {
                let outcome = match outcome {
                    TestOutcome::Other(status) => TestOutcome::Other(told(*status)),
                    held => held.clone(),
                };
                nlm::TestReply { cookie, outcome }.encode_as(version, out);
            }
            Kind::Share | Kind::Unshare => {
                let status = told(outcome.status());
                nlm::ShareReply { cookie, status, sequence: 0 }.encode_as(version, out);
            }
            Kind::FreeAll => {}
            Kind::Lock | Kind::NmLock | Kind::Cancel | Kind::Unlock => {
                let status = told(outcome.status());
                nlm::StatusReply { cookie, status }.encode_as(version, out);
            }
        }
    }
}

/// A question that is with the keeper, and the way its answer takes.
pub struct Reach {
    pub task: Task,
    pub letter: Letter,
    pub outbound: Outbound,
    pub claim: Option<Claim>,
}

/// What is known of a host once it has a lock, a share, or a place in line: that its kernel was
/// alive when it asked. Its old connections can testify from then on.
pub struct Claim {
    liveness: Liveness,
    caller: Caller,
    incarnation: Incarnation,
    arrived: Instant,
}

impl Claim {
    pub fn of(ask: &Ask, liveness: &Liveness) -> Option<Self> {
        let (caller, incarnation) = match ask {
            Ask::Lock(request) => (&request.caller, request.incarnation),
            Ask::Share(request) => (&request.caller, Incarnation::UNKNOWN),
            _ => return None,
        };
        let (liveness, caller) = (liveness.clone(), caller.clone());
        Some(Self { liveness, caller, incarnation, arrived: Instant::now() })
    }

    fn stands(self) {
        let Self { liveness, caller, incarnation, arrived } = self;
        liveness.watch(&caller.host, caller.lane);
        liveness.took(&caller.host, incarnation, arrived);
    }
}

impl Reach {
    pub fn refuse(self, status: Status, mail: &mut Mailbag) {
        self.send(&TestOutcome::Other(status), mail);
    }

    fn send(self, outcome: &TestOutcome, mail: &mut Mailbag) {
        let Self { task, letter, outbound, .. } = self;
        match letter.form {
            Form::Call => task.reply(mail, |out| letter.write(outcome, out)),
            Form::Message => {
                let mut out = Writer::new();
                letter.write(outcome, &mut out);
                let result: Message = out.finish();
                let (procedure, bytes) = (letter.kind.result(), result.to_bytes());
                outbound.send_result(&task.peer, letter.version, procedure, bytes);
                task.reply_void(mail, &result);
            }
        }
    }
}

impl Ticket for Reach {
    fn answer(mut self: Box<Self>, reply: Reply, mail: &mut Mailbag) {
        if let Reply::Lock(Outcome::Granted | Outcome::Blocked) | Reply::Share(Outcome::Granted) =
            reply
            && let Some(claim) = self.claim.take()
        {
            claim.stands();
        }
        let status = match reply {
            Reply::Lock(outcome) | Reply::Share(outcome) => status(outcome),
            Reply::Unlock | Reply::Unshare | Reply::Heard => Status::Granted,
            Reply::Cancel(Cancelled::Done) => Status::Granted,
            Reply::Cancel(Cancelled::TooLate) => Status::Denied,
            Reply::Test(Tested::Free) => Status::Granted,
            Reply::Test(Tested::Grace) => Status::DeniedGracePeriod,
            Reply::Test(Tested::Held(holder)) => {
                return self.send(&TestOutcome::Denied(told(&holder)), mail);
            }
            // The client hears nothing and asks again; the rest is not for it.
            Reply::Nothing | Reply::Monitor(_) | Reply::Unmonitor | Reply::Operator(_) => return,
        };
        self.refuse(status, mail);
    }

    fn is_reclaim(&self) -> bool {
        self.letter.reclaim
    }

    fn stalled(self: Box<Self>, ask: &Ask, mail: &mut Mailbag) {
        if ask.may_be_refused() {
            self.refuse(Status::DeniedNoLocks, mail);
        }
    }
}

fn told(holder: &Holder) -> nlm::Holder {
    nlm::Holder {
        exclusive: holder.mode == keeper::request::Mode::Exclusive,
        svid: holder.owner.number as i32,
        owner: holder.owner.tag.bytes().to_vec().into(),
        range: nlm::Range { offset: holder.range.first(), length: holder.range.length() },
    }
}

fn status(outcome: Outcome) -> Status {
    match outcome {
        Outcome::Granted => Status::Granted,
        Outcome::Denied => Status::Denied,
        Outcome::Blocked => Status::Blocked,
        Outcome::Grace => Status::DeniedGracePeriod,
        Outcome::Deadlock => Status::Deadlock,
        Outcome::Refused(_) => Status::DeniedNoLocks,
    }
}

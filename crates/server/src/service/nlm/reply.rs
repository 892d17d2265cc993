//! The reply to a lock request, in the form and version of the call.

use keeper::request::Form;
use keeper::step::{Cancelled, Holder, Outcome, Reply, Tested};
use wire::nlm::{self, Status, TestOutcome, Version, Versioned};
use wire::{Message, Writer};

use super::Kind;
use crate::callbacks::Callbacks;
use crate::engine::Decision;
use crate::engine::request::WhenStalled;
use crate::rpc::pending::PendingCall;
use crate::transport::ReplyBatch;

/// How a request was asked, as far as its reply needs to know.
#[derive(Debug, Clone)]
pub struct ReplyFormat {
    pub kind: Kind,
    pub form: Form,
    pub version: Version,
    pub cookie: nlm::Cookie,
    /// The client waits for the lock: it must never hear DENIED (Linux takes that for ENOLCK).
    pub waits: bool,
}

impl ReplyFormat {
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

/// A call that the engine decides, and how its reply is written.
pub struct LockReply {
    pub call: PendingCall,
    pub format: ReplyFormat,
    pub callbacks: Callbacks,
}

impl LockReply {
    pub fn answer(self, decision: Decision, replies: &mut ReplyBatch) {
        let reply = match decision {
            Decision::Reply(reply) => reply,
            Decision::Stalled(WhenStalled::Refuse) => {
                return self.refuse(Status::DeniedNoLocks, replies);
            }
            // The client hears nothing and asks again.
            Decision::Stalled(WhenStalled::NoReply) => return,
        };
        let status = match reply {
            Reply::Lock(outcome) | Reply::Share(outcome) => status(outcome),
            Reply::Unlock | Reply::Unshare | Reply::Heard => Status::Granted,
            Reply::Cancel(Cancelled::Done) => Status::Granted,
            Reply::Cancel(Cancelled::TooLate) => Status::Denied,
            Reply::Test(Tested::Free) => Status::Granted,
            Reply::Test(Tested::Grace) => Status::DeniedGracePeriod,
            Reply::Test(Tested::Held(holder)) => {
                return self.send(&TestOutcome::Denied(told(&holder)), replies);
            }
            // The client hears nothing and asks again; the rest is not for it.
            Reply::Nothing | Reply::Monitor(_) | Reply::Unmonitor | Reply::Operator(_) => return,
        };
        self.refuse(status, replies);
    }

    pub fn refuse(self, status: Status, replies: &mut ReplyBatch) {
        self.send(&TestOutcome::Other(status), replies);
    }

    fn send(self, outcome: &TestOutcome, replies: &mut ReplyBatch) {
        let Self { call, format, callbacks } = self;
        match format.form {
            Form::Call => call.reply(replies, |out| format.write(outcome, out)),
            Form::Message => {
                let mut out = Writer::new();
                format.write(outcome, &mut out);
                let result: Message = out.finish();
                let (procedure, bytes) = (format.kind.result(), result.to_bytes());
                callbacks.send_result(&call.peer, format.version, procedure, bytes);
                call.reply_void(replies, &result);
            }
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

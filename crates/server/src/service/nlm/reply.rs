//! Writes the reply to an NLM request in the version and form of its call.

use keeper::request::Form;
use keeper::step::{CancelOutcome, Holder, Outcome, Reply, TestResult};
use wire::nlm::{self, Status, TestOutcome, Version, Versioned};
use wire::{Message, Writer};

use super::Operation;
use crate::callbacks::Callbacks;
use crate::engine::Decision;
use crate::engine::request::StallPolicy;
use crate::rpc::pending::PendingCall;
use crate::transport::ReplyBatch;

/// What a reply must know of its call.
#[derive(Debug, Clone)]
pub(super) struct ReplyFormat {
    pub(super) operation: Operation,
    pub(super) form: Form,
    pub(super) version: Version,
    pub(super) cookie: nlm::Cookie,
    /// The client waits for the lock. It must never get DENIED: Linux turns that into ENOLCK.
    pub(super) waits: bool,
}

impl ReplyFormat {
    fn write(&self, outcome: &TestOutcome, out: &mut Writer) {
        let (version, cookie) = (self.version, self.cookie.clone());
        let wire_status = |status: Status| {
            let status = match status {
                Status::Denied if self.waits && self.operation != Operation::Cancel => {
                    Status::DeniedNoLocks
                }
                status => status,
            };
            status.for_version(version, self.waits)
        };
        match self.operation {
            Operation::Test => {
                let outcome = match outcome {
                    TestOutcome::Other(status) => TestOutcome::Other(wire_status(*status)),
                    held => held.clone(),
                };
                nlm::TestReply { cookie, outcome }.encode_as(version, out);
            }
            Operation::Share | Operation::Unshare => {
                let status = wire_status(outcome.status());
                nlm::ShareReply { cookie, status, sequence: 0 }.encode_as(version, out);
            }
            Operation::FreeAll => {}
            Operation::Lock | Operation::NmLock | Operation::Cancel | Operation::Unlock => {
                let status = wire_status(outcome.status());
                nlm::StatusReply { cookie, status }.encode_as(version, out);
            }
        }
    }
}

/// A pending call and the format of its reply.
pub(super) struct LockReply {
    pub(super) call: PendingCall,
    pub(super) format: ReplyFormat,
    pub(super) callbacks: Callbacks,
}

impl LockReply {
    /// Sends the reply that the decision calls for. Without one the client repeats its request.
    pub(super) fn send_decision(self, decision: Decision, replies: &mut ReplyBatch) {
        let reply = match decision {
            Decision::Reply(reply) => reply,
            Decision::Stalled(StallPolicy::Refuse) => {
                return self.send_status(Status::DeniedNoLocks, replies);
            }
            Decision::Stalled(StallPolicy::NoReply) => return,
        };
        let status = match reply {
            Reply::Lock(outcome) | Reply::Share(outcome) => status(outcome),
            Reply::Unlock | Reply::Unshare | Reply::Acknowledged => Status::Granted,
            Reply::Cancel(CancelOutcome::Done) => Status::Granted,
            Reply::Cancel(CancelOutcome::TooLate) => Status::Denied,
            Reply::Test(TestResult::Free) => Status::Granted,
            Reply::Test(TestResult::Grace) => Status::DeniedGracePeriod,
            Reply::Test(TestResult::Held(holder)) => {
                return self.send(&TestOutcome::Denied(wire_holder(&holder)), replies);
            }
            Reply::NoReply => return,
            // Replies to other programs.
            Reply::Monitor(_)
            | Reply::Unmonitor
            | Reply::Registered(_)
            | Reply::Unregistered(_)
            | Reply::Operator(_) => return,
        };
        self.send_status(status, replies);
    }

    pub(super) fn send_status(self, status: Status, replies: &mut ReplyBatch) {
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
                let (procedure, bytes) = (format.operation.result_procedure(), result.to_bytes());
                callbacks.send_result(&call.peer, format.version, procedure, bytes);
                call.reply_void(replies, &result);
            }
        }
    }
}

fn wire_holder(holder: &Holder) -> nlm::Holder {
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

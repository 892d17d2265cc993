//! The trace lines for inputs, events and messages of the keeper.

use keeper::event::Event;
use keeper::identity::RequestId;
use keeper::step::{Message, Step};

use crate::judge::input::ObservedInput;
use crate::packet::{Call, Request};
use crate::world::World;

impl World {
    pub(crate) fn trace_input(&mut self, input: &ObservedInput) {
        if !self.trace.is_on() {
            return;
        }
        let text = match input {
            ObservedInput::Request(id, request) => format!("> {}", self.request_text(*id, request)),
            ObservedInput::Granted(id, answer) => {
                format!("> callback {} answered {answer:?}", id.0)
            }
            ObservedInput::Noticed(id, result) => format!("> notice {} {result:?}", id.0),
            ObservedInput::Probed(client, question, answer) => {
                format!("> {question:?} of {}: {answer:?}", self.client_text(*client))
            }
            ObservedInput::Reset(client) => {
                format!("> connection of {} is reset", self.client_text(*client))
            }
            ObservedInput::Heard(address) => format!("> {address} connects"),
            ObservedInput::Operator(action) => format!("> operator: {action:?}"),
            ObservedInput::Timeout => "> timeout".to_owned(),
            ObservedInput::Stop => "> stop".to_owned(),
        };
        self.trace(|_| text);
    }

    fn client_text(&mut self, client: keeper::identity::ClientId) -> String {
        match self.host_of(client) {
            Some(host) => format!("{} (client {})", self.hosts[host].name, client.0),
            None => format!("client {}", client.0),
        }
    }

    fn request_text(&self, id: RequestId, request: &Request) -> String {
        let who = match request.truth.process {
            Some(process) => self.who(process),
            None => format!("{} at {}", self.hosts[request.truth.host].short_name(), request.from),
        };
        let what = match &request.call {
            Call::Lock { file, range, mode, wait, reclaim, state } => {
                let how = match (wait, reclaim) {
                    (_, true) => "RECLAIM",
                    (true, _) => "LOCK (wait)",
                    (false, _) => "LOCK",
                };
                format!("{how} {mode:?} {range:?} of file {file}, state {state}")
            }
            Call::Test { file, range, mode } => format!("TEST {mode:?} {range:?} of file {file}"),
            Call::Unlock { file, range } => format!("UNLOCK {range:?} of file {file}"),
            Call::Cancel { file, range, mode } => {
                format!("CANCEL {mode:?} {range:?} of file {file}")
            }
            Call::Notify { name, state } => format!("NOTIFY {name} is in state {state}"),
            Call::FreeAll { name } => format!("FREE_ALL {name}"),
            other => format!("{other:?}"),
        };
        let lie = if request.truth.honest { "" } else { " (a lie)" };
        format!("#{} {who}: {what}{lie}", id.0)
    }

    pub(crate) fn trace_step(&mut self, step: &Step) {
        if !self.trace.is_on() {
            return;
        }
        for event in &step.events {
            if !matches!(event, Event::NoticeSent { .. }) {
                let event = format!("    {event:?}");
                self.trace(|_| event);
            }
        }
        for message in &step.messages {
            let text = match message {
                Message::Reply(id, reply) => format!("    #{} {reply:?}", id.0),
                Message::Grant(grant) => format!(
                    "    callback {} (attempt {}) to {}: {:?} {:?} for {}",
                    grant.id.0,
                    grant.attempt,
                    grant.name,
                    grant.mode,
                    grant.range,
                    grant.owner.number
                ),
                Message::Notice(notice) => format!(
                    "    notice {} (attempt {}) to {}: state {}",
                    notice.id.0, notice.attempt, notice.to, notice.state
                ),
                Message::Probe(client, question) => {
                    format!("    asks: {question:?} of {}?", self.client_text(*client))
                }
            };
            self.trace(|_| text);
        }
    }
}

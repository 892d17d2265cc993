//! An input of the keeper as the judges record it.

use std::net::IpAddr;
use std::rc::Rc;

use keeper::Keeper;
use keeper::identity::{ClientId, GrantId, NoticeId, RequestId};
use keeper::request::{GrantAnswer, NoticeResult, OperatorAction, ProbeAnswer, Question};
use server::engine::request::Request as EngineRequest;

use crate::engine::Input;
use crate::packet::Request;

#[derive(Clone, Debug)]
pub(crate) enum ObservedInput {
    Request(RequestId, Rc<Request>),
    Granted(GrantId, GrantAnswer),
    Noticed(NoticeId, NoticeResult),
    Probed(ClientId, Question, ProbeAnswer),
    Reset(ClientId),
    Heard(IpAddr),
    Operator(OperatorAction),
    Timeout,
    Stop,
}

impl ObservedInput {
    /// `None` for inputs that cannot change anything.
    pub(crate) fn of(input: &Input, keeper: &Keeper) -> Option<Self> {
        Some(match input {
            Input::Request(ask, Some(request)) => Self::Request(ask.id(), request.clone()),
            Input::Request(EngineRequest::Operator(request), None) => {
                Self::Operator(request.action.clone())
            }
            Input::Request(_, None) | Input::Addresses(_) | Input::Read(_) => return None,
            Input::Mounted { address, .. } => Self::Heard(*address),
            Input::Appeared { host, .. } => Self::Heard(host.address()),
            Input::Granted(grant, answer) => Self::Granted(*grant, *answer),
            Input::Noticed(notice, result) => Self::Noticed(*notice, *result),
            Input::Probed(client, question, answer) => Self::Probed(*client, *question, *answer),
            Input::Reset { host, .. } => Self::Reset(keeper.host(host)?.id),
            Input::Heard { address, .. } => Self::Heard(*address),
            Input::Timeout => Self::Timeout,
            Input::Stop => Self::Stop,
        })
    }
}

//! Errors as `application/problem+json` (RFC 9457).

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use keeper::step::OperatorError;
use server::ControlError;
use utoipa::IntoResponses;

use crate::api::{Client, Problem};
use crate::display;
use crate::json::Json;

pub(crate) const CONTENT_TYPE: &str = "application/problem+json";

impl Problem {
    pub fn new(status: StatusCode, code: &str, detail: impl Into<String>) -> Self {
        Self {
            title: status.canonical_reason().unwrap_or("Error").into(),
            status: status.as_u16(),
            code: code.into(),
            detail: detail.into(),
            hint: None,
        }
    }

    pub fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    pub fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad-request", detail)
    }

    pub fn no_such_lock(id: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, "no-such-lock", format!("no lock has the id {id:?}"))
            .hint("lockkeeper locks")
    }

    pub fn no_such_client(id: &str) -> Self {
        let detail = format!("no client has the id, name or address {id:?}");
        Self::new(StatusCode::NOT_FOUND, "no-such-client", detail).hint("lockkeeper clients")
    }

    /// Why a client cannot be forgotten.
    pub fn in_use(client: &Client) -> Self {
        let Client { locks, shares, waiting, .. } = *client;
        let held =
            [(locks, "lock", "locks"), (shares, "share", "shares"), (waiting, "waiter", "waiters")]
                .into_iter()
                .filter(|(count, ..)| *count > 0)
                .map(|(count, one, many)| display::count(count, one, many))
                .collect::<Vec<_>>()
                .join(", ");
        let (name, word) = (&client.name, client.word());
        let (why, hint) = match (held.is_empty(), client.fenced) {
            (false, _) => (format!("has {held}"), format!("lockkeeper locks --client {word}")),
            (true, true) => ("is fenced".into(), format!("lockkeeper unfence {word}")),
            (true, false) => (
                "is being notified of a restart, or has just come to hold something".into(),
                format!("lockkeeper clients {word}"),
            ),
        };
        Self::new(StatusCode::CONFLICT, "busy", format!("{name} ({}) {why}", client.id)).hint(hint)
    }

    pub fn ending() -> Self {
        let detail = "the server is stopping";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", detail).hint("lockkeeper status")
    }
}

impl From<ControlError> for Problem {
    fn from(why: ControlError) -> Self {
        let conflict = |code, detail| Self::new(StatusCode::CONFLICT, code, detail);
        match why {
            ControlError::Ending => Self::ending(),
            ControlError::Stalled => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", why.to_string())
                    .hint("lockkeeper status")
            }
            ControlError::Busy => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "too-many", why.to_string()).hint(
                    "try again; requests of root over the unix socket have a share of their own",
                )
            }
            ControlError::Refused(OperatorError::NoSuchLock) => {
                let detail = "the lock has already been released";
                Self::new(StatusCode::NOT_FOUND, "no-such-lock", detail).hint("lockkeeper locks")
            }
            ControlError::Refused(OperatorError::NoSuchClient) => {
                let detail = "no such client, or the action does not apply to it";
                Self::new(StatusCode::NOT_FOUND, "no-such-client", detail)
                    .hint("lockkeeper clients")
            }
            ControlError::Refused(OperatorError::Busy) => conflict(
                "busy",
                "the client holds or waits for locks, is fenced, or has a pending notice",
            )
            .hint("lockkeeper locks --client CLIENT"),
            ControlError::Refused(OperatorError::NoReport) => conflict(
                "no-report",
                "no report of a reboot is pending; all its locks would be released",
            )
            .hint("repeat with force=true if it did reboot"),
            ControlError::Refused(OperatorError::NotInGrace) => {
                conflict("not-in-grace", "no grace period is active").hint("lockkeeper status")
            }
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, Json(self)).into_response();
        let content_type = HeaderValue::from_static(CONTENT_TYPE);
        response.headers_mut().insert(header::CONTENT_TYPE, content_type);
        response
    }
}

/// Error replies common to all paths.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "used only for the OpenAPI document")]
pub(crate) enum Problems {
    #[response(
        status = 400,
        description = "Malformed request",
        content_type = "application/problem+json"
    )]
    BadRequest(Problem),
    #[response(
        status = 403,
        description = "The caller is not permitted",
        content_type = "application/problem+json"
    )]
    Forbidden(Problem),
    #[response(
        status = 404,
        description = "No such object",
        content_type = "application/problem+json"
    )]
    NotFound(Problem),
    #[response(
        status = 409,
        description = "Not possible in the current state",
        content_type = "application/problem+json"
    )]
    Conflict(Problem),
    #[response(
        status = 503,
        description = "Standing by, stopping, or the store or a file system does not answer",
        content_type = "application/problem+json"
    )]
    Unavailable(Problem),
}

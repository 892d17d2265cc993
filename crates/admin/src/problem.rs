//! What went wrong, in the form that programs and people read: `application/problem+json`.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use keeper::step::OperatorError;
use server::NotDone;
use utoipa::IntoResponses;

use crate::api::Problem;
use crate::json::Json;

pub const CONTENT_TYPE: &str = "application/problem+json";

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

    pub fn ending() -> Self {
        let detail = "the server is ending";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", detail).hint("lockkeeper status")
    }
}

impl From<NotDone> for Problem {
    fn from(why: NotDone) -> Self {
        let conflict = |code, detail| Self::new(StatusCode::CONFLICT, code, detail);
        match why {
            NotDone::Ending => Self::ending(),
            NotDone::Stalled => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", why.to_string())
                    .hint("lockkeeper status")
            }
            NotDone::Refused(OperatorError::NoSuchLock) => {
                let detail = "the lock is gone already";
                Self::new(StatusCode::NOT_FOUND, "no-such-lock", detail).hint("lockkeeper locks")
            }
            NotDone::Refused(OperatorError::NoSuchClient) => {
                let detail = "there is no such client, or it is not one that this can be done to";
                Self::new(StatusCode::NOT_FOUND, "no-such-client", detail)
                    .hint("lockkeeper clients")
            }
            NotDone::Refused(OperatorError::Busy) => conflict(
                "busy",
                "the client holds or awaits something, is fenced, or must still be told of our \
                 restart",
            )
            .hint("lockkeeper locks --client CLIENT"),
            NotDone::Refused(OperatorError::NotInGrace) => {
                conflict("not-in-grace", "there is no grace period now").hint("lockkeeper status")
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

/// What every path may answer.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "only the document is made from it")]
pub enum Problems {
    #[response(
        status = 400,
        description = "The question cannot be understood",
        content_type = "application/problem+json"
    )]
    BadRequest(Problem),
    #[response(
        status = 403,
        description = "Not permitted to this caller",
        content_type = "application/problem+json"
    )]
    Forbidden(Problem),
    #[response(
        status = 404,
        description = "There is no such thing",
        content_type = "application/problem+json"
    )]
    NotFound(Problem),
    #[response(
        status = 409,
        description = "Not now, or not so",
        content_type = "application/problem+json"
    )]
    Conflict(Problem),
    #[response(
        status = 503,
        description = "Standing by, ending, or the store does not work",
        content_type = "application/problem+json"
    )]
    Unavailable(Problem),
}

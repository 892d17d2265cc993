//! JSON responses.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

/// Initial buffer; fits most pages.
const ROOM: usize = 64 << 10;

/// Serialised in one piece: axum's `Json` takes twice the instructions for a page of locks.
pub(crate) struct Json<T>(pub T);

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        let mut text = Vec::with_capacity(ROOM);
        // API types have no maps with non-string keys or other fallible parts.
        if serde_json::to_writer(&mut text, &self.0).is_err() {
            return StatusCode::INTERNAL_SERVER_ERROR.into_response();
        }
        let kind = HeaderValue::from_static("application/json");
        ([(header::CONTENT_TYPE, kind)], text).into_response()
    }
}

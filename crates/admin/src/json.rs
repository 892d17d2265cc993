//! An answer, as JSON.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

/// Most answers are a page.
const ROOM: usize = 64 << 10;

/// Written in one piece: axum's own costs twice the instructions for a page of locks.
pub struct Json<T>(pub T);

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        let mut text = Vec::with_capacity(ROOM);
        // What is told has neither maps with strange keys nor anything else that could fail.
        if serde_json::to_writer(&mut text, &self.0).is_err() {
            return StatusCode::INTERNAL_SERVER_ERROR.into_response();
        }
        let kind = HeaderValue::from_static("application/json");
        ([(header::CONTENT_TYPE, kind)], text).into_response()
    }
}

//! Path and query extractors that reject a malformed request with a [`Problem`], not plain text.

use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{FromRequestParts, Path as AxumPath, Query as AxumQuery};
use axum::http::request::Parts;
use serde::de::DeserializeOwned;

use crate::api::Problem;

pub(crate) struct Query<T>(pub T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let asked: Result<AxumQuery<T>, QueryRejection> =
            AxumQuery::from_request_parts(parts, state).await;
        match asked {
            Ok(AxumQuery(query)) => Ok(Self(query)),
            Err(error) => Err(Problem::bad_request(error.body_text())),
        }
    }
}

pub(crate) struct Path<T>(pub T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Path<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let asked: Result<AxumPath<T>, PathRejection> =
            AxumPath::from_request_parts(parts, state).await;
        match asked {
            Ok(AxumPath(path)) => Ok(Self(path)),
            Err(error) => Err(Problem::bad_request(error.body_text())),
        }
    }
}

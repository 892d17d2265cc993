//! The HTTP API, the metrics and the web page, on sockets of their own: [`Admin::start`] opens them,
//! [`Admin::serve`] connects them to a running server.

/// What [`Reload`] answers with.
pub use ::admin::api::{ChangedExport, ReloadResult};
pub use ::admin::{
    Admin, AdminError, Facts, ListenError, PathVisibility, Reload, Settings, TokenError,
};

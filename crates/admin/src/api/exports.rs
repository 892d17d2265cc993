//! Exports, and what a reload changed.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Io;

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Export {
    pub path: String,
    /// Of its first rule, as are `squash` and `reserved_ports`; see `rules`.
    pub access: String,
    /// The networks of all rules.
    pub clients: Vec<String>,
    pub squash: String,
    pub reserved_ports: bool,
    /// Part of each file handle; `id` in the configuration.
    pub id: u32,
    /// Part of each file handle, as a decimal number; `filesystem_id` in the configuration. Absent while
    /// the export is not served.
    pub filesystem_id: Option<String>,
    /// `ext`, `xfs`, `memory`, ...; absent while the export is not served.
    pub file_system: Option<String>,
    pub state: ExportState,
    /// Why it is not served, if its file system has said so.
    pub problem: Option<String>,
    /// How long it has not been served.
    pub waiting_seconds: Option<f64>,
    /// Who may use it, and how: of the networks that contain an address the most specific decides.
    pub rules: Vec<ExportRule>,
    /// NFS calls that named a file in it; absent while it is not served.
    pub io: Option<Io>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ExportState {
    Served,
    /// Served, but its file system answers no call at present.
    Unanswered,
    /// Not served yet: its file system has not answered since the server started.
    Opening,
    /// Not served: `problem` says why.
    Failed,
}

/// What clients in some networks may do in an export.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExportRule {
    /// `*` is all addresses.
    pub clients: Vec<String>,
    /// `rw` or `ro`.
    pub access: String,
    /// `none`, `root` or `all`.
    pub squash: String,
    pub anonymous_uid: u32,
    pub anonymous_gid: u32,
    pub reserved_ports: bool,
    pub lock_auth: bool,
    /// `read` or `write`.
    pub exclusive_lock: String,
    pub stateless_clients: bool,
    /// `caller` or `server`.
    pub mount_walk: String,
}

/// Reply to `POST /v1/reload`. Exports are named by their configured paths.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReloadResult {
    /// What was done, in one sentence.
    pub done: String,
    pub added: Vec<String>,
    pub removed: Vec<String>,
    pub changed: Vec<ChangedExport>,
}

/// An export with other settings than before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ChangedExport {
    pub path: String,
    /// The keys of the configuration that differ.
    pub settings: Vec<String>,
}

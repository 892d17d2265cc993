//! Ids in the API, spelled as the keeper spells them.

use keeper::identity::{ClientId, LockId};

/// `k7f2`: a lock, a share or a waiter.
pub fn entry(id: LockId) -> String {
    id.to_string()
}

/// `c3`.
pub fn client(id: ClientId) -> String {
    id.to_string()
}

pub fn parse_entry(text: &str) -> Option<LockId> {
    text.parse().ok()
}

pub fn parse_client(text: &str) -> Option<ClientId> {
    text.parse().ok()
}

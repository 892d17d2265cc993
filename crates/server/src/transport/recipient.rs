//! A recipient of the reply to a call that is under way.

use super::ReplyTo;

/// The peer that sent the call, or one that sent a repeat of it (B1.14).
pub(crate) struct Recipient {
    pub(super) to: ReplyTo,
    /// For a repeat. The call itself is counted by its
    /// [`InFlightGuard`](crate::rpc::pending::InFlightGuard).
    pub(super) joined: Option<Joined>,
}

/// Counts a repeat as under way on its connection or socket until this is dropped, so that neither a stop
/// nor the idle timer closes it before the reply. It does not count against the limits: it costs
/// nothing but its place in the duplicate request cache.
pub(crate) struct Joined(ReplyTo);

impl Recipient {
    pub(crate) fn new(to: ReplyTo) -> Self {
        Self { to, joined: None }
    }

    /// To be called when it joins a call that is under way.
    pub(crate) fn join(&mut self) {
        self.joined.get_or_insert_with(|| {
            match &self.to {
                ReplyTo::Connection(outgoing) => outgoing.joined(),
                ReplyTo::Datagram(datagrams, _) => datagrams.started(),
            }
            Joined(self.to.clone())
        });
    }

    pub(crate) fn same_as(&self, other: &Self) -> bool {
        self.to.same_as(&other.to)
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        match &self.0 {
            ReplyTo::Connection(outgoing) => outgoing.left(),
            ReplyTo::Datagram(datagrams, _) => datagrams.finished(),
        }
    }
}

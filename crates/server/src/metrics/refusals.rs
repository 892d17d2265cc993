//! Refused SM_MON and FREE_ALL calls, by reason.

use super::{Count, Metrics};

/// A call whose refusals are counted by reason; the label `request`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusedCall {
    Monitor,
    FreeAll,
}

impl RefusedCall {
    pub const LABELS: [(Self, &'static str); 2] =
        [(Self::Monitor, "sm_mon"), (Self::FreeAll, "free_all")];

    /// The reasons for which it can be refused.
    pub fn reasons(self) -> &'static [RefusalReason] {
        use RefusalReason::*;
        match self {
            Self::Monitor => {
                &[Address, Port, Transport, Program, TooManyRegistrations, TooManyClients, Store]
            }
            Self::FreeAll => &[Port, UnknownHost, Alive, Unproven],
        }
    }
}

/// Why a call was refused; the label `reason`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalReason {
    Address,
    Port,
    Transport,
    /// A registrant may not have this program called.
    Program,
    TooManyRegistrations,
    TooManyClients,
    Store,
    UnknownHost,
    Alive,
    Unproven,
}

impl RefusalReason {
    pub const LABELS: [(Self, &'static str); 10] = [
        (Self::Address, "address"),
        (Self::Port, "port"),
        (Self::Transport, "transport"),
        (Self::Program, "program"),
        (Self::TooManyRegistrations, "too_many_registrations"),
        (Self::TooManyClients, "too_many_clients"),
        (Self::Store, "store"),
        (Self::UnknownHost, "unknown_host"),
        (Self::Alive, "alive"),
        (Self::Unproven, "unproven"),
    ];

    pub fn label(self) -> &'static str {
        Self::LABELS[self as usize].1
    }
}

pub(super) type RefusalCounts = [[Count; RefusalReason::LABELS.len()]; RefusedCall::LABELS.len()];

impl Metrics {
    pub fn refusals(&self, call: RefusedCall, reason: RefusalReason) -> u64 {
        self.refusals[call as usize][reason as usize].get()
    }

    pub(crate) fn count_refusal(&self, call: RefusedCall, reason: RefusalReason) {
        self.refusals[call as usize][reason as usize].add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_listed_in_the_order_of_their_values() {
        for (place, (reason, label)) in RefusalReason::LABELS.into_iter().enumerate() {
            assert_eq!((reason as usize, reason.label()), (place, label));
        }
    }
}

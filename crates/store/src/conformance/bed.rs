//! What a store's own tests provide for the suite: new stores, and the failures of their medium.

use keeper::change::Snapshot;

use crate::error::StoreError;
use crate::store::Store;

/// Makes stores, and makes them fail. A hook whose failure the store cannot have, or its tests cannot
/// produce, keeps its default: the rules that need it are not checked, and [`check`](super::check)
/// names them.
pub trait TestBed {
    /// The store that is tested.
    type Store: Store;

    /// Whether the store outlives its process. If not, only what holds while it lives is checked.
    const OUTLIVES_PROCESS: bool = true;

    /// A new, empty store, open for writing.
    fn fresh(&mut self) -> Self::Store;

    /// Ends the store as `kill -9` ends its process, and opens it again: nothing may be written when
    /// it is dropped that the process has not written before.
    fn reopen_after_kill(&mut self, store: Self::Store) -> Self::Store;

    /// Ends the store as a power loss does, and opens it again. The error returns the store.
    fn reopen_after_power_loss(&mut self, store: Self::Store) -> Result<Self::Store, Self::Store> {
        Err(store)
    }

    /// Makes the next commit fail without an effect, as on a full disk; [`repair`](TestBed::repair)
    /// follows.
    /// False if that cannot be produced.
    fn fail_writes(&mut self, _store: &mut Self::Store) -> bool {
        false
    }

    /// Undoes [`fail_writes`](TestBed::fail_writes).
    fn repair(&mut self, _store: &mut Self::Store) {}

    /// Lets the outcome of the next commit be lost; `stored` says which outcome. False if that one
    /// cannot be produced.
    fn lose_next_reply(&mut self, _store: &mut Self::Store, _stored: bool) -> bool {
        false
    }

    /// Opens the store of `first` for writing a second time. `None` if a second writer cannot exist.
    fn second_writer(
        &mut self,
        _first: &mut Self::Store,
    ) -> Option<Result<Self::Store, StoreError>> {
        None
    }

    /// How often `store` has waited for a disk or the network. `None` if it never does, or if that
    /// cannot be counted.
    fn waits(&mut self, _store: &Self::Store) -> Option<u64> {
        None
    }
}

/// The rules that were not checked, because the bed could not produce what they need.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Unchecked(pub Vec<&'static str>);

/// Everything but the judgement of the store itself.
pub(super) fn contents(saved: &Snapshot) -> Snapshot {
    Snapshot { exactness: Default::default(), ..saved.clone() }
}

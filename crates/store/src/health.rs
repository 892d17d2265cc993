//! What an operator should know about a store that works: each warning stands until its cause is gone.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The standing warnings of one store, shared with its background threads. Reading never waits for the
/// store.
#[derive(Clone, Debug, Default)]
pub struct StoreHealth {
    warnings: Arc<Mutex<BTreeMap<&'static str, String>>>,
}

impl StoreHealth {
    /// One sentence for each warning, in a stable order.
    pub fn warnings(&self) -> Vec<String> {
        self.lock().values().cloned().collect()
    }

    /// Sets the warning about `subject`, or removes it.
    pub fn set(&self, subject: &'static str, warning: Option<String>) {
        match warning {
            Some(warning) => drop(self.lock().insert(subject, warning)),
            None => drop(self.lock().remove(subject)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<&'static str, String>> {
        self.warnings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

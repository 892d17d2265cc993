//! Interned ids: a file or an owner is a small integer everywhere but at the edges, so that a lock
//! does not carry its file's key and its owner's name.

use std::borrow::Borrow;
use std::collections::BTreeSet;
use std::hash::Hash;
use std::ops::{Index, IndexMut};
use std::sync::Arc;

use crate::bytes::FileKey;
use crate::identity::{ClientId, Owner, ShareId};
use crate::map::{Map, Seed};
use crate::waiters::WaiterId;

macro_rules! interned_ids {
    ($($(#[$meta:meta])* $name:ident)*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub(crate) struct $name(pub(crate) u32);

        impl From<usize> for $name {
            fn from(index: usize) -> Self {
                Self(index as u32)
            }
        }

        impl From<$name> for usize {
            fn from(id: $name) -> usize {
                id.0 as usize
            }
        }
    )*};
}

interned_ids! {
    /// A file with locks, waiters or shares. Reused once the file has none.
    FileId
    /// An owner of locks, waiters or shares. Reused once the owner has none.
    OwnerId
}

/// What a file has besides its locks, which the table counts.
#[derive(Default, PartialEq)]
pub(crate) struct FileEntry {
    /// Their ids are in order of arrival.
    pub(crate) waiters: BTreeSet<WaiterId>,
    pub(crate) shares: Vec<ShareId>,
}

pub(crate) type Files = Interner<FileId, FileKey, FileEntry>;

/// The value counts waiters and shares of the owner; the table counts its locks.
pub(crate) type Owners = Interner<OwnerId, Arc<Owner>, u32>;

impl Owners {
    pub(crate) fn host(&self, id: OwnerId) -> ClientId {
        self.key(id).host
    }
}

/// Keys by id, each with a value that is at its default while nothing needs the id.
pub(crate) struct Interner<I, K, V> {
    ids: Map<K, I>,
    rows: Vec<(K, V)>,
    free: Vec<I>,
}

impl<I, K, V> Interner<I, K, V>
where
    I: Copy + PartialEq + From<usize> + Into<usize>,
    K: Clone + Eq + Hash,
    V: Default + PartialEq,
{
    pub(crate) fn new(seed: Seed) -> Self {
        Self { ids: seed.map(), rows: Vec::new(), free: Vec::new() }
    }

    pub(crate) fn find<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> Option<I>
    where
        K: Borrow<Q>,
    {
        self.ids.get(key).copied()
    }

    /// The id of a key, assigned now if it has none.
    pub(crate) fn intern<Q: Eq + Hash + Clone + Into<K>>(&mut self, key: &Q) -> I
    where
        K: Borrow<Q>,
    {
        if let Some(id) = self.find(key) {
            return id;
        }
        let key: K = key.clone().into();
        let row = (key.clone(), V::default());
        let id = match self.free.pop() {
            Some(id) => {
                self.rows[id.into()] = row;
                id
            }
            None => {
                self.rows.push(row);
                I::from(self.rows.len() - 1)
            }
        };
        self.ids.insert(key, id);
        id
    }

    /// Gives an id another key, which must have none.
    pub(crate) fn rename(&mut self, id: I, key: K) {
        let row = &mut self.rows[id.into()];
        self.ids.remove(&row.0);
        row.0 = key.clone();
        self.ids.insert(key, id);
    }

    pub(crate) fn key(&self, id: I) -> &K {
        &self.rows[id.into()].0
    }

    /// Drops the id of a key without locks unless its value is in use; returns the key if dropped.
    pub(crate) fn remove_unused(&mut self, id: I) -> Option<K> {
        let (key, value) = &self.rows[id.into()];
        if *value != V::default() || self.ids.get(key) != Some(&id) {
            return None;
        }
        self.free.push(id);
        self.ids.remove_entry(key).map(|(key, _)| key)
    }
}

impl<I: Into<usize>, K, V> Index<I> for Interner<I, K, V> {
    type Output = V;

    fn index(&self, id: I) -> &V {
        &self.rows[id.into()].1
    }
}

impl<I: Into<usize>, K, V> IndexMut<I> for Interner<I, K, V> {
    fn index_mut(&mut self, id: I) -> &mut V {
        &mut self.rows[id.into()].1
    }
}

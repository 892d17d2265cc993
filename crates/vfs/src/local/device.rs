//! What the exports of one mounted file system share while they are served: its id, if nothing else
//! gives it one, the locks that order the changes of a file by this process, and how many changes of
//! permissions there were.
//!
//! An order lock is held from reading the attributes before a change to reading those after it, so
//! that no other change by a client falls between. Lock order: of two directories, the one whose
//! lock has the lower address first; of a directory and a file in it, the directory first. WRITEs take
//! it too: in the kernel they would wait for each other by spinning.

use std::{
    collections::HashMap,
    path::Path,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use super::{fsid::Lifetime, node::lock};
use crate::{FileSystemId, ObjectId};

pub(super) type OrderLock = Arc<Mutex<()>>;

/// A mounted file system that is served.
#[derive(Default)]
pub(super) struct Device {
    id: Mutex<Option<FileSystemId>>,
    served_as: Mutex<Option<FileSystemId>>,
    lifetime: Mutex<Option<Lifetime>>,
    orders: Mutex<OrderLocks>,
    changes: AtomicU64,
}

/// The order locks that are in use.
#[derive(Default)]
struct OrderLocks {
    by_file: HashMap<ObjectId, Weak<Mutex<()>>>,
    /// The size at which unused ones are removed.
    full: usize,
}

/// A device and its number, which may be used again for another when it is no longer served.
type Served = ((u32, u32), Weak<Device>);

static SERVED: Mutex<Vec<Served>> = Mutex::new(Vec::new());

impl Device {
    /// The device with this number.
    pub(super) fn of(number: (u32, u32)) -> Arc<Self> {
        let mut served = lock(&SERVED);
        served.retain(|(_, device)| device.strong_count() > 0);
        let known = served.iter().find(|(known, _)| *known == number);
        if let Some(device) = known.and_then(|(_, device)| device.upgrade()) {
            return device;
        }
        let device = Arc::<Self>::default();
        served.push((number, Arc::downgrade(&device)));
        device
    }

    /// The id that the first export of the device got from `assign`, unless `assign` gives this one
    /// another.
    pub(super) fn id<E>(
        &self,
        assign: impl FnOnce(Option<FileSystemId>) -> Result<FileSystemId, E>,
    ) -> Result<FileSystemId, E> {
        let mut first = lock(&self.id);
        let id = assign(*first)?;
        first.get_or_insert(id);
        Ok(id)
    }

    /// Notes an id under which the device is served from `path`, and warns if it is the second one.
    pub(super) fn warn_of_second_id(&self, id: FileSystemId, path: &Path) {
        if !self.is_served_only_as(id) {
            tracing::warn!(
                "{} has another file system id than another export of the same file system: locks \
                 taken through one do not exclude those taken through the other. Give both the same \
                 `filesystem_id`; clients then mount again",
                path.display()
            );
        }
    }

    /// Notes an id under which the device is served. False if it is served under another one as well, so
    /// that a file has two keys, and locks on them do not exclude each other.
    fn is_served_only_as(&self, id: FileSystemId) -> bool {
        *lock(&self.served_as).get_or_insert(id) == id
    }

    /// How long inode numbers can be relied on: what `find` says for the first export.
    pub(super) fn lifetime(&self, find: impl FnOnce() -> Lifetime) -> Lifetime {
        lock(&self.lifetime).get_or_insert_with(find).clone()
    }

    /// A number that grows when a client has changed owner, group or mode of a file, or removed one: what
    /// was known of permissions before must be asked for again.
    pub(super) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    pub(super) fn count_change(&self) {
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// The order lock of a file. `key` is the same for all exports of the file system.
    pub(super) fn order_of(&self, key: ObjectId) -> OrderLock {
        let mut locks = lock(&self.orders);
        if let Some(known) = locks.by_file.get(&key).and_then(Weak::upgrade) {
            return known;
        }
        if locks.by_file.len() >= locks.full {
            locks.by_file.retain(|_, known| known.strong_count() > 0);
            locks.full = (2 * locks.by_file.len()).max(64);
        }
        let new = OrderLock::default();
        locks.by_file.insert(key, Arc::downgrade(&new));
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exports_of_one_device_share_the_locks_of_its_files() {
        let (one, two) = (Device::of((7, 1)), Device::of((7, 1)));
        let other = Device::of((7, 2));
        let locked = one.order_of(5.into());
        assert!(Arc::ptr_eq(&locked, &two.order_of(5.into())));
        assert!(!Arc::ptr_eq(&locked, &two.order_of(6.into())));
        assert!(!Arc::ptr_eq(&locked, &other.order_of(5.into())));
    }

    #[test]
    fn a_second_id_of_a_device_is_noticed() {
        let device = Device::default();
        assert!(device.is_served_only_as(FileSystemId(1)));
        assert!(device.is_served_only_as(FileSystemId(1)));
        assert!(!device.is_served_only_as(FileSystemId(2)));
    }

    #[test]
    fn unused_locks_are_removed() {
        let device = Device::default();
        let kept = device.order_of(0.into());
        for file in 1..10_000 {
            device.order_of(file.into());
        }
        assert!(lock(&device.orders).by_file.len() <= 64);
        assert!(Arc::ptr_eq(&kept, &device.order_of(0.into())));
    }

    #[test]
    fn a_number_that_is_used_again_is_another_device() {
        let assign =
            |new: u64| move |first: Option<_>| Ok::<_, ()>(first.unwrap_or(FileSystemId(new)));
        let device = Device::of((7, 3));
        assert_eq!(device.id(assign(1)), Ok(FileSystemId(1)));
        assert_eq!(Device::of((7, 3)).id(assign(2)), Ok(FileSystemId(1)));
        drop(device);
        assert_eq!(Device::of((7, 3)).id(assign(3)), Ok(FileSystemId(3)));
    }
}

//! The groups of a user according to the host's name service, for users in more groups than the 16
//! that AUTH_SYS carries.

use std::collections::HashMap;
use std::ffi::CString;
use std::mem::MaybeUninit;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::BlockingMode;

const AGE_MAX: Duration = Duration::from_secs(300);
const USERS_MAX: usize = 4096;
const GROUPS_MAX: usize = 65_536;

/// A cache of group lists by uid, because name services can be slow. Entries expire after five
/// minutes by default.
pub struct GroupCache {
    age_max: Duration,
    users: Mutex<HashMap<u32, CachedGroups>>,
}

impl Default for GroupCache {
    fn default() -> Self {
        Self::with_age_max(AGE_MAX)
    }
}

struct CachedGroups {
    /// `None`: the host does not know the user.
    groups: Option<Arc<[u32]>>,
    queried: Instant,
}

/// The result of [`GroupCache::groups_of`].
#[derive(Debug, PartialEq, Eq)]
pub enum GroupLookup {
    /// All groups of the user, the primary one included.
    Groups(Arc<[u32]>),
    /// The host does not know the user.
    Unknown,
    /// Not cached, and the name service may not be queried in this blocking mode.
    WouldBlock,
}

impl GroupCache {
    /// A cache whose answers are never older than `age_max`.
    pub fn with_age_max(age_max: Duration) -> Self {
        Self { age_max, users: Mutex::default() }
    }

    /// The groups of `uid`, from the cache or, with [`BlockingMode::MayBlock`], from the name
    /// service.
    pub fn groups_of(&self, uid: u32, blocking: BlockingMode) -> GroupLookup {
        let lock = || self.users.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = |groups: &Option<Arc<[u32]>>| match groups {
            Some(groups) => GroupLookup::Groups(groups.clone()),
            None => GroupLookup::Unknown,
        };
        if let Some(cached) = lock().get(&uid)
            && cached.queried.elapsed() < self.age_max
        {
            return answer(&cached.groups);
        }
        if blocking == BlockingMode::Nonblocking {
            return GroupLookup::WouldBlock;
        }
        let groups = query_name_service(uid).map(Arc::from);
        let found = answer(&groups);
        let mut users = lock();
        if users.len() >= USERS_MAX {
            users.clear();
        }
        users.insert(uid, CachedGroups { groups, queried: Instant::now() });
        found
    }
}

#[allow(unsafe_code)]
fn query_name_service(uid: u32) -> Option<Vec<u32>> {
    let mut text = vec![0u8; 16 * 1024];
    let mut entry = MaybeUninit::<libc::passwd>::uninit();
    let mut result = std::ptr::null_mut();
    // SAFETY: all pointers are to live buffers of the lengths given; `entry` is read only after
    // `result` says that it was filled.
    let (name, gid) = unsafe {
        let buffer = text.as_mut_ptr().cast();
        let status = libc::getpwuid_r(uid, entry.as_mut_ptr(), buffer, text.len(), &mut result);
        if status != 0 || result.is_null() {
            return None;
        }
        let entry = entry.assume_init_ref();
        (CString::from(std::ffi::CStr::from_ptr(entry.pw_name)), entry.pw_gid)
    };
    let mut groups = vec![0u32; 64];
    loop {
        let mut count = groups.len() as libc::c_int;
        // SAFETY: `groups` has room for `count` entries.
        let status =
            unsafe { libc::getgrouplist(name.as_ptr(), gid, groups.as_mut_ptr(), &mut count) };
        let wanted = usize::try_from(count).ok()?;
        if status >= 0 {
            groups.truncate(wanted);
            return Some(groups);
        }
        if wanted <= groups.len() || wanted > GROUPS_MAX {
            return None;
        }
        groups.resize(wanted, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_has_a_group_and_nobody_knows_user_four_billion() {
        let cache = GroupCache::default();
        assert_eq!(cache.groups_of(0, BlockingMode::Nonblocking), GroupLookup::WouldBlock);
        let GroupLookup::Groups(groups) = cache.groups_of(0, BlockingMode::MayBlock) else {
            panic!()
        };
        assert!(groups.contains(&0));
        assert_eq!(cache.groups_of(0, BlockingMode::Nonblocking), GroupLookup::Groups(groups));
        assert_eq!(cache.groups_of(4_000_000_000, BlockingMode::MayBlock), GroupLookup::Unknown);
        assert_eq!(cache.groups_of(4_000_000_000, BlockingMode::Nonblocking), GroupLookup::Unknown);
    }

    #[test]
    fn an_expired_answer_is_not_used() {
        let cache = GroupCache::with_age_max(Duration::ZERO);
        assert!(matches!(cache.groups_of(0, BlockingMode::MayBlock), GroupLookup::Groups(_)));
        assert_eq!(cache.groups_of(0, BlockingMode::Nonblocking), GroupLookup::WouldBlock);
    }
}

//! The groups of a user as this host knows them, for users in more groups than AUTH_SYS carries.

use std::collections::HashMap;
use std::ffi::CString;
use std::mem::MaybeUninit;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::Patience;

const FRESH: Duration = Duration::from_secs(300);
const USERS_MAX: usize = 4096;
const GROUPS_MAX: usize = 65_536;

/// Answers are kept for five minutes if nothing else is said: name services can be slow.
pub struct GroupCache {
    fresh: Duration,
    known: Mutex<HashMap<u32, Known>>,
}

impl Default for GroupCache {
    fn default() -> Self {
        Self::fresh_for(FRESH)
    }
}

struct Known {
    groups: Option<Arc<[u32]>>,
    since: Instant,
}

/// What is known of a user's groups.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    Groups(Arc<[u32]>),
    /// This host does not know the user.
    Unknown,
    /// Asking may take long, and there was no patience.
    Later,
}

impl GroupCache {
    /// One whose answers are never older than this.
    pub fn fresh_for(fresh: Duration) -> Self {
        Self { fresh, known: Mutex::default() }
    }

    pub fn groups_of(&self, uid: u32, patience: Patience) -> Found {
        let lock = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = |groups: &Option<Arc<[u32]>>| match groups {
            Some(groups) => Found::Groups(groups.clone()),
            None => Found::Unknown,
        };
        if let Some(known) = lock().get(&uid)
            && known.since.elapsed() < self.fresh
        {
            return answer(&known.groups);
        }
        if patience == Patience::Now {
            return Found::Later;
        }
        let groups = look_up(uid).map(Arc::from);
        let found = answer(&groups);
        let mut known = lock();
        if known.len() >= USERS_MAX {
            known.clear();
        }
        known.insert(uid, Known { groups, since: Instant::now() });
        found
    }
}

/// Asks the host's name service.
#[allow(unsafe_code)]
fn look_up(uid: u32) -> Option<Vec<u32>> {
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
        assert_eq!(cache.groups_of(0, Patience::Now), Found::Later);
        let Found::Groups(groups) = cache.groups_of(0, Patience::Wait) else { panic!() };
        assert!(groups.contains(&0));
        assert_eq!(cache.groups_of(0, Patience::Now), Found::Groups(groups));
        assert_eq!(cache.groups_of(4_000_000_000, Patience::Wait), Found::Unknown);
        assert_eq!(cache.groups_of(4_000_000_000, Patience::Now), Found::Unknown);
    }

    #[test]
    fn an_old_answer_is_not_given() {
        let cache = GroupCache::fresh_for(Duration::ZERO);
        assert!(matches!(cache.groups_of(0, Patience::Wait), Found::Groups(_)));
        assert_eq!(cache.groups_of(0, Patience::Now), Found::Later);
    }
}

//! The groups of a user according to the host's name service, for users in more groups than the 16
//! that AUTH_SYS carries.
//!
//! Name services can be slow and can fail. One call at a time asks for a user, and the others wait for
//! its answer; a failure is no answer (B1.83).

mod host_names;

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tracing::warn;

use crate::BlockingMode;

const AGE_MAX: Duration = Duration::from_secs(300);
/// How old an answer may be that is used while the name service fails or is being asked.
const EXPIRED_AGE_MAX: Duration = Duration::from_secs(3600);
/// After a failure the name service is left alone for this long.
const FAILED_FOR: Duration = Duration::from_secs(2);
/// How long a call waits for the answer to another one's question.
const WAIT_MAX: Duration = Duration::from_secs(5);
const USERS_MAX: usize = 4096;

/// Where groups come from. May block.
pub trait NameService: Send + Sync {
    /// All groups of a user, the primary one included; `None` if there is no such user. An error says
    /// nothing about the user.
    fn groups(&self, uid: u32) -> io::Result<Option<Vec<u32>>>;
}

/// A cache of group lists by uid. Entries expire after five minutes by default.
pub struct GroupCache {
    age_max: Duration,
    expired_age_max: Duration,
    names: Box<dyn NameService>,
    users: Mutex<HashMap<u32, CachedUser>>,
    answered: Condvar,
}

impl Default for GroupCache {
    fn default() -> Self {
        Self::new(AGE_MAX, EXPIRED_AGE_MAX, host_names::HostNames)
    }
}

#[derive(Default)]
struct CachedUser {
    /// The last answer: the groups, or `None` for no such user. And when it was asked for.
    answer: Option<(Option<Arc<[u32]>>, Instant)>,
    failed: Option<Instant>,
    is_asked: bool,
}

impl CachedUser {
    fn answer_within(&self, age_max: Duration) -> Option<GroupLookup> {
        let (groups, since) = self.answer.as_ref()?;
        (since.elapsed() < age_max).then(|| match groups {
            Some(groups) => GroupLookup::Groups(groups.clone()),
            None => GroupLookup::Unknown,
        })
    }
}

/// The result of [`GroupCache::groups_of`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GroupLookup {
    /// All groups of the user, the primary one included.
    Groups(Arc<[u32]>),
    /// The host does not know the user.
    Unknown,
    /// The name service failed or is too slow, and no answer is recent enough.
    Failed,
    /// Not cached, and the name service may not be queried in this blocking mode.
    WouldBlock,
}

impl GroupCache {
    /// A cache of the host's names whose answers are never older than `age_max`.
    pub fn with_age_max(age_max: Duration) -> Self {
        Self::new(age_max, age_max, host_names::HostNames)
    }

    /// A cache whose answers are older than `age_max` only while the name service fails or is being
    /// asked, and never older than `expired_age_max`.
    pub fn new(
        age_max: Duration,
        expired_age_max: Duration,
        names: impl NameService + 'static,
    ) -> Self {
        let (names, answered) = (Box::new(names), Condvar::new());
        Self { age_max, expired_age_max, names, users: Mutex::default(), answered }
    }

    /// The groups of `uid`, from the cache or, with [`BlockingMode::MayBlock`], from the name
    /// service.
    pub fn groups_of(&self, uid: u32, blocking: BlockingMode) -> GroupLookup {
        let until = Instant::now() + WAIT_MAX;
        let mut users = self.lock();
        loop {
            if users.len() >= USERS_MAX && !users.contains_key(&uid) {
                users.retain(|_, user| user.is_asked);
            }
            let user = users.entry(uid).or_default();
            if let Some(fresh) = user.answer_within(self.age_max) {
                return fresh;
            }
            let expired = user.answer_within(self.expired_age_max);
            if user.failed.is_some_and(|since| since.elapsed() < FAILED_FOR) {
                return expired.unwrap_or(GroupLookup::Failed);
            }
            if user.is_asked
                && let Some(expired) = expired
            {
                return expired;
            }
            if blocking == BlockingMode::Nonblocking {
                return GroupLookup::WouldBlock;
            }
            if !user.is_asked {
                user.is_asked = true;
                drop(users);
                return self.ask(uid);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return GroupLookup::Failed;
            }
            let waited = self.answered.wait_timeout(users, left);
            users = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Asks the name service, for all calls that wait.
    fn ask(&self, uid: u32) -> GroupLookup {
        let _asked = Asked { cache: self, uid };
        let begun = Instant::now();
        let found = self.names.groups(uid);
        let mut users = self.lock();
        let user = users.entry(uid).or_default();
        match found {
            Ok(groups) => {
                user.answer = Some((groups.map(Arc::from), begun));
                user.failed = None;
                // An answer counts for this call however long it took.
                user.answer_within(Duration::MAX).unwrap_or(GroupLookup::Failed)
            }
            Err(error) => {
                warn!("cannot look up the groups of user {uid}: {error}");
                user.failed = Some(Instant::now());
                user.answer_within(self.expired_age_max).unwrap_or(GroupLookup::Failed)
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u32, CachedUser>> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends a question, even by a panic, and wakes who waits for the answer.
struct Asked<'a> {
    cache: &'a GroupCache,
    uid: u32,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        if let Some(user) = self.cache.lock().get_mut(&self.uid) {
            user.is_asked = false;
        }
        self.cache.answered.notify_all();
    }
}

#[cfg(test)]
mod tests;

//! The groups of a user according to the host's name service, for users in more groups than the 16
//! that AUTH_SYS carries.
//!
//! Name services can be slow and can fail. One call at a time asks for a user, and the others wait for
//! its answer; a failure is no answer (B1.83). Clients choose the users that are asked for, so the
//! questions under way and the answers that are kept are bounded (B1.88).

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
/// How old the answer that there is no such user may be: the user may be new.
const MISS_AGE_MAX: Duration = Duration::from_secs(30);
const USERS_MAX: usize = 4096;
/// Of all users together.
const GROUPS_MAX: usize = 1 << 20;
/// Questions under way: each occupies a thread for as long as the name service takes.
const ASKED_MAX: usize = 8;

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
    users: Mutex<Users>,
    answered: Condvar,
}

/// Users whose answer is kept, who were asked for without success, or who are being asked for.
#[derive(Default)]
struct Users {
    known: HashMap<u32, CachedUser>,
    /// How many are being asked for.
    asked: usize,
    /// Groups of all of them.
    groups: usize,
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
        let (_, since) = self.answer.as_ref()?;
        self.latest().filter(|_| since.elapsed() < age_max)
    }

    /// An answer that needs no look-up.
    fn fresh(&self, age_max: Duration) -> Option<GroupLookup> {
        let is_miss = matches!(self.answer, Some((None, _)));
        self.answer_within(if is_miss { age_max.min(MISS_AGE_MAX) } else { age_max })
    }

    fn latest(&self) -> Option<GroupLookup> {
        let (groups, _) = self.answer.as_ref()?;
        Some(groups.clone().map_or(GroupLookup::Unknown, GroupLookup::Groups))
    }

    fn groups(&self) -> usize {
        let groups = self.answer.as_ref().and_then(|(groups, _)| groups.as_ref());
        groups.map_or(0, |groups| groups.len())
    }
}

impl Users {
    /// Replaces what is known of a user, and drops others if they are too many.
    fn change(&mut self, uid: u32, change: impl FnOnce(&mut CachedUser)) {
        if self.known.len() >= USERS_MAX && !self.known.contains_key(&uid) {
            self.make_room();
        }
        let user = self.known.entry(uid).or_default();
        let before = user.groups();
        change(user);
        self.groups = self.groups + user.groups() - before;
        if self.groups > GROUPS_MAX {
            self.make_room();
        }
    }

    /// Drops users without groups, who may be inventions of a client; if there are few, then the older
    /// half of the answers too. Those being asked for stay.
    fn make_room(&mut self) {
        self.known.retain(|_, user| user.is_asked || user.groups() > 0);
        if self.known.len() > USERS_MAX / 4 * 3 || self.groups > GROUPS_MAX / 4 * 3 {
            let since = |user: &CachedUser| user.answer.as_ref().map(|(_, since)| *since);
            let mut ages: Vec<Option<Instant>> = self.known.values().map(since).collect();
            let middle = ages.len() / 2;
            let limit = *ages.select_nth_unstable(middle).1;
            self.known.retain(|_, user| user.is_asked || since(user) > limit);
        }
        self.groups = self.known.values().map(CachedUser::groups).sum();
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
            let mut is_asked = false;
            if let Some(user) = users.known.get(&uid) {
                if let Some(fresh) = user.fresh(self.age_max) {
                    return fresh;
                }
                let expired = user.answer_within(self.expired_age_max);
                if user.failed.is_some_and(|since| since.elapsed() < FAILED_FOR) {
                    return expired.unwrap_or(GroupLookup::Failed);
                }
                is_asked = user.is_asked;
                if (is_asked || users.asked >= ASKED_MAX)
                    && let Some(expired) = expired
                {
                    return expired;
                }
            }
            if blocking == BlockingMode::Nonblocking {
                return GroupLookup::WouldBlock;
            }
            if !is_asked && users.asked < ASKED_MAX {
                users.change(uid, |user| user.is_asked = true);
                users.asked += 1;
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
        let mut answer = GroupLookup::Failed;
        self.lock().change(uid, |user| match found {
            Ok(groups) => {
                user.answer = Some((groups.map(Arc::from), begun));
                user.failed = None;
                // An answer counts for this call however long it took.
                answer = user.latest().unwrap_or(GroupLookup::Failed);
            }
            Err(error) => {
                warn!("cannot look up the groups of user {uid}: {error}");
                user.failed = Some(Instant::now());
                answer = user.answer_within(self.expired_age_max).unwrap_or(GroupLookup::Failed);
            }
        });
        answer
    }

    fn lock(&self) -> MutexGuard<'_, Users> {
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
        let mut users = self.cache.lock();
        users.asked -= 1;
        if let Some(user) = users.known.get_mut(&self.uid) {
            user.is_asked = false;
        }
        drop(users);
        self.cache.answered.notify_all();
    }
}

#[cfg(test)]
mod tests;

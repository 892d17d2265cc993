//! Tests with name services that answer, fail or wait as told.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::*;

const FRESH: Duration = Duration::from_secs(600);

/// Answers what it is told to; counts the questions.
#[derive(Clone, Default)]
struct Scripted {
    answer: Arc<Mutex<Option<Vec<u32>>>>,
    fails: Arc<Mutex<bool>>,
    pause: Duration,
    asked: Arc<AtomicUsize>,
}

impl Scripted {
    fn with(groups: &[u32]) -> Self {
        Self { answer: Arc::new(Mutex::new(Some(groups.to_vec()))), ..Self::default() }
    }

    fn fail(&self, fails: bool) {
        *self.fails.lock().unwrap() = fails;
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }
}

impl NameService for Scripted {
    fn groups(&self, _: u32) -> io::Result<Option<Vec<u32>>> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        thread::sleep(self.pause);
        match *self.fails.lock().unwrap() {
            true => Err(io::Error::from_raw_os_error(libc::EIO)),
            false => Ok(self.answer.lock().unwrap().clone()),
        }
    }
}

fn groups(groups: &[u32]) -> GroupLookup {
    GroupLookup::Groups(groups.into())
}

#[test]
fn root_has_a_group_and_nobody_knows_user_four_billion() {
    let cache = GroupCache::default();
    assert_eq!(cache.groups_of(0, BlockingMode::Nonblocking), GroupLookup::WouldBlock);
    let GroupLookup::Groups(groups) = cache.groups_of(0, BlockingMode::MayBlock) else { panic!() };
    assert!(groups.contains(&0));
    assert_eq!(cache.groups_of(0, BlockingMode::Nonblocking), GroupLookup::Groups(groups));
    assert_eq!(cache.groups_of(4_000_000_000, BlockingMode::MayBlock), GroupLookup::Unknown);
    assert_eq!(cache.groups_of(4_000_000_000, BlockingMode::Nonblocking), GroupLookup::Unknown);
}

#[test]
fn an_expired_answer_is_not_used_while_the_name_service_works() {
    let names = Scripted::with(&[5]);
    let cache = GroupCache::new(Duration::ZERO, FRESH, names.clone());
    assert_eq!(cache.groups_of(1, BlockingMode::MayBlock), groups(&[5]));
    *names.answer.lock().unwrap() = Some(vec![6]);
    assert_eq!(cache.groups_of(1, BlockingMode::Nonblocking), GroupLookup::WouldBlock);
    assert_eq!(cache.groups_of(1, BlockingMode::MayBlock), groups(&[6]));
}

/// B1.83
#[test]
fn a_failed_question_is_no_answer() {
    let names = Scripted::with(&[5]);
    names.fail(true);
    let cache = GroupCache::new(FRESH, FRESH, names.clone());
    assert_eq!(cache.groups_of(1, BlockingMode::MayBlock), GroupLookup::Failed);
    names.fail(false);
    assert_eq!(cache.groups_of(1, BlockingMode::Nonblocking), GroupLookup::Failed);
    assert_eq!(names.asked(), 1, "it is asked again at once");
    thread::sleep(FAILED_FOR);
    assert_eq!(cache.groups_of(1, BlockingMode::Nonblocking), GroupLookup::WouldBlock);
    assert_eq!(cache.groups_of(1, BlockingMode::MayBlock), groups(&[5]));
}

#[test]
fn an_expired_answer_is_used_while_the_name_service_fails_up_to_an_age() {
    for (expired_age_max, expected) in
        [(FRESH, groups(&[5])), (Duration::ZERO, GroupLookup::Failed)]
    {
        let names = Scripted::with(&[5]);
        let cache = GroupCache::new(Duration::ZERO, expired_age_max, names.clone());
        assert_eq!(cache.groups_of(1, BlockingMode::MayBlock), groups(&[5]));
        names.fail(true);
        assert_eq!(cache.groups_of(1, BlockingMode::MayBlock), expected);
    }
}

/// B1.83
#[test]
fn calls_that_come_together_ask_once() {
    let names = Scripted { pause: Duration::from_millis(300), ..Scripted::with(&[5]) };
    let cache = Arc::new(GroupCache::new(FRESH, FRESH, names.clone()));
    let calls: Vec<_> = (0..20)
        .map(|_| {
            let cache = cache.clone();
            thread::spawn(move || cache.groups_of(1, BlockingMode::MayBlock))
        })
        .collect();
    for call in calls {
        assert_eq!(call.join().unwrap(), groups(&[5]));
    }
    assert_eq!(names.asked(), 1);
}

#[test]
fn a_question_that_panics_does_not_keep_others_waiting() {
    struct Panics;
    impl NameService for Panics {
        fn groups(&self, _: u32) -> io::Result<Option<Vec<u32>>> {
            panic!("on purpose")
        }
    }
    let cache = Arc::new(GroupCache::new(FRESH, FRESH, Panics));
    for _ in 0..2 {
        let cache = cache.clone();
        let call = thread::spawn(move || cache.groups_of(1, BlockingMode::MayBlock));
        assert!(call.join().is_err(), "it waits for the one that panicked");
    }
}

/// Knows the users below 10; counts the questions and how many are under way at once.
#[derive(Clone, Default)]
struct Directory {
    groups: usize,
    pause: Duration,
    asked: Arc<AtomicUsize>,
    under_way: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

impl NameService for Directory {
    fn groups(&self, uid: u32) -> io::Result<Option<Vec<u32>>> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let now = self.under_way.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        thread::sleep(self.pause);
        self.under_way.fetch_sub(1, Ordering::SeqCst);
        Ok((uid < 10).then(|| vec![uid; self.groups]))
    }
}

/// B1.88
#[test]
fn users_that_do_not_exist_push_no_known_one_out() {
    let names = Directory { groups: 20, ..Directory::default() };
    let cache = GroupCache::new(FRESH, FRESH, names.clone());
    assert_eq!(cache.groups_of(1, BlockingMode::MayBlock), groups(&[1; 20]));
    for uid in 100..100 + 2 * USERS_MAX as u32 {
        cache.groups_of(uid + 1_000_000, BlockingMode::Nonblocking);
        assert_eq!(cache.groups_of(uid, BlockingMode::MayBlock), GroupLookup::Unknown);
    }
    let found = cache.groups_of(1, BlockingMode::Nonblocking);
    println!("after {} questions: {found:?}", names.asked.load(Ordering::SeqCst));
    assert_eq!(found, groups(&[1; 20]));
    assert!(cache.lock().known.len() <= USERS_MAX);
}

/// B1.88
#[test]
fn questions_under_way_are_bounded() {
    let names = Directory { pause: Duration::from_millis(100), ..Directory::default() };
    let cache = Arc::new(GroupCache::new(FRESH, FRESH, names.clone()));
    let calls: Vec<_> = (0..60)
        .map(|uid| {
            let cache = cache.clone();
            thread::spawn(move || cache.groups_of(100 + uid, BlockingMode::MayBlock))
        })
        .collect();
    for call in calls {
        assert_eq!(call.join().unwrap(), GroupLookup::Unknown);
    }
    let most = names.most.load(Ordering::SeqCst);
    println!("{most} questions at once");
    assert!(most <= 8, "{most}");
}

/// B1.88
#[test]
fn the_groups_of_all_users_are_bounded() {
    let names = Directory { groups: 60_000, ..Directory::default() };
    let cache = GroupCache::new(FRESH, FRESH, names);
    let all =
        |cache: &GroupCache| cache.lock().known.values().map(CachedUser::groups).sum::<usize>();
    for _ in 0..10 {
        for uid in 0..10 {
            cache.groups_of(uid, BlockingMode::MayBlock);
            assert_eq!(all(&cache), cache.lock().groups);
        }
    }
    let mut users = cache.lock();
    for uid in 100..200 {
        users
            .change(uid, |user| user.answer = Some((Some(vec![1; 60_000].into()), Instant::now())));
        assert!(users.groups <= GROUPS_MAX, "{}", users.groups);
    }
    assert!(users.known.len() > 4);
}

/// B1.88
#[test]
fn a_user_that_was_not_known_is_asked_for_again_soon() {
    let answered = |groups: Option<Vec<u32>>, age: Duration| {
        let since = Instant::now().checked_sub(age).unwrap();
        CachedUser { answer: Some((groups.map(Arc::from), since)), ..CachedUser::default() }
    };
    let (minute, second) = (Duration::from_secs(60), Duration::from_secs(1));
    assert_eq!(answered(None, second).fresh(FRESH), Some(GroupLookup::Unknown));
    assert_eq!(answered(None, minute).fresh(FRESH), None);
    assert_eq!(answered(None, minute).answer_within(FRESH), Some(GroupLookup::Unknown));
    assert_eq!(answered(Some(vec![5]), minute).fresh(FRESH), Some(groups(&[5])));
}

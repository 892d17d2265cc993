//! Duplicate requests: a retransmission gets the first reply again (I8).
//!
//! A client that hears nothing asks again with the same xid, perhaps over a new connection. A
//! REMOVE that was done must not answer NOENT the second time, and one that is still being done
//! must not be started twice. Bounded by entries, by bytes and by age. Time is an argument, so
//! that the simulator runs exactly this.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::time::Duration;

/// Longer than any client goes on repeating one request without reconnecting.
const AGE_MAX: Duration = Duration::from_secs(120);
/// What is younger than this when its host is found to have rebooted may be of the new kernel: the
/// news can be late.
const FRESH: Duration = Duration::from_secs(10);
/// A peer that repeats a request over ever new connections gets the reply on this many, the
/// newest: the others are gone.
const WAITING_MAX: usize = 8;

/// Remembers requests by `K`; `W` is who waits for a reply `R`.
pub struct Replay<K, W, R> {
    entries_max: usize,
    bytes_max: usize,
    entries: HashMap<K, Entry<W, R>>,
    /// Answered entries, oldest first.
    order: VecDeque<(K, Duration)>,
    bytes: usize,
}

struct Entry<W, R> {
    /// When it was last asked for or answered.
    active: Duration,
    state: State<W, R>,
}

enum State<W, R> {
    /// Being done; the reply goes to all of these.
    Started(Vec<W>),
    Answered {
        reply: R,
        bytes: usize,
        at: Duration,
    },
}

/// What is to be done with a request.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict<R> {
    /// Seen for the first time: do it, then call [`Replay::answered`].
    New,
    /// Done before: send this again.
    Again(R),
    /// Being done: its reply will be sent here too.
    Started,
}

impl<K: Hash + Eq + Clone, W, R: Clone> Replay<K, W, R> {
    pub fn new(entries_max: usize, bytes_max: usize) -> Self {
        Self { entries_max, bytes_max, entries: HashMap::new(), order: VecDeque::new(), bytes: 0 }
    }

    /// `same` tells whether two who wait are one.
    pub fn begin(
        &mut self,
        key: &K,
        waiting: W,
        now: Duration,
        same: impl Fn(&W, &W) -> bool,
    ) -> Verdict<R> {
        self.forget_old(now);
        let Some(entry) = self.entries.get_mut(key) else {
            let entry = Entry { active: now, state: State::Started(vec![waiting]) };
            self.entries.insert(key.clone(), entry);
            return Verdict::New;
        };
        entry.active = now;
        match &mut entry.state {
            State::Answered { reply, .. } => Verdict::Again(reply.clone()),
            State::Started(known) => {
                if !known.iter().any(|one| same(one, &waiting)) {
                    if known.len() == WAITING_MAX {
                        known.remove(0);
                    }
                    known.push(waiting);
                }
                Verdict::Started
            }
        }
    }

    /// Keeps the reply and says who waits for it.
    pub fn answered(&mut self, key: K, reply: R, bytes: usize, now: Duration) -> Vec<W> {
        let entry = Entry { active: now, state: State::Answered { reply, bytes, at: now } };
        let before = self.entries.insert(key.clone(), entry);
        self.order.push_back((key, now));
        self.bytes += bytes;
        self.forget_old(now);
        match before.map(|entry| entry.state) {
            Some(State::Started(waiting)) => waiting,
            Some(State::Answered { bytes, .. }) => {
                self.bytes -= bytes;
                Vec::new()
            }
            None => Vec::new(),
        }
    }

    /// The request was not done, or is not to be answered: a repetition is a new request.
    pub fn abandoned(&mut self, key: &K) {
        self.remove(key);
    }

    /// A rebooted host may count its transaction ids from anywhere (R3.8). What is only seconds
    /// old, or being done, may be of its new life and stays.
    pub fn forget(&mut self, of_host: impl Fn(&K) -> bool, now: Duration) {
        let bytes = &mut self.bytes;
        self.entries.retain(|key, entry| match entry.state {
            State::Answered { bytes: freed, .. } if of_host(key) && entry.active + FRESH <= now => {
                *bytes -= freed;
                false
            }
            _ => true,
        });
    }

    fn remove(&mut self, key: &K) {
        if let Some(Entry { state: State::Answered { bytes, .. }, .. }) = self.entries.remove(key) {
            self.bytes -= bytes;
        }
    }

    fn forget_old(&mut self, now: Duration) {
        while let Some((_, since)) = self.order.front()
            && (self.order.len() > self.entries_max
                || self.bytes > self.bytes_max
                || now.saturating_sub(*since) > AGE_MAX)
            && let Some((oldest, then)) = self.order.pop_front()
        {
            // A key that was forgotten and asked again has a newer place in the order, or gets one.
            if let Some(Entry { state: State::Answered { at, .. }, .. }) = self.entries.get(&oldest)
                && *at == then
            {
                self.remove(&oldest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn replay() -> Replay<u32, u32, &'static str> {
        Replay::new(100, 1000)
    }

    fn begin(
        replay: &mut Replay<u32, u32, &'static str>,
        key: u32,
        from: u32,
        seconds: u64,
    ) -> Verdict<&'static str> {
        replay.begin(&key, from, at(seconds), |a, b| a == b)
    }

    #[test]
    fn a_repeat_gets_the_same_reply_and_one_under_way_gets_it_too() {
        let mut replay = replay();
        assert_eq!(begin(&mut replay, 1, 10, 0), Verdict::New);
        assert_eq!(begin(&mut replay, 1, 11, 1), Verdict::Started);
        assert_eq!(begin(&mut replay, 1, 11, 1), Verdict::Started);
        assert_eq!(replay.answered(1, "done", 4, at(2)), [10, 11]);
        assert_eq!(begin(&mut replay, 1, 12, 3), Verdict::Again("done"));
        assert_eq!(begin(&mut replay, 1, 12, 130), Verdict::New);
    }

    #[test]
    fn a_rebooted_host_is_forgotten_but_not_what_may_be_of_its_new_life() {
        let mut replay = replay();
        for (key, seconds) in [(1, 0), (2, 15)] {
            begin(&mut replay, key, 10, seconds);
            replay.answered(key, "done", 4, at(seconds));
        }
        begin(&mut replay, 3, 10, 0);
        replay.forget(|_| true, at(20));
        assert_eq!(begin(&mut replay, 1, 10, 20), Verdict::New);
        assert_eq!(begin(&mut replay, 2, 10, 20), Verdict::Again("done"));
        assert_eq!(begin(&mut replay, 3, 10, 20), Verdict::Started);
    }

    #[test]
    fn what_is_asked_again_after_a_reboot_is_kept_for_its_own_time() {
        let mut replay = replay();
        for seconds in [0, 100] {
            assert_eq!(begin(&mut replay, 1, 10, seconds), Verdict::New);
            replay.answered(1, "done", 4, at(seconds));
            if seconds == 0 {
                replay.forget(|_| true, at(50));
            }
        }
        assert_eq!(begin(&mut replay, 1, 10, 130), Verdict::Again("done"));
        assert_eq!(begin(&mut replay, 1, 10, 230), Verdict::New);
    }

    #[test]
    fn entries_and_bytes_are_bounded() {
        let mut replay: Replay<u32, u32, &str> = Replay::new(10, 1000);
        for key in 0..100 {
            begin(&mut replay, key, 1, 0);
            replay.answered(key, "done", 200, at(0));
            assert!(replay.bytes <= 1000 && replay.order.len() <= 10);
        }
        assert_eq!(begin(&mut replay, 99, 1, 0), Verdict::Again("done"));
        assert_eq!(begin(&mut replay, 90, 1, 0), Verdict::New);
        replay.abandoned(&99);
        assert_eq!(begin(&mut replay, 99, 1, 0), Verdict::New);
    }
}

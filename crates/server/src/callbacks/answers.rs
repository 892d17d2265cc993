//! GRANTED_MSG that wait for their GRANTED_RES, which comes as a call of its own.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use keeper::identity::GrantId;
use tokio::sync::oneshot;
use wire::nlm::Status;

/// Bounded by the attempts under way: each has one entry, and takes it out again.
#[derive(Default)]
pub struct Answers {
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    waiting: HashMap<GrantId, Waiting>,
    /// Tells two attempts of one grant apart.
    last: u64,
}

struct Waiting {
    from: IpAddr,
    attempt: u64,
    answer: oneshot::Sender<Status>,
}

/// The right to hear the answer to one attempt. It ends when this is dropped: a later answer is
/// ignored.
pub struct Expected<'a> {
    answers: &'a Answers,
    grant: GrantId,
    attempt: u64,
    pub answer: oneshot::Receiver<Status>,
}

impl Answers {
    /// An earlier attempt that still waits is over by this.
    pub fn expect(&self, grant: GrantId, from: IpAddr) -> Expected<'_> {
        let (sender, answer) = oneshot::channel();
        let mut table = self.lock();
        table.last += 1;
        let attempt = table.last;
        table.waiting.insert(grant, Waiting { from, attempt, answer: sender });
        Expected { answers: self, grant, attempt, answer }
    }

    /// Only who was told can answer: an answer from elsewhere changes nothing.
    pub fn hear(&self, from: IpAddr, cookie: &[u8], status: Status) {
        let Ok(cookie) = <[u8; 8]>::try_from(cookie) else { return };
        let grant = GrantId(u64::from_be_bytes(cookie));
        let mut table = self.lock();
        if table.waiting.get(&grant).is_some_and(|waiting| waiting.from == from)
            && let Some(waiting) = table.waiting.remove(&grant)
        {
            let _ = waiting.answer.send(status);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Expected<'_> {
    fn drop(&mut self) {
        let mut table = self.answers.lock();
        if table.waiting.get(&self.grant).is_some_and(|waiting| waiting.attempt == self.attempt) {
            table.waiting.remove(&self.grant);
        }
    }
}

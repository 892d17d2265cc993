//! Questions that a story can ask about the keeper's state, and the text of the answers.

use lockkeeper_keeper::bytes::FileKey;
use lockkeeper_keeper::identity::LockId;
use lockkeeper_keeper::view::LockState;

use super::language::Show;
use super::notation::{access, count, mode, quoted, rejection, span, state};
use super::world::{Played, World};

impl World {
    pub fn show(&mut self, show: Show, lines: &mut Vec<String>) -> Played<()> {
        let before = lines.len();
        let none = match show {
            Show::Host(_) => "nothing",
            Show::Grace => "no",
            Show::Notices => "none",
            Show::Holders(_) | Show::Waiters(_) | Show::Shares(_) => "nobody",
        };
        match show {
            Show::Holders(file) => self.show_holders(&FileKey::from(file.as_str()), lines),
            Show::Waiters(file) => self.show_waiters(&FileKey::from(file.as_str()), lines),
            Show::Shares(file) => {
                let names = &self.names;
                let keeper = self.keeper.as_ref().expect("the server runs");
                lines.extend(keeper.shares_on(&FileKey::from(file.as_str())).map(|share| {
                    format!(
                        "{} for {} denying {}{}",
                        names.owner(share.owner),
                        access(share.access),
                        access(share.deny),
                        if share.confirmed { "" } else { ", unconfirmed" }
                    )
                }));
            }
            Show::Host(peer) => self.show_host(&peer, lines)?,
            Show::Grace => {
                let now = self.now.mono;
                let (exactness, remembered) =
                    (self.keeper().exactness(), self.keeper().remembered_len());
                lines.extend(self.keeper().grace().map(|grace| {
                    assert_eq!(grace.exactness, exactness);
                    let remembered = match remembered {
                        0 => String::new(),
                        some => format!(", {some} remembered"),
                    };
                    format!(
                        "yes, {exactness:?}, for {}{}, {} missing, {} held back{remembered}",
                        span(grace.ends.map_or(grace.window, |ends| ends - now)),
                        if grace.ends.is_none() { " from the first call" } else { "" },
                        grace.missing,
                        grace.parked
                    )
                    .to_lowercase()
                }));
            }
            Show::Notices => {
                let (names, now) = (&self.names, self.now.mono);
                let keeper = self.keeper.as_ref().expect("the server runs");
                lines.extend(keeper.notices().map(|notice| {
                    format!(
                        "{}: {} sent{}{}",
                        notice.client.map_or(notice.to.to_string(), |client| names.client(client)),
                        notice.attempts,
                        if notice.answered { ", answered" } else { "" },
                        notice
                            .next
                            .map_or("".into(), |next| format!(", next in {}", span(next - now)))
                    )
                }));
            }
        }
        if lines.len() == before {
            lines.push(none.into());
        }
        Ok(())
    }

    fn show_holders(&mut self, file: &FileKey, lines: &mut Vec<String>) {
        let names = &mut self.names;
        let keeper = self.keeper.as_ref().expect("the server runs");
        for lock in keeper.locks_on(file) {
            let owned = keeper.owned_by(lock.owner, file, lock.range).map(|owned| owned.id);
            assert_eq!(owned, Some(lock.id));
            let number = names.lock_number(lock.id.0);
            let standing = match lock.state {
                LockState::Held => "",
                LockState::Unconfirmed => ", unconfirmed",
                LockState::Releasable => ", releasable",
                LockState::Suspect => ", suspect",
                LockState::Remembered => ", remembered",
            };
            let (owner, how) = (names.owner(lock.owner), mode(lock.mode));
            lines.push(format!("lock {number}: {owner} {:?} {how}{standing}", lock.range));
        }
        for lock in keeper.remembered(LockId(0)).filter(|lock| lock.file == *file) {
            let number = names.lock_number(lock.id.0);
            let (owner, how) = (names.owner(&lock.owner), mode(lock.mode));
            lines.push(format!("lock {number}: {owner} {:?} {how}, only remembered", lock.range));
        }
    }

    fn show_waiters(&mut self, file: &FileKey, lines: &mut Vec<String>) {
        let names = &mut self.names;
        let keeper = self.keeper.as_ref().expect("the server runs");
        for waiter in keeper.waiters_on(file) {
            let blocked_by = waiter.blocked_by.map_or("".into(), |lock| {
                format!(", blocked by lock {}", names.lock_number(lock.0))
            });
            let alone =
                waiter.blocked_by.is_some_and(|by| !keeper.is_blocked_besides(waiter.id, by));
            lines.push(format!(
                "{} {:?} {}{blocked_by}{}{}",
                names.owner(waiter.owner),
                waiter.range,
                mode(waiter.mode),
                if alone { " alone" } else { "" },
                if waiter.passed_over { ", passed over" } else { "" }
            ));
        }
    }

    fn show_host(&mut self, peer: &str, lines: &mut Vec<String>) -> Played<()> {
        let key = self.peer(peer)?.key.clone();
        let keeper = self.keeper.as_ref().expect("the server runs");
        let Some(id) = keeper.host(&key).map(|client| client.id) else { return Ok(()) };
        let host = keeper.client(id).ok_or("a host is a client")?;
        assert_eq!(keeper.shares_of(id).count(), host.shares);
        let mut line = format!(
            "{}, {}, {}, {} waiting, {} unconfirmed",
            state(host.client.incarnation),
            count(host.locks as u64, "lock"),
            count(host.shares as u64, "share"),
            host.waiting,
            host.unconfirmed
        );
        let marks = [
            (host.suspect, ", suspect"),
            (host.crashed, ", not heard of"),
            (host.client.fenced, ", fenced"),
        ];
        line.extend(marks.iter().filter(|(is, _)| *is).map(|(_, mark)| *mark));
        lines.push(line);
        if let Some(pending) = host.pending {
            lines.push(format!(
                "pending: {} from {}, {}, {}: {}",
                quoted(&pending.name),
                pending.source,
                pending.to.map_or("FREE_ALL".into(), |to| format!("state {}", to.0)),
                count(u64::from(pending.repeats), "repeat"),
                rejection(pending.why)
            ));
        }
        Ok(())
    }
}

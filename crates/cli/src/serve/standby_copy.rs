//! What a standby copies from the database into its state directory while it waits: the roster and
//! the file handle key, so that it can serve clients even if the database is lost (B4.107, B6.81).

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use server::roster_copy::{RosterCopy, RosterFile};
use store::Postgres;
use tracing::warn;

use super::handle_key;

/// How often the database is read.
const EVERY: Duration = Duration::from_secs(60);
/// A batch that was read may still be lost if the database crashes, for less than this. Until then
/// its token is not written: a store that lacks nothing but locks would look older than the copy.
const SETTLED_AFTER: Duration = Duration::from_secs(5);

/// Where the copies go.
#[derive(Clone)]
pub(super) struct StandbyCopy {
    pub state: PathBuf,
    pub roster: PathBuf,
}

/// The copies of one standby.
pub(super) struct StandbyCopies {
    to: StandbyCopy,
    read: Option<Instant>,
    unwritten: Option<RosterCopy>,
    failing: bool,
}

impl StandbyCopies {
    pub(super) fn new(to: StandbyCopy) -> Self {
        Self { to, read: None, unwritten: None, failing: false }
    }

    /// To be called often: does what is due. A failure is logged once and ends nothing.
    pub(super) fn keep(&mut self, store: &mut Postgres) {
        let age = self.read.map(|read| read.elapsed());
        let done = match (age, self.unwritten.take()) {
            (Some(age), Some(copy)) if age >= SETTLED_AFTER => write(&self.to.roster, &copy),
            (Some(_), Some(copy)) => {
                self.unwritten = Some(copy);
                return;
            }
            (Some(age), None) if age < EVERY => return,
            (_, None) | (None, Some(_)) => self.read(store),
        };
        match done {
            Ok(()) => self.failing = false,
            Err(_) if self.failing => {}
            Err(error) => {
                self.failing = true;
                warn!("cannot copy roster and file handle key from the store: {error:#}");
            }
        }
    }

    fn read(&mut self, store: &mut Postgres) -> Result<()> {
        self.read = Some(Instant::now());
        if let Some(key) = store.key("handle")? {
            handle_key::keep_copy(&self.to.state, &key)?;
        }
        let (saved, token) = store.load_roster()?;
        self.unwritten = Some(RosterCopy::of(&saved, token));
        Ok(())
    }
}

/// Replaces an older copy only: a newer one proves that the store has lost something.
fn write(path: &Path, copy: &RosterCopy) -> Result<()> {
    let file = RosterFile::new(path);
    let is_newer = |known: RosterCopy| (known.epoch, known.token) > (copy.epoch, copy.token);
    if !file.read()?.is_some_and(is_newer) {
        file.write(copy).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use keeper::identity::Epoch;
    use store::Token;

    use super::*;

    /// B4.107
    #[test]
    fn the_evidence_of_a_loss_is_not_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("roster");
        let copy = |epoch, token| RosterCopy {
            epoch: Epoch(epoch),
            token: Token(token),
            ..RosterCopy::default()
        };
        let known = || RosterFile::new(&path).read().unwrap().unwrap();
        write(&path, &copy(7, 500)).unwrap();
        write(&path, &copy(7, 450)).unwrap();
        assert_eq!(known(), copy(7, 500));
        write(&path, &copy(7, 501)).unwrap();
        assert_eq!(known(), copy(7, 501));
    }
}

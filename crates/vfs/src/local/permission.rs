//! What a caller may do to a file: the kernel's verdict, asked for under the caller's identity and
//! remembered until the file's change time moves.

use std::{
    sync::Mutex,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use rustix::fs::Access;

use super::{
    node::{Node, lock},
    sys,
    tree::Tree,
};
use crate::{Attributes, Caller, Context, Error, Patience, Permissions, Result, Time};

/// Remembered verdicts of one node: enough for the few users that share a file at a time.
const VERDICTS_MAX: usize = 8;

/// Change times move in steps of up to 10 ms. A verdict on a file that was changed less than this
/// ago is not remembered: a second change could leave the same time behind.
const SETTLED_AFTER: Duration = Duration::from_millis(50);

/// Some file systems count in steps of one or two seconds; then the nanoseconds are none.
const SETTLED_AFTER_WHOLE_SECONDS: Duration = Duration::from_millis(2_100);

#[derive(Debug, Clone, Copy)]
pub(super) struct Verdict {
    read: bool,
    /// Why not, because a read-only file system is another reason than the mode.
    write: Result<()>,
    execute: bool,
}

#[derive(Default)]
pub(super) struct Verdicts(Mutex<Vec<Remembered>>);

struct Remembered {
    caller: Caller,
    changed: Time,
    verdict: Verdict,
}

impl Verdicts {
    fn get(&self, caller: &Caller, changed: Time) -> Option<Verdict> {
        let remembered = lock(&self.0);
        let of_caller = remembered.iter().find(|r| r.caller == *caller)?;
        (of_caller.changed == changed).then_some(of_caller.verdict)
    }

    fn put(&self, caller: &Caller, changed: Time, verdict: Verdict) {
        let mut remembered = lock(&self.0);
        remembered.retain(|r| r.caller != *caller && r.changed == changed);
        if remembered.len() >= VERDICTS_MAX {
            remembered.remove(0);
        }
        remembered.push(Remembered { caller: caller.clone(), changed, verdict });
    }
}

impl Tree {
    /// ACCESS: exactly what the kernel would say.
    pub(super) fn permissions(
        &self,
        context: &Context<'_>,
        node: &Node,
        attributes: &Attributes,
    ) -> Result<Permissions> {
        let Verdict { read, write, execute } = self.verdict(context, node, attributes)?;
        Ok(Permissions { read, write: write.is_ok(), execute })
    }

    /// READ: the owner always, and whoever may execute the file, because a client must read it to
    /// do so.
    pub(super) fn may_read(
        &self,
        context: &Context<'_>,
        node: &Node,
        attributes: &Attributes,
    ) -> Result<()> {
        if context.caller.uid == attributes.uid {
            return Ok(());
        }
        let verdict = self.verdict(context, node, attributes)?;
        if verdict.read || verdict.execute { Ok(()) } else { Err(Error::Denied) }
    }

    /// WRITE and changes of size: the owner always.
    pub(super) fn may_write(
        &self,
        context: &Context<'_>,
        node: &Node,
        attributes: &Attributes,
    ) -> Result<()> {
        if context.caller.uid == attributes.uid {
            return Ok(());
        }
        self.verdict(context, node, attributes)?.write
    }

    /// What is known about [`may_write`](Tree::may_write) without asking. Each write moves the
    /// change time, so mostly it has to be asked; a writer does that when it has taken on the
    /// caller's identity anyway.
    pub(super) fn known_to_write(
        &self,
        context: &Context<'_>,
        node: &Node,
        attributes: &Attributes,
    ) -> Option<Result<()>> {
        if context.caller.uid == attributes.uid {
            return Some(Ok(()));
        }
        Some(node.verdicts.get(context.caller, attributes.changed)?.write)
    }

    pub(super) fn may_search(
        &self,
        context: &Context<'_>,
        dir: &Node,
        attributes: &Attributes,
    ) -> Result<()> {
        let verdict = self.verdict(context, dir, attributes)?;
        if verdict.execute { Ok(()) } else { Err(Error::Denied) }
    }

    pub(super) fn verdict(
        &self,
        context: &Context<'_>,
        node: &Node,
        attributes: &Attributes,
    ) -> Result<Verdict> {
        if let Some(verdict) = node.verdicts.get(context.caller, attributes.changed) {
            return Ok(verdict);
        }
        // Network threads never change identity.
        if context.patience == Patience::Now {
            return Err(Error::WouldBlock);
        }
        let verdict = self.ask(context.caller, node)?;
        // A file system that is mounted anew for writing does not move the times of its files.
        if settled(attributes.changed) && verdict.write != Err(Error::ReadOnly) {
            node.verdicts.put(context.caller, attributes.changed, verdict);
        }
        Ok(verdict)
    }

    fn ask(&self, caller: &Caller, node: &Node) -> Result<Verdict> {
        let _caller = self.identity.assume(caller)?;
        let decided = |access| match may(node, access) {
            Err(no @ (Error::Denied | Error::NotOwner | Error::ReadOnly)) => Ok(Err(no)),
            // Not a verdict but a failure.
            other => other.map(Ok),
        };
        Ok(Verdict {
            read: decided(Access::READ_OK)?.is_ok(),
            write: decided(Access::WRITE_OK)?,
            execute: decided(Access::EXEC_OK)?.is_ok(),
        })
    }
}

/// Whether the identity that the thread has now may write.
pub(super) fn ask_to_write(node: &Node) -> Result<()> {
    may(node, Access::WRITE_OK)
}

fn may(node: &Node, access: Access) -> Result<()> {
    Ok(sys::access(&node.path, access)?)
}

fn settled(changed: Time) -> bool {
    let nanoseconds = changed.nanoseconds;
    let Ok(seconds) = u64::try_from(changed.seconds) else { return true };
    let changed = UNIX_EPOCH.checked_add(Duration::new(seconds, changed.nanoseconds));
    let age = changed.and_then(|changed| SystemTime::now().duration_since(changed).ok());
    let enough = match nanoseconds {
        0 => SETTLED_AFTER_WHOLE_SECONDS,
        _ => SETTLED_AFTER,
    };
    age.is_some_and(|age| age > enough)
}

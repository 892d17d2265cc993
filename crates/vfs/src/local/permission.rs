//! Access checks: the kernel is asked under the caller's identity, and its answer is cached until
//! the file's change time moves. Before a lock even that time is asked for once a second only.

use std::{
    sync::Mutex,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use rustix::fs::Access;

use super::{
    node::{Node, lock},
    sys,
    tree::Tree,
};
use crate::{
    Attributes, BlockingMode, Caller, Context, Error, ObjectId, Permissions, Result, Time,
};

/// Cached checks per node: enough for the few users that share a file at a time.
const CACHED_MAX: usize = 8;

/// How long a check before a lock holds without asking for the change time again.
const RECENT: Duration = Duration::from_secs(1);

/// Change times advance in steps of up to 10 ms, so two changes can have the same time. A check is
/// cached only if the last change is older than this.
const SETTLED_AFTER: Duration = Duration::from_millis(50);

/// The same for file systems with steps of one or two seconds, recognised by zero nanoseconds.
const SETTLED_AFTER_WHOLE_SECONDS: Duration = Duration::from_millis(2_100);

/// What the kernel allows a caller.
#[derive(Debug, Clone, Copy)]
pub(super) struct AccessCheck {
    read: bool,
    /// With the reason: a read-only file system, or the mode.
    write: Result<()>,
    execute: bool,
}

/// The access checks of one node, by caller.
#[derive(Default)]
pub(super) struct PermissionCache {
    checks: Mutex<Vec<CachedPermission>>,
    recent: Mutex<Vec<RecentPermission>>,
}

struct CachedPermission {
    caller: Caller,
    changed: Time,
    check: AccessCheck,
}

/// What a check before a lock found.
struct RecentPermission {
    caller: Caller,
    permissions: Permissions,
    owner: u32,
    asked: Instant,
    /// [`Device::changes`](super::device::Device::changes) before the kernel was asked.
    changes: u64,
}

impl PermissionCache {
    fn get(&self, caller: &Caller, changed: Time) -> Option<AccessCheck> {
        let cached = lock(&self.checks);
        let of_caller = cached.iter().find(|r| r.caller == *caller)?;
        (of_caller.changed == changed).then_some(of_caller.check)
    }

    fn put(&self, caller: &Caller, changed: Time, check: AccessCheck) {
        let mut cached = lock(&self.checks);
        cached.retain(|r| r.caller != *caller && r.changed == changed);
        if cached.len() >= CACHED_MAX {
            cached.remove(0);
        }
        cached.push(CachedPermission { caller: caller.clone(), changed, check });
    }

    fn recent(&self, caller: &Caller, now: Instant, changes: u64) -> Option<(Permissions, u32)> {
        let recent = lock(&self.recent);
        let of_caller = recent.iter().find(|r| r.caller == *caller)?;
        let holds = of_caller.changes == changes && now < of_caller.asked + RECENT;
        holds.then_some((of_caller.permissions, of_caller.owner))
    }

    fn put_recent(&self, new: RecentPermission) {
        let mut recent = lock(&self.recent);
        recent.retain(|r| r.caller != new.caller && r.changes == new.changes);
        if recent.len() >= CACHED_MAX {
            recent.remove(0);
        }
        recent.push(new);
    }
}

impl Tree {
    /// ACCESS: the kernel's answer, without the exceptions below.
    pub(super) fn permissions(
        &self,
        context: &Context<'_>,
        node: &Node,
        attributes: &Attributes,
    ) -> Result<Permissions> {
        let AccessCheck { read, write, execute } = self.check_access(context, node, attributes)?;
        Ok(Permissions { read, write: write.is_ok(), execute })
    }

    /// The check before a lock: the permissions, and the owner. What programs of the host change counts
    /// within [`RECENT`], what clients change at once.
    pub(super) fn lock_access(
        &self,
        context: &Context<'_>,
        object: &ObjectId,
    ) -> Result<(Permissions, u32)> {
        let node = self.node(context, object)?;
        let (caller, asked, changes) = (context.caller, Instant::now(), node.device().changes());
        if let Some(recent) = node.permissions.recent(caller, asked, changes) {
            return Ok(recent);
        }
        let attributes = self.attributes(&node)?;
        let permissions = self.permissions(context, &node, &attributes)?;
        let (caller, owner) = (caller.clone(), attributes.uid);
        node.permissions.put_recent(RecentPermission {
            caller,
            permissions,
            owner,
            asked,
            changes,
        });
        Ok((permissions, owner))
    }

    /// READ: allowed to the owner, and to callers that may execute the file, because a client must
    /// read it to do so.
    pub(super) fn may_read(
        &self,
        context: &Context<'_>,
        node: &Node,
        attributes: &Attributes,
    ) -> Result<()> {
        if context.caller.uid == attributes.uid {
            return Ok(());
        }
        let check = self.check_access(context, node, attributes)?;
        if check.read || check.execute { Ok(()) } else { Err(Error::Denied) }
    }

    /// WRITE and changes of size: always allowed to the owner.
    pub(super) fn may_write(
        &self,
        context: &Context<'_>,
        node: &Node,
        attributes: &Attributes,
    ) -> Result<()> {
        if context.caller.uid == attributes.uid {
            return Ok(());
        }
        self.check_access(context, node, attributes)?.write
    }

    /// [`may_write`](Tree::may_write) if the answer is cached. Usually it is not, because each
    /// write moves the change time; `write` then checks after it has assumed the caller's identity.
    pub(super) fn cached_may_write(
        &self,
        context: &Context<'_>,
        node: &Node,
        attributes: &Attributes,
    ) -> Option<Result<()>> {
        if context.caller.uid == attributes.uid {
            return Some(Ok(()));
        }
        Some(node.permissions.get(context.caller, attributes.changed)?.write)
    }

    pub(super) fn may_search(
        &self,
        context: &Context<'_>,
        dir: &Node,
        attributes: &Attributes,
    ) -> Result<()> {
        let check = self.check_access(context, dir, attributes)?;
        if check.execute { Ok(()) } else { Err(Error::Denied) }
    }

    fn check_access(
        &self,
        context: &Context<'_>,
        node: &Node,
        attributes: &Attributes,
    ) -> Result<AccessCheck> {
        if let Some(check) = node.permissions.get(context.caller, attributes.changed) {
            return Ok(check);
        }
        // Network threads never change identity.
        if context.blocking == BlockingMode::Nonblocking {
            return Err(Error::WouldBlock);
        }
        let check = self.ask_kernel(context.caller, node)?;
        // A remount for writing does not move change times.
        if settled(attributes.changed) && check.write != Err(Error::ReadOnly) {
            node.permissions.put(context.caller, attributes.changed, check);
        }
        Ok(check)
    }

    fn ask_kernel(&self, caller: &Caller, node: &Node) -> Result<AccessCheck> {
        let _caller = self.identity.assume(caller)?;
        let decided = |access| match may(node, access) {
            Err(no @ (Error::Denied | Error::NotOwner | Error::ReadOnly)) => Ok(Err(no)),
            // A failure of the check itself.
            other => other.map(Ok),
        };
        Ok(AccessCheck {
            read: decided(Access::READ_OK)?.is_ok(),
            write: decided(Access::WRITE_OK)?,
            execute: decided(Access::EXEC_OK)?.is_ok(),
        })
    }
}

/// Whether the current identity of the thread may write.
pub(super) fn check_write(node: &Node) -> Result<()> {
    may(node, Access::WRITE_OK)
}

fn may(node: &Node, access: Access) -> Result<()> {
    Ok(sys::access(node.path(), access)?)
}

/// Whether a further change would get a later change time.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// B2.8
    #[test]
    fn a_recent_check_holds_for_its_caller_for_a_second_unless_a_client_changes_permissions() {
        let cache = PermissionCache::default();
        let (alice, bob) = (Caller::new(1, 1, &[]), Caller::new(2, 2, &[]));
        let (asked, permissions) = (Instant::now(), Permissions::default());
        let caller = alice.clone();
        cache.put_recent(RecentPermission { caller, permissions, owner: 7, asked, changes: 5 });
        let later = asked + RECENT - Duration::from_millis(1);
        assert_eq!(cache.recent(&alice, later, 5), Some((permissions, 7)));
        assert_eq!(cache.recent(&alice, asked + RECENT, 5), None);
        assert_eq!(cache.recent(&alice, asked, 6), None);
        assert_eq!(cache.recent(&bob, asked, 5), None);
    }
}

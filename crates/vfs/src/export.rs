//! Exports: which file system is served under which path, and to whom.

mod rule_set;

use std::collections::HashMap;
use std::hash::Hasher;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use ipnet::IpNet;
use siphasher::sip::SipHasher24;

use crate::groups::{GroupCache, GroupLookup};
use crate::{BlockingMode, Caller, Error, FileSystem, Result};

pub use rule_set::{RuleNumber, RuleSet, all_addresses, shown_networks};

/// Whether clients may change anything in an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExportAccess {
    /// As far as permissions allow.
    ReadWrite,
    /// No: the server refuses with [`Error::ReadOnly`] before the file system is called.
    ReadOnly,
}

/// Which callers are mapped to the anonymous identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Squash {
    /// None.
    None,
    /// uid 0; gid 0 of other callers is mapped to the anonymous group.
    Root,
    /// All.
    All,
}

/// The permission on a file that an exclusive lock on it requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExclusiveLock {
    /// Read or write: Linux sends `flock(LOCK_EX)` of a descriptor that is open for reading as an
    /// exclusive lock.
    Read,
    /// Write, as `fcntl` demands it; so there are none in a read-only export.
    Write,
}

/// Whose permission to search the path of a mount needs, below the root of the export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MountWalk {
    /// The caller's, squashed: a mount tells nothing that LOOKUP would not.
    Caller,
    /// No permission: any client that may mount learns what there is, also below directories that are closed
    /// to all its users.
    Server,
}

/// The rules of an export for the clients in some networks; see [`RuleSet`]. [`Rules::default`], changed by the
/// methods `with_...` or field by field.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rules {
    /// Read-write or read-only.
    pub access: ExportAccess,
    /// The networks that may mount and use the export.
    pub clients: Vec<IpNet>,
    /// Which callers become anonymous.
    pub squash: Squash,
    /// The uid of anonymous callers.
    pub anonymous_uid: u32,
    /// The gid of anonymous callers.
    pub anonymous_gid: u32,
    /// Requires calls to come from a port below 1024, which only root of the client can bind: its
    /// unprivileged users cannot forge credentials.
    pub require_reserved_ports: bool,
    /// Requires permission to read or write a file for a lock on it. Off for clients whose lock
    /// requests carry no credential.
    pub lock_auth: bool,
    /// What an exclusive lock requires.
    pub exclusive_lock: ExclusiveLock,
    /// The clients have no persistent NSM state and never report a reboot (netboot): a connection
    /// that follows a reset one counts as a reboot.
    pub stateless_clients: bool,
    /// How the path of a mount is resolved below the root.
    pub mount_walk: MountWalk,
}

/// The uid and gid of anonymous callers by default.
pub const NOBODY: u32 = 65_534;

impl Default for Rules {
    fn default() -> Self {
        Self {
            access: ExportAccess::ReadWrite,
            clients: private_networks(),
            squash: Squash::Root,
            anonymous_uid: NOBODY,
            anonymous_gid: NOBODY,
            require_reserved_ports: true,
            lock_auth: true,
            exclusive_lock: ExclusiveLock::Read,
            stateless_clients: false,
            mount_walk: MountWalk::Caller,
        }
    }
}

/// Loopback and private networks: the clients of an export by default. Link-local networks are not
/// among them: the server never calls such an address back.
pub fn private_networks() -> Vec<IpNet> {
    const NETWORKS: [&str; 6] =
        ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "127.0.0.0/8", "::1/128", "fc00::/7"];
    NETWORKS.iter().filter_map(|network| network.parse().ok()).collect()
}

impl Rules {
    /// Read-write or read-only.
    #[must_use]
    pub fn with_access(self, access: ExportAccess) -> Self {
        Self { access, ..self }
    }

    /// The networks that may mount and use the export.
    #[must_use]
    pub fn with_clients(self, clients: impl IntoIterator<Item = IpNet>) -> Self {
        Self { clients: clients.into_iter().collect(), ..self }
    }

    /// Which callers become anonymous.
    #[must_use]
    pub fn with_squash(self, squash: Squash) -> Self {
        Self { squash, ..self }
    }

    /// The identity of anonymous callers.
    #[must_use]
    pub fn with_anonymous(self, uid: u32, gid: u32) -> Self {
        Self { anonymous_uid: uid, anonymous_gid: gid, ..self }
    }

    /// Whether calls must come from a port below 1024.
    #[must_use]
    pub fn with_require_reserved_ports(self, require_reserved_ports: bool) -> Self {
        Self { require_reserved_ports, ..self }
    }

    /// Whether a lock needs permission to read or write the file.
    #[must_use]
    pub fn with_lock_auth(self, lock_auth: bool) -> Self {
        Self { lock_auth, ..self }
    }

    /// What an exclusive lock requires.
    #[must_use]
    pub fn with_exclusive_lock(self, exclusive_lock: ExclusiveLock) -> Self {
        Self { exclusive_lock, ..self }
    }

    /// Whether the clients never report a reboot (netboot).
    #[must_use]
    pub fn with_stateless_clients(self, stateless_clients: bool) -> Self {
        Self { stateless_clients, ..self }
    }

    /// How the path of a mount is resolved below the root.
    #[must_use]
    pub fn with_mount_walk(self, mount_walk: MountWalk) -> Self {
        Self { mount_walk, ..self }
    }

    /// The identity for calls without a credential, and for squashed ones.
    pub fn anonymous(&self) -> Caller {
        Caller::new(self.anonymous_uid, self.anonymous_gid, &[])
    }

    /// The identity for a call with this AUTH_SYS credential. A credential with 16 groups, the
    /// most it can carry, may be truncated: then the groups that this host has for the user count
    /// instead, which may take a query ([`Error::WouldBlock`] if that is not allowed,
    /// [`Error::TryLater`] if it fails).
    #[doc(hidden)]
    pub fn caller(
        &self,
        uid: u32,
        gid: u32,
        groups: &[u32],
        cache: &GroupCache,
        blocking: BlockingMode,
    ) -> Result<Caller> {
        const GROUPS_OF_A_CREDENTIAL: usize = 16;
        if self.squash == Squash::All || (self.squash == Squash::Root && uid == 0) {
            return Ok(self.anonymous());
        }
        let known = if groups.len() < GROUPS_OF_A_CREDENTIAL {
            None
        } else {
            match cache.groups_of(uid, blocking) {
                GroupLookup::Groups(known) => Some(known),
                GroupLookup::Unknown => None,
                GroupLookup::Failed => return Err(Error::TryLater),
                GroupLookup::WouldBlock => return Err(Error::WouldBlock),
            }
        };
        let groups = known.as_deref().unwrap_or(groups);
        Ok(match self.squash {
            Squash::Root => {
                let squashed = |gid| if gid == 0 { self.anonymous_gid } else { gid };
                let groups: Vec<u32> = groups.iter().copied().map(squashed).collect();
                Caller::new(uid, squashed(gid), &groups)
            }
            _ => Caller::new(uid, gid, groups),
        })
    }
}

/// A file system, served under a path according to rules.
#[derive(Clone)]
#[non_exhaustive]
pub struct Export {
    /// Part of every handle, so the same after each restart.
    pub id: u32,
    /// The path that clients mount.
    pub path: Bytes,
    /// What is served.
    pub filesystem: Arc<dyn FileSystem>,
    /// To whom, and how.
    pub rules: RuleSet,
}

impl Export {
    /// With the default [`Rules`], and the [id of its path](Export::id_of_path).
    pub fn new(path: impl Into<Bytes>, filesystem: Arc<dyn FileSystem>) -> Self {
        let path = path.into();
        Self { id: Self::id_of_path(&path), path, filesystem, rules: RuleSet::default() }
    }

    /// With an id that stays the same if the path changes.
    #[must_use]
    pub fn with_id(self, id: u32) -> Self {
        Self { id, ..self }
    }

    /// With these rules: [`Rules`] for all clients, or a [`RuleSet`].
    #[must_use]
    pub fn with_rules(self, rules: impl Into<RuleSet>) -> Self {
        Self { rules: rules.into(), ..self }
    }

    /// The id of an export for which none is configured: a hash of its path.
    pub fn id_of_path(path: &[u8]) -> u32 {
        let mut hasher = SipHasher24::new();
        hasher.write(path);
        hasher.finish() as u32
    }
}

/// An export that is not served yet, as its file system does not answer. Its handles are not stale: what they name will be
/// served.
#[derive(Debug, Clone)]
pub struct OpeningExport {
    /// As in [`Export`].
    pub id: u32,
    /// As in [`Export`].
    pub path: Bytes,
    /// To whom it will be served.
    pub rules: RuleSet,
    /// Since when it is waited for.
    pub since: Instant,
    /// Why it cannot be served, if its file system has answered.
    pub problem: Option<String>,
}

/// All exports of a server. Replaced as a whole when the configuration is reloaded.
#[derive(Clone, Default)]
pub struct Exports {
    list: Vec<Arc<Export>>,
    by_id: HashMap<u32, Arc<Export>>,
    opening: Vec<OpeningExport>,
}

impl Exports {
    /// Fails if two exports share an id or a path; the text of the error is for the user.
    pub fn new(exports: Vec<Export>) -> std::result::Result<Self, String> {
        let list: Vec<Arc<Export>> = exports.into_iter().map(Arc::new).collect();
        let mut by_id: HashMap<u32, Arc<Export>> = HashMap::new();
        for export in &list {
            let path = export.path.escape_ascii();
            if list.iter().filter(|other| other.path == export.path).count() > 1 {
                return Err(format!("{path} is exported twice"));
            }
            if let Some(other) = by_id.insert(export.id, export.clone()) {
                let other = other.path.escape_ascii();
                return Err(format!(
                    "{path} and {other} have the same export id {}; set `id` for one of them",
                    export.id
                ));
            }
        }
        Ok(Self { list, by_id, opening: Vec::new() })
    }

    /// With exports that are not served yet. Fails if one has the id or the path of another.
    pub fn with_opening(self, opening: Vec<OpeningExport>) -> std::result::Result<Self, String> {
        let open = self.list.iter().map(|export| (export.id, &export.path));
        let mut known: Vec<(u32, &Bytes)> = open.collect();
        for export in &opening {
            let taken = known.iter().find(|(id, path)| *id == export.id || *path == &export.path);
            if let Some((_, other)) = taken {
                let (path, other) = (export.path.escape_ascii(), other.escape_ascii());
                return Err(format!("{path} and {other} have the same path or export id"));
            }
            known.push((export.id, &export.path));
        }
        Ok(Self { opening, ..self })
    }

    /// The exports that are not served yet.
    pub fn opening(&self) -> &[OpeningExport] {
        &self.opening
    }

    /// The export that contains `path`, if it is not served yet.
    pub fn opening_at(&self, path: &[u8]) -> Option<&OpeningExport> {
        let parts = components(path);
        let served = self.by_path(path).map_or(0, |(export, _)| components(&export.path).len());
        let containing = self.opening.iter().filter(|export| {
            let own = components(&export.path);
            parts.starts_with(&own) && own.len() >= served
        });
        containing.max_by_key(|export| components(&export.path).len())
    }

    /// In the order of [`Exports::new`].
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Export>> {
        self.list.iter()
    }

    /// The export that a handle names.
    pub fn by_id(&self, id: u32) -> Option<&Arc<Export>> {
        self.by_id.get(&id)
    }

    /// The innermost export that contains `path`, and the components of `path` below its root.
    pub fn by_path<'a>(&self, path: &'a [u8]) -> Option<(&Arc<Export>, Vec<&'a [u8]>)> {
        let wanted = components(path);
        let depth = |export: &Export| {
            let own = components(&export.path);
            wanted.starts_with(&own).then_some(own.len())
        };
        let (depth, export) = self
            .list
            .iter()
            .filter_map(|e| Some((depth(e)?, e)))
            .max_by_key(|(depth, _)| *depth)?;
        Some((export, wanted[depth..].to_vec()))
    }
}

fn components(path: &[u8]) -> Vec<&[u8]> {
    path.split(|byte| *byte == b'/').filter(|part| !part.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FileSystemId;
    use crate::memory::MemoryFs;

    fn export(path: &'static str) -> Export {
        Export::new(path, Arc::new(MemoryFs::new(FileSystemId(1))))
    }

    #[test]
    fn private_networks_may_mount_by_default_and_others_may_not() {
        let rules = RuleSet::default();
        for client in ["127.0.0.1", "10.1.2.3", "172.31.0.1", "192.168.1.1", "::1", "fd00::7"] {
            assert!(rules.admits(client.parse().unwrap()), "{client}");
        }
        // The server does not call link-local addresses back, so it does not admit them (B1.50).
        for client in ["8.8.8.8", "172.32.0.1", "2001:db8::1", "fe80::1", "169.254.0.1"] {
            assert!(!rules.admits(client.parse().unwrap()), "{client}");
        }
    }

    #[test]
    fn root_is_squashed_by_default_also_as_a_group() {
        let (rules, cache) = (Rules::default(), GroupCache::default());
        let root = rules.caller(0, 0, &[0, 5], &cache, BlockingMode::Nonblocking).unwrap();
        assert_eq!(root, Caller::new(NOBODY, NOBODY, &[]));
        let user = rules.caller(1000, 0, &[0, 5], &cache, BlockingMode::Nonblocking).unwrap();
        assert_eq!(user, Caller::new(1000, NOBODY, &[NOBODY, 5]));
        let open = Rules { squash: Squash::None, ..rules };
        assert!(open.caller(0, 0, &[], &cache, BlockingMode::Nonblocking).unwrap().is_root());
    }

    #[test]
    fn a_full_group_list_is_replaced_by_the_hosts() {
        let (rules, cache) =
            (Rules { squash: Squash::None, ..Rules::default() }, GroupCache::default());
        let sent: Vec<u32> = (100..116).collect();
        assert_eq!(
            rules.caller(0, 0, &sent, &cache, BlockingMode::Nonblocking),
            Err(Error::WouldBlock)
        );
        let root = rules.caller(0, 0, &sent, &cache, BlockingMode::MayBlock).unwrap();
        assert!(root.in_group(0) && !root.in_group(100));
        let unknown =
            rules.caller(4_000_000_000, 1, &sent, &cache, BlockingMode::MayBlock).unwrap();
        assert!(unknown.in_group(115));
    }

    #[test]
    fn a_caller_whose_groups_cannot_be_looked_up_tries_later() {
        struct Failing;
        impl crate::groups::NameService for Failing {
            fn groups(&self, _: u32) -> std::io::Result<Option<Vec<u32>>> {
                Err(std::io::Error::from_raw_os_error(libc::ETIMEDOUT))
            }
        }
        let rules = Rules { squash: Squash::None, ..Rules::default() };
        let hour = std::time::Duration::from_secs(3600);
        let cache = GroupCache::new(hour, hour, Failing);
        let caller = |groups: &[u32]| rules.caller(7, 7, groups, &cache, BlockingMode::MayBlock);
        assert_eq!(caller(&[1; 16]), Err(Error::TryLater));
        assert!(caller(&[1; 15]).is_ok());
    }

    #[test]
    fn the_deepest_export_wins_and_the_rest_is_walked() {
        let exports = Exports::new(vec![export("/srv"), export("/srv/a"), export("/x")]).unwrap();
        let find = |path: &'static str| {
            exports.by_path(path.as_bytes()).map(|(e, rest)| (e.path.clone(), rest.len()))
        };
        assert_eq!(find("/srv"), Some(("/srv".into(), 0)));
        assert_eq!(find("/srv/a//b/c/"), Some(("/srv/a".into(), 2)));
        assert_eq!(find("/srv/ab"), Some(("/srv".into(), 1)));
        assert_eq!(find("/etc"), None);
    }

    #[test]
    fn an_export_that_is_not_served_yet_has_its_path_and_id() {
        let opening = |path: &'static str| OpeningExport {
            id: Export::id_of_path(path.as_bytes()),
            path: path.into(),
            rules: RuleSet::default(),
            since: Instant::now(),
            problem: None,
        };
        let served = || Exports::new(vec![export("/srv"), export("/srv/a/b")]).unwrap();
        let exports = served().with_opening(vec![opening("/srv/a")]).unwrap();
        let at = |path: &str| exports.opening_at(path.as_bytes()).is_some();
        assert!(at("/srv/a") && at("/srv/a/c"));
        assert!(!at("/srv") && !at("/srv/ab") && !at("/srv/a/b/c"));
        assert!(served().with_opening(vec![opening("/srv")]).is_err());
        assert!(served().with_opening(vec![opening("/x"), opening("/x")]).is_err());
    }

    #[test]
    fn exports_with_the_same_path_or_id_are_refused() {
        assert!(Exports::new(vec![export("/a"), export("/a")]).is_err());
        let other = Export { id: Export::id_of_path(b"/a"), ..export("/b") };
        let error = Exports::new(vec![export("/a"), other]).err().unwrap();
        assert!(error.contains("set `id`"), "{error}");
    }
}

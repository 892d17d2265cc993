//! What is offered to whom: exports and their rules.

use std::collections::HashMap;
use std::hash::Hasher;
use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use ipnet::IpNet;
use siphasher::sip::SipHasher24;

use crate::groups::{Found, GroupCache};
use crate::{Caller, Error, FileSystem, Patience, Result};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    ReadWrite,
    ReadOnly,
}

/// Whose identity is replaced by the anonymous one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Squash {
    None,
    /// uid 0 and gid 0 of the client are nobody here.
    Root,
    /// Everybody is.
    All,
}

/// The rules of one export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    pub access: Access,
    pub clients: Vec<IpNet>,
    pub squash: Squash,
    pub anonymous_uid: u32,
    pub anonymous_gid: u32,
    /// Calls that change something must come from a port below 1024, which on the client only
    /// root can use: an unprivileged user there cannot speak for the machine.
    pub reserved_ports: bool,
    /// Whoever locks a file must be allowed to read it, or to write it for an exclusive lock.
    /// Switched off for clients whose lock requests do not say who asks.
    pub lock_auth: bool,
    /// These clients always start with the same state and never tell of a restart (netboot): a new
    /// connection after a reset is one.
    pub stateless_clients: bool,
}

pub const NOBODY: u32 = 65_534;

impl Default for Rules {
    fn default() -> Self {
        Self {
            access: Access::ReadWrite,
            clients: private_networks(),
            squash: Squash::Root,
            anonymous_uid: NOBODY,
            anonymous_gid: NOBODY,
            reserved_ports: true,
            lock_auth: true,
            stateless_clients: false,
        }
    }
}

/// Loopback, private and link-local networks: who may mount when nothing is configured.
pub fn private_networks() -> Vec<IpNet> {
    const NETWORKS: [&str; 7] = [
        "10.0.0.0/8",
        "172.16.0.0/12",
        "192.168.0.0/16",
        "127.0.0.0/8",
        "::1/128",
        "fc00::/7",
        "fe80::/10",
    ];
    NETWORKS.iter().filter_map(|network| network.parse().ok()).collect()
}

impl Rules {
    pub fn admits(&self, client: IpAddr) -> bool {
        self.clients.iter().any(|network| network.contains(&client))
    }

    /// Who an anonymous call is done as.
    pub fn anonymous(&self) -> Caller {
        Caller::new(self.anonymous_uid, self.anonymous_gid, &[])
    }

    /// Who a call with this credential is done as. A credential that carries all the groups it
    /// can is taken to be cut off, and the groups that this host knows are used instead.
    pub fn caller(
        &self,
        uid: u32,
        gid: u32,
        groups: &[u32],
        cache: &GroupCache,
        patience: Patience,
    ) -> Result<Caller> {
        const GROUPS_OF_A_CREDENTIAL: usize = 16;
        if self.squash == Squash::All || (self.squash == Squash::Root && uid == 0) {
            return Ok(self.anonymous());
        }
        let known = if groups.len() < GROUPS_OF_A_CREDENTIAL {
            None
        } else {
            match cache.groups_of(uid, patience) {
                Found::Groups(known) => Some(known),
                Found::Unknown => None,
                Found::Later => return Err(Error::WouldBlock),
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

/// A file system under a path, with rules.
#[derive(Clone)]
pub struct Export {
    /// In every handle; stays the same across restarts.
    pub id: u32,
    /// What clients mount.
    pub path: Bytes,
    pub filesystem: Arc<dyn FileSystem>,
    pub rules: Rules,
}

impl Export {
    /// The id of an export that has none configured.
    pub fn id_of_path(path: &[u8]) -> u32 {
        let mut hasher = SipHasher24::new();
        hasher.write(path);
        hasher.finish() as u32
    }
}

/// All that is served. Replaced as a whole when the configuration is read again.
#[derive(Clone, Default)]
pub struct Exports {
    list: Vec<Arc<Export>>,
    by_id: HashMap<u32, Arc<Export>>,
}

impl Exports {
    /// Two exports with one id, or with one path, cannot be told apart: the error says which.
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
        Ok(Self { list, by_id })
    }

    pub fn iter(&self) -> impl Iterator<Item = &Arc<Export>> {
        self.list.iter()
    }

    pub fn by_id(&self, id: u32) -> Option<&Arc<Export>> {
        self.by_id.get(&id)
    }

    /// The export that `path` lies in, the deepest one, and the names that lead down from its
    /// root.
    pub fn by_path<'a>(&self, path: &'a [u8]) -> Option<(&Arc<Export>, Vec<&'a [u8]>)> {
        let names = |path: &'a [u8]| -> Vec<&'a [u8]> {
            path.split(|byte| *byte == b'/').filter(|part| !part.is_empty()).collect()
        };
        let wanted = names(path);
        let depth = |export: &Export| {
            let own: Vec<&[u8]> =
                export.path.split(|byte| *byte == b'/').filter(|p| !p.is_empty()).collect();
            (wanted.len() >= own.len() && wanted[..own.len()] == own[..]).then_some(own.len())
        };
        let (depth, export) = self
            .list
            .iter()
            .filter_map(|e| Some((depth(e)?, e)))
            .max_by_key(|(depth, _)| *depth)?;
        Some((export, wanted[depth..].to_vec()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FileSystemId;
    use crate::memory::MemoryFs;

    fn export(path: &'static str) -> Export {
        Export {
            id: Export::id_of_path(path.as_bytes()),
            path: Bytes::from_static(path.as_bytes()),
            filesystem: Arc::new(MemoryFs::new(FileSystemId(1))),
            rules: Rules::default(),
        }
    }

    #[test]
    fn private_networks_may_mount_by_default_and_others_may_not() {
        let rules = Rules::default();
        for client in ["127.0.0.1", "10.1.2.3", "172.31.0.1", "192.168.1.1", "::1", "fd00::7"] {
            assert!(rules.admits(client.parse().unwrap()), "{client}");
        }
        for client in ["8.8.8.8", "172.32.0.1", "2001:db8::1"] {
            assert!(!rules.admits(client.parse().unwrap()), "{client}");
        }
    }

    #[test]
    fn root_is_squashed_by_default_also_as_a_group() {
        let (rules, cache) = (Rules::default(), GroupCache::default());
        let root = rules.caller(0, 0, &[0, 5], &cache, Patience::Now).unwrap();
        assert_eq!(root, Caller::new(NOBODY, NOBODY, &[]));
        let user = rules.caller(1000, 0, &[0, 5], &cache, Patience::Now).unwrap();
        assert_eq!(user, Caller::new(1000, NOBODY, &[NOBODY, 5]));
        let open = Rules { squash: Squash::None, ..rules };
        assert!(open.caller(0, 0, &[], &cache, Patience::Now).unwrap().is_root());
    }

    #[test]
    fn a_full_group_list_is_looked_up_here() {
        let (rules, cache) =
            (Rules { squash: Squash::None, ..Rules::default() }, GroupCache::default());
        let sent: Vec<u32> = (100..116).collect();
        assert_eq!(rules.caller(0, 0, &sent, &cache, Patience::Now), Err(Error::WouldBlock));
        let root = rules.caller(0, 0, &sent, &cache, Patience::Wait).unwrap();
        assert!(root.in_group(0) && !root.in_group(100));
        let stranger = rules.caller(4_000_000_000, 1, &sent, &cache, Patience::Wait).unwrap();
        assert!(stranger.in_group(115));
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
    fn two_exports_that_cannot_be_told_apart_are_refused() {
        assert!(Exports::new(vec![export("/a"), export("/a")]).is_err());
        let other = Export { id: Export::id_of_path(b"/a"), ..export("/b") };
        let error = Exports::new(vec![export("/a"), other]).err().unwrap();
        assert!(error.contains("set `id`"), "{error}");
    }
}

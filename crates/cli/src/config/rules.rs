//! `[[export.rule]]`: what an export allows the clients of some networks, where it differs from the rest
//! of its `[[export]]` (B1.90). Of the networks that contain an address the most specific decides.

use ipnet::IpNet;
use serde::Deserialize;
use vfs::RuleSet;

use super::{Access, ExclusiveLock, Export, MountWalk, Network, Squash};
use crate::cli::Ports;

/// What is absent is inherited from the export.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rule {
    pub clients: Vec<Network>,
    pub access: Option<Access>,
    pub squash: Option<Squash>,
    pub anonymous_uid: Option<u32>,
    pub anonymous_gid: Option<u32>,
    pub ports: Option<Ports>,
    pub lock_auth: Option<bool>,
    pub exclusive_lock: Option<ExclusiveLock>,
    pub stateless_clients: Option<bool>,
    pub mount_walk: Option<MountWalk>,
}

impl Rule {
    /// The export as the clients of this rule have it.
    fn of(&self, export: &Export) -> Export {
        let Self {
            clients,
            access,
            squash,
            anonymous_uid,
            anonymous_gid,
            ports,
            lock_auth,
            exclusive_lock,
            stateless_clients,
            mount_walk,
        } = self;
        Export {
            clients: Some(clients.clone()),
            access: access.unwrap_or(export.access),
            squash: squash.unwrap_or(export.squash),
            anonymous_uid: anonymous_uid.unwrap_or(export.anonymous_uid),
            anonymous_gid: anonymous_gid.unwrap_or(export.anonymous_gid),
            ports: ports.or(export.ports),
            lock_auth: lock_auth.unwrap_or(export.lock_auth),
            exclusive_lock: exclusive_lock.unwrap_or(export.exclusive_lock),
            stateless_clients: stateless_clients.unwrap_or(export.stateless_clients),
            mount_walk: mount_walk.unwrap_or(export.mount_walk),
            rules: Vec::new(),
            ..export.clone()
        }
    }
}

impl Export {
    /// The export as each of its rules has it. Its own settings are a rule if it names `clients` or has no
    /// other rule; else they are only what the others inherit.
    pub(crate) fn by_rule(&self) -> Vec<Self> {
        let is_rule = self.clients.is_some() || self.rules.is_empty();
        let own = is_rule.then(|| Self { rules: Vec::new(), ..self.clone() });
        own.into_iter().chain(self.rules.iter().map(|rule| rule.of(self))).collect()
    }

    /// Whether root of some clients is root in the export, too.
    pub(crate) fn admits_root(&self) -> bool {
        self.by_rule().iter().any(|rule| rule.squash == Squash::None)
    }

    /// The networks of all rules.
    pub(crate) fn networks(&self) -> Vec<IpNet> {
        let of_rules = self.rules.iter().flat_map(|rule| &rule.clients);
        let networks: Vec<Network> =
            self.clients.iter().flatten().chain(of_rules).copied().collect();
        Network::of_all(&networks)
    }

    /// The rules as the server applies them; `ports` overrides what they say. The text of an error is for
    /// the user.
    pub(crate) fn rule_set(&self, ports: Option<Ports>) -> Result<RuleSet, String> {
        let rules = self.by_rule().iter().map(|rule| rule.server_rules(ports)).collect();
        RuleSet::new(rules).map_err(|error| format!("export {}: {error}", self.path.display()))
    }

    fn server_rules(&self, ports: Option<Ports>) -> vfs::Rules {
        let clients = self.clients.as_deref();
        vfs::Rules::default()
            .with_access(match self.access {
                Access::Rw => vfs::ExportAccess::ReadWrite,
                Access::Ro => vfs::ExportAccess::ReadOnly,
            })
            .with_clients(clients.map_or_else(vfs::export::private_networks, Network::of_all))
            .with_squash(match self.squash {
                Squash::None => vfs::Squash::None,
                Squash::Root => vfs::Squash::Root,
                Squash::All => vfs::Squash::All,
            })
            .with_anonymous(self.anonymous_uid, self.anonymous_gid)
            .with_require_reserved_ports(
                ports
                    .or(self.ports)
                    .map_or_else(require_reserved_by_default, |ports| ports == Ports::Reserved),
            )
            .with_lock_auth(self.lock_auth)
            .with_exclusive_lock(match self.exclusive_lock {
                ExclusiveLock::Read => vfs::ExclusiveLock::Read,
                ExclusiveLock::Write => vfs::ExclusiveLock::Write,
            })
            .with_stateless_clients(self.stateless_clients)
            .with_mount_walk(match self.mount_walk {
                MountWalk::Caller => vfs::MountWalk::Caller,
                MountWalk::Server => vfs::MountWalk::Server,
            })
    }
}

/// Root can demand reserved ports of its clients; other users' servers are for trials.
pub(crate) fn require_reserved_by_default() -> bool {
    rustix::process::geteuid().is_root()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::File;

    fn export(text: &str) -> Export {
        File::parse(&format!("[[export]]\npath = \"/srv\"\n{text}")).unwrap().exports.remove(0)
    }

    /// B1.90
    #[test]
    fn a_rule_inherits_what_it_does_not_say() {
        let export = export(
            "clients = [\"*\"]\naccess = \"ro\"\nsquash = \"all\"\nanonymous_uid = 7\n\
             ports = \"any\"\n\
             [[export.rule]]\nclients = [\"10.0.0.0/8\"]\naccess = \"rw\"\n\
             [[export.rule]]\nclients = [\"10.0.0.9\"]\nsquash = \"none\"\nlock_auth = false\n",
        );
        let set = export.rule_set(None).unwrap();
        let at = |client: &str| set.for_client(client.parse().unwrap()).unwrap();
        let seen = |client: &str| (at(client).access, at(client).squash, at(client).lock_auth);
        use vfs::ExportAccess::{ReadOnly, ReadWrite};
        assert_eq!(seen("192.0.2.1"), (ReadOnly, vfs::Squash::All, true));
        assert_eq!(seen("2001:db8::1"), (ReadOnly, vfs::Squash::All, true));
        assert_eq!(seen("10.0.0.1"), (ReadWrite, vfs::Squash::All, true));
        assert_eq!(seen("10.0.0.9"), (ReadOnly, vfs::Squash::None, false));
        assert!(at("10.0.0.9").anonymous_uid == 7 && !at("10.0.0.9").require_reserved_ports);
        let reserved = export.rule_set(Some(Ports::Reserved)).unwrap();
        assert!(reserved.iter().all(|rules| rules.require_reserved_ports));
    }

    /// B1.90
    #[test]
    fn an_export_with_rules_and_no_clients_of_its_own_admits_only_theirs() {
        let only = export("[[export.rule]]\nclients = [\"10.0.0.0/8\"]\n").rule_set(None).unwrap();
        assert!(only.admits("10.0.0.1".parse().unwrap()));
        assert!(!only.admits("192.168.0.1".parse().unwrap()));
        let inherited = "squash = \"none\"\n[[export.rule]]\nclients = [\"10.0.0.0/8\"]\n";
        assert!(export(inherited).admits_root());
        assert!(!export(&format!("{inherited}squash = \"all\"\n")).admits_root());
        let usual = export("").rule_set(None).unwrap();
        assert!(usual.admits("192.168.0.1".parse().unwrap()));
    }

    #[test]
    fn a_rule_needs_clients_and_knows_its_keys() {
        let error = |text: &str| {
            let text = format!("[[export]]\npath = \"/srv\"\n[[export.rule]]\n{text}\n");
            File::parse(&text).unwrap_err().to_string()
        };
        assert!(error("access = \"ro\"").contains("missing key `clients`"));
        let unknown = error("clients = []\nacces = \"ro\"");
        assert!(unknown.contains("did you mean `access`?"), "{unknown}");
        assert!(error("clients = [\"filer\"]").contains("neither a network"));
    }
}

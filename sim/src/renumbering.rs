//! The server's own addresses, which a restart may change behind an address translation: clients keep
//! calling the addresses that they mounted, and the keeper sees others (B2.80, B2.81).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use keeper::config::Config;
use keeper::identity::{Epoch, OwnerNamespace};

use crate::scenario::server_addresses;
use crate::world::World;

pub(crate) struct Renumbering {
    /// The present address of the server for each that clients mounted.
    present: BTreeMap<IpAddr, IpAddr>,
    /// The address that clients mounted for each that the server ever had.
    mounted: BTreeMap<IpAddr, IpAddr>,
    /// What the configuration says: an address, and the one that it replaces.
    formerly: BTreeMap<IpAddr, IpAddr>,
}

impl Renumbering {
    pub(crate) fn new() -> Self {
        let same: BTreeMap<IpAddr, IpAddr> = server_addresses().map(|ip| (ip, ip)).into();
        Self { present: same.clone(), mounted: same, formerly: BTreeMap::new() }
    }

    /// How the server sees a call.
    pub(crate) fn inward(&self, namespace: OwnerNamespace) -> OwnerNamespace {
        through(namespace, &self.present)
    }

    /// How the client sees a namespace of the keeper.
    pub(crate) fn outward(&self, namespace: OwnerNamespace) -> OwnerNamespace {
        through(namespace, &self.mounted)
    }
}

fn through(namespace: OwnerNamespace, map: &BTreeMap<IpAddr, IpAddr>) -> OwnerNamespace {
    let address = namespace.server_address();
    let address = map.get(&address).copied().unwrap_or(address);
    OwnerNamespace::new(address, namespace.transport(), namespace.version())
}

impl World {
    /// Before a start: one of the addresses may be another. Only if the last start is on the disk, with
    /// the owners that it moved; otherwise the configuration stays as it is.
    pub(crate) fn renumber(&mut self, saved: Epoch, config: &mut Config) {
        let number = u64::from(self.server.life) + self.scenario.config.seed / 4;
        let renumbers = self.scenario.config.seed.is_multiple_of(4) && number.is_multiple_of(3);
        if renumbers && saved == self.model.epoch {
            let mounted = server_addresses()[usize::from(number.is_multiple_of(2))];
            let fresh = IpAddr::from([192, 0, 2, 10 + self.renumbering.mounted.len() as u8]);
            let replaced = self.renumbering.present.insert(mounted, fresh);
            self.renumbering.mounted.insert(fresh, mounted);
            self.renumbering.formerly = replaced.map(|old| (fresh, old)).into_iter().collect();
            self.coverage.reach("server renumbered");
            self.trace(|_| format!("the server's address behind {mounted} is now {fresh}"));
        }
        let addresses: BTreeSet<IpAddr> = self.renumbering.present.values().copied().collect();
        config.addresses = Some(addresses);
        config.formerly = self.renumbering.formerly.clone();
    }
}

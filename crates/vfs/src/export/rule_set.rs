//! The rules of an export by network: of all networks that contain an address the most specific decides,
//! as in a routing table (B1.90).

use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::Rules;

/// The rules of an export by network; the most specific network decides. Each [`Rules`] applies to its own
/// `clients`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleSet {
    rules: Vec<Rules>,
    /// The networks of all rules, the most specific first, with the position of their rules.
    networks: Vec<(IpNet, usize)>,
}

/// Position of the rules that apply to an address; of use with the set that returned it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RuleNumber(usize);

impl From<Rules> for RuleSet {
    fn from(rules: Rules) -> Self {
        Self::of(vec![rules])
    }
}

impl Default for RuleSet {
    fn default() -> Self {
        Rules::default().into()
    }
}

impl RuleSet {
    /// Fails if two rules have the same network: neither is more specific. The text of the error is for
    /// the user.
    pub fn new(rules: Vec<Rules>) -> Result<Self, String> {
        let set = Self::of(rules);
        let mut pairs = set.networks.iter().zip(set.networks.iter().skip(1));
        match pairs.find(|((one, _), (other, _))| one == other) {
            None => Ok(set),
            Some(((network, _), _)) => Err(format!(
                "{network} is in `clients` of two rules, so that neither is more specific; leave it in \
                 one of them"
            )),
        }
    }

    fn of(rules: Vec<Rules>) -> Self {
        let of = |(number, rules): (usize, &Rules)| {
            let networks = rules.clients.iter().map(move |network| (network.trunc(), number));
            networks.collect::<Vec<_>>()
        };
        let mut networks: Vec<(IpNet, usize)> = rules.iter().enumerate().flat_map(of).collect();
        networks.sort_by_key(|(network, number)| {
            (std::cmp::Reverse(network.prefix_len()), *network, *number)
        });
        networks.dedup();
        Self { rules, networks }
    }

    /// Which rules apply to this address; `None` if it may not use the export.
    pub fn number_for(&self, client: IpAddr) -> Option<RuleNumber> {
        let found = self.networks.iter().find(|(network, _)| network.contains(&client));
        found.map(|(_, number)| RuleNumber(*number))
    }

    /// The rules that apply to this address; `None` if it may not use the export.
    pub fn for_client(&self, client: IpAddr) -> Option<&Rules> {
        self.number_for(client).map(|number| self.numbered(number))
    }

    /// The rules of this number.
    pub fn numbered(&self, number: RuleNumber) -> &Rules {
        &self.rules[number.0]
    }

    /// Whether `client` may use the export.
    pub fn admits(&self, client: IpAddr) -> bool {
        self.number_for(client).is_some()
    }

    /// Whether the rules of this address have a property; for an address that may not use the export,
    /// whether all rules have it.
    pub fn hold_for(&self, client: IpAddr, property: impl Fn(&Rules) -> bool) -> bool {
        match self.for_client(client) {
            Some(rules) => property(rules),
            None => self.rules.iter().all(property),
        }
    }

    /// The networks of all rules, in their order.
    pub fn networks(&self) -> Vec<IpNet> {
        self.rules.iter().flat_map(|rules| rules.clients.iter().copied()).collect()
    }

    /// In the order of [`RuleSet::new`].
    pub fn iter(&self) -> impl Iterator<Item = &Rules> {
        self.rules.iter()
    }
}

/// Networks as they are written: `*` for all addresses.
pub fn shown_networks(networks: &[IpNet]) -> Vec<String> {
    let is_all = |network: &&IpNet| network.prefix_len() == 0;
    let all = networks.iter().filter(is_all);
    let any = all.clone().any(|network| matches!(network, IpNet::V4(_)))
        && all.clone().any(|network| matches!(network, IpNet::V6(_)));
    let others = networks.iter().filter(|network| !any || !is_all(network));
    let first = any.then(|| "*".to_owned());
    first.into_iter().chain(others.map(ToString::to_string)).collect()
}

/// All addresses, IPv4 and IPv6: the networks of `*`.
pub fn all_addresses() -> [IpNet; 2] {
    [IpNet::V4(Ipv4Net::default()), IpNet::V6(Ipv6Net::default())]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ExportAccess, Squash};

    fn rules(networks: &[&str], access: ExportAccess) -> Rules {
        let clients = networks.iter().map(|network| network.parse().unwrap()).collect();
        Rules { clients, access, ..Rules::default() }
    }

    /// B1.90
    #[test]
    fn the_most_specific_network_wins_in_any_order() {
        use ExportAccess::{ReadOnly, ReadWrite};
        let wide = rules(&["10.0.0.0/8", "fd00::/8"], ReadOnly);
        let narrow = rules(&["10.1.0.0/16", "fd00::7/128"], ReadWrite);
        let one = Rules { squash: Squash::None, ..rules(&["10.1.2.3/32"], ReadOnly) };
        let any = Rules { squash: Squash::All, ..rules(&[], ReadOnly) };
        let any = Rules { clients: all_addresses().to_vec(), ..any };
        for order in [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2]] {
            let list = [&wide, &narrow, &one, &any];
            let set = RuleSet::new(order.map(|at| list[at].clone()).to_vec()).unwrap();
            let at = |client: &str| set.for_client(client.parse().unwrap());
            assert_eq!(at("10.9.9.9"), Some(&wide));
            assert_eq!(at("10.1.9.9"), Some(&narrow));
            assert_eq!(at("10.1.2.3"), Some(&one));
            assert_eq!(at("192.0.2.1"), Some(&any));
            assert_eq!(at("fd00::8"), Some(&wide));
            assert_eq!(at("fd00::7"), Some(&narrow));
            assert_eq!(at("2001:db8::1"), Some(&any));
        }
    }

    #[test]
    fn an_address_in_no_network_is_not_admitted() {
        let set = RuleSet::from(rules(&["10.0.0.0/24"], ExportAccess::ReadWrite));
        assert!(set.admits("10.0.0.9".parse().unwrap()));
        assert!(!set.admits("10.0.1.9".parse().unwrap()) && !set.admits("::1".parse().unwrap()));
    }

    /// B1.90
    #[test]
    fn two_rules_with_one_network_are_refused() {
        let one = |network| rules(&[network], ExportAccess::ReadOnly);
        let error = RuleSet::new(vec![one("10.0.0.0/24"), one("10.0.0.9/24")]).unwrap_err();
        assert!(error.contains("10.0.0.0/24") && error.contains("two rules"), "{error}");
        assert!(RuleSet::new(vec![one("10.0.0.0/24"), one("10.0.0.0/25")]).is_ok());
        let twice = rules(&["10.0.0.0/24", "10.0.0.0/24"], ExportAccess::ReadOnly);
        assert!(RuleSet::new(vec![twice]).is_ok());
    }

    #[test]
    fn what_holds_for_a_stranger_holds_for_all_rules() {
        let closed = Rules {
            require_reserved_ports: true,
            ..rules(&["10.0.0.0/8"], ExportAccess::ReadOnly)
        };
        let open = Rules {
            require_reserved_ports: false,
            ..rules(&["10.1.0.0/16"], ExportAccess::ReadOnly)
        };
        let set = RuleSet::new(vec![closed, open]).unwrap();
        let demands = |client: &str| {
            set.hold_for(client.parse().unwrap(), |rules| rules.require_reserved_ports)
        };
        assert!(demands("10.0.0.1") && !demands("10.1.0.1") && !demands("192.0.2.1"));
    }

    #[test]
    fn all_addresses_are_shown_as_a_star() {
        let network = |text: &str| text.parse::<IpNet>().unwrap();
        let [v4, v6] = all_addresses();
        assert_eq!((v4, v6), (network("0.0.0.0/0"), network("::/0")));
        assert_eq!(shown_networks(&[network("10.0.0.0/8"), v4, v6]), ["*", "10.0.0.0/8"]);
        assert_eq!(shown_networks(&[v4]), ["0.0.0.0/0"]);
        assert_eq!(shown_networks(&[]), [""; 0]);
    }
}

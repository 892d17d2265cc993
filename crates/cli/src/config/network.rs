//! The clients of an export: networks, addresses, or all.

use ipnet::IpNet;
use serde::{Deserialize, Deserializer, de};

/// A network, a single address, or `*`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Network {
    All,
    Of(IpNet),
}

impl Network {
    /// `*` is two networks.
    pub(crate) fn of_all(list: &[Self]) -> Vec<IpNet> {
        let networks = list.iter().flat_map(|network| match network {
            Self::All => vfs::export::all_addresses().to_vec(),
            Self::Of(network) => vec![*network],
        });
        networks.collect()
    }
}

impl<'de> Deserialize<'de> for Network {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        if text == "*" {
            return Ok(Self::All);
        }
        let network = text.parse().ok();
        network
            .or_else(|| Some(IpNet::from(text.parse::<std::net::IpAddr>().ok()?)))
            .map(Self::Of)
            .ok_or_else(|| {
                de::Error::custom(format!(
                    "`{text}` is neither a network such as 10.0.0.0/24 nor an IP address, nor \"*\" \
                     for all addresses; names are not looked up"
                ))
            })
    }
}

//! `HOST:/EXPORT`, as for mount(8).

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use tokio::time::timeout;

const RESOLVE_MAX: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ServerName {
    pub host: String,
    pub export: String,
}

impl ServerName {
    pub(super) async fn resolve(&self) -> Result<IpAddr> {
        let host = self.host.as_str();
        let found = match timeout(RESOLVE_MAX, tokio::net::lookup_host((host, 0))).await {
            Ok(found) => found.with_context(|| {
                format!("cannot resolve {host}; use its address, or check /etc/hosts")
            })?,
            Err(_) => bail!("timed out resolving {host}; use its address"),
        };
        // IPv4 first, as mount does: many servers have an IPv6 address without NFS on it.
        let mut found: Vec<IpAddr> = found.map(|at| at.ip()).collect();
        found.sort_by_key(IpAddr::is_ipv6);
        found.first().copied().with_context(|| format!("{host} has no address"))
    }
}

impl FromStr for ServerName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not HOST:/EXPORT, as in filer:/srv/share");
        let (host, export) = text.split_once(":/").ok_or_else(wrong)?;
        let host = match host.strip_prefix('[') {
            Some(rest) => {
                let inside = rest.strip_suffix(']').ok_or_else(wrong)?;
                inside.parse::<Ipv6Addr>().map_err(|_| wrong())?;
                inside
            }
            None if host.is_empty() || host.contains([':', '/', ' ']) => return Err(wrong()),
            None => host,
        };
        Ok(Self { host: host.to_owned(), export: format!("/{export}") })
    }
}

impl fmt::Display for ServerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, export } = self;
        if host.contains(':') {
            write!(f, "[{host}]:{export}")
        } else {
            write!(f, "{host}:{export}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_written_as_mount_takes_them() {
        for (text, host, export) in [
            ("filer:/srv/share", "filer", "/srv/share"),
            ("10.0.0.1:/", "10.0.0.1", "/"),
            ("[fd00::7]:/srv", "fd00::7", "/srv"),
            ("filer:/a:/b", "filer", "/a:/b"),
        ] {
            let name: ServerName = text.parse().unwrap();
            assert_eq!((name.host.as_str(), name.export.as_str()), (host, export));
            assert_eq!(name.to_string(), text);
        }
        for text in
            ["", "filer", "filer:srv", ":/srv", "/srv", "fd00::7:/srv", "[filer]:/srv", "a b:/"]
        {
            assert!(text.parse::<ServerName>().is_err(), "{text}");
        }
    }
}

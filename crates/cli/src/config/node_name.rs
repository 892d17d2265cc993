//! Names of servers that share a store (B8.76). They stand in commands, in lists with one name per line, and in
//! the environment of hooks, so nothing in them may mean anything there.

use serde::{Deserialize, Deserializer};

/// As for a host name in full.
const LENGTH_MAX: usize = 253;

/// The name, if it is one.
pub(crate) fn parse(name: &str) -> Result<String, String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if (1..=LENGTH_MAX).contains(&name.len()) && name.bytes().all(plain) {
        return Ok(name.to_owned());
    }
    Err(format!(
        "{name:?} is no node name: it has 1 to {LENGTH_MAX} letters, digits, dots, underscores and \
         hyphens"
    ))
}

pub(crate) fn optional<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    let name = Option::<String>::deserialize(from)?;
    name.map(|name| parse(&name).map_err(serde::de::Error::custom)).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_name_is_plain() {
        for name in ["n1", "filer-a", "filer_a.example.com", "7"] {
            assert_eq!(parse(name).as_deref(), Ok(name));
        }
        let long = "x".repeat(LENGTH_MAX + 1);
        for name in ["", "a b", "a\nb", "a;reboot", "$(id)", "a/b", "\u{fc}", "a\u{202e}b", &long] {
            assert!(parse(name).is_err(), "{name:?}");
        }
    }
}

//! Opaque bytes from peers (B7.3): compared as bytes, shared without copying, escaped when
//! displayed.

use std::fmt;
use std::sync::Arc;

macro_rules! opaque {
    ($($(#[$meta:meta])* $name:ident)*) => {$(
        $(#[$meta])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<[u8]>);

        impl $name {
            /// Copies the bytes.
            pub fn new(bytes: &[u8]) -> Self {
                Self(Arc::from(bytes))
            }

            /// The bytes, unescaped.
            pub fn bytes(&self) -> &[u8] {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self::new(text.as_bytes())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.escape_ascii().fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "\"{self}\"")
            }
        }
    )*};
}

opaque! {
    /// The name of a machine or service, as given by itself or by a peer.
    Name
    /// The identity of a file: file-system id and kernel handle (B2.2), independent of the export,
    /// link or NFS handle it was reached by.
    FileKey
    /// The handle bytes as the client sent them; a callback must repeat them exactly.
    Handle
    /// What a client adds to a process number to tell its lock owners apart (`oh`).
    OwnerTag
}

impl Name {
    /// The address that the name spells, canonical.
    pub(crate) fn as_address(&self) -> Option<std::net::IpAddr> {
        let address: std::net::IpAddr = std::str::from_utf8(self.bytes()).ok()?.parse().ok()?;
        Some(address.to_canonical())
    }

    /// Whether both name one machine: equal ignoring case, or one is the first label of the other.
    /// Full names with different domains are different machines.
    pub fn names_same_machine(&self, other: &Name) -> bool {
        let (ours, theirs) = (self.bytes(), other.bytes());
        if ours.eq_ignore_ascii_case(theirs) {
            return true;
        }
        let (short, long) = if ours.len() < theirs.len() { (ours, theirs) } else { (theirs, ours) };
        !short.is_empty()
            && !short.contains(&b'.')
            && long.get(short.len()) == Some(&b'.')
            && long.get(..short.len()).is_some_and(|label| label.eq_ignore_ascii_case(short))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_name_names_the_same_machine_as_its_full_name() {
        let same = |a: &str, b: &str| Name::from(a).names_same_machine(&Name::from(b));
        assert!(same("alice", "ALICE"));
        assert!(same("alice", "alice.example.com"));
        assert!(same("Alice.example.com", "alice"));
        assert!(!same("alice.a", "alice.b"));
        assert!(!same("client1", "client10"));
        assert!(!same("alice.example", "alice.example.com"));
        assert!(!same("", ".example.com"));
    }

    #[test]
    fn hostile_bytes_are_escaped() {
        assert_eq!(Name::new(b"a\x1b[31m\n").to_string(), "a\\x1b[31m\\n");
    }
}

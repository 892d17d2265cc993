//! The shape of a load: the number of connections, and of outstanding calls on each.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    pub connections: usize,
    pub depth: usize,
}

impl Shape {
    /// One connection, one call at a time.
    pub const SINGLE: Self = Self { connections: 1, depth: 1 };
    pub const MEDIUM: Self = Self { connections: 4, depth: 8 };
    pub const HIGH: Self = Self { connections: 8, depth: 16 };
    pub const ALL: [Self; 3] = [Self::SINGLE, Self::MEDIUM, Self::HIGH];

    /// A bound against mistyped arguments.
    const MAX: usize = 256;
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}x{}", self.connections, self.depth))
    }
}

impl FromStr for Shape {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not a shape such as 4x8, with 1 to {} each", Self::MAX);
        let (connections, depth) = text.split_once('x').ok_or_else(wrong)?;
        let number = |text: &str| text.parse().ok().filter(|n| (1..=Self::MAX).contains(n));
        Ok(Self {
            connections: number(connections).ok_or_else(wrong)?,
            depth: number(depth).ok_or_else(wrong)?,
        })
    }
}

impl Serialize for Shape {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_read_as_they_are_written() {
        for shape in Shape::ALL {
            assert_eq!(shape.to_string().parse(), Ok(shape));
        }
        for text in ["", "4", "x", "0x1", "4x0", "4x8x2", "257x1", "-1x1"] {
            assert!(text.parse::<Shape>().is_err(), "{text}");
        }
    }
}

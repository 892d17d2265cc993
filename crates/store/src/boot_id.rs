//! The kernel's boot id: tells one start of the machine from another.

use std::fs;
use std::io;

/// Identifies one start of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BootId(pub [u8; 16]);

impl BootId {
    /// Reads `/proc/sys/kernel/random/boot_id`.
    pub fn of_this_machine() -> io::Result<Self> {
        let text = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
        let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
        match u128::from_str_radix(&digits, 16) {
            Ok(number) if digits.len() == 32 => Ok(Self(number.to_be_bytes())),
            _ => Err(io::Error::other(format!("the kernel's boot id is malformed: {text:?}"))),
        }
    }
}

//! File handles: what a client shows to name a file.
//!
//! ```text
//! 0        version, 1
//! 1..5     export id
//! 5..13    file-system id
//! 13       length of the object id, n
//! 14..     object id
//! 14+n..   SipHash-2-4 of all before, keyed with the server's secret
//! ```
//! The MAC makes a handle a capability: nobody reaches a file by guessing inode numbers, and a
//! flipped bit is noticed before any file system is asked. Zeros may follow, because MOUNT v1
//! gives handles of a fixed 32 bytes.

use std::hash::Hasher;

use siphasher::sip::SipHasher24;

use crate::{Error, ObjectId, Result};

/// A file system, for ever: derived from its UUID or configured, never from a device number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileSystemId(pub u64);

/// A file, whatever export, link or handle it was reached by. Locks belong to this.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileKey {
    pub filesystem: FileSystemId,
    pub object: ObjectId,
}

/// A handle that was checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opened {
    pub export: u32,
    pub file: FileKey,
}

/// The secret that handles are sealed with.
#[derive(Clone)]
pub struct HandleKey([u8; 16]);

const VERSION: u8 = 1;
const HEAD: usize = 14;
const MAC: usize = 8;
pub const HANDLE_MAX: usize = HEAD + ObjectId::MAX + MAC;

impl HandleKey {
    pub fn new(secret: [u8; 16]) -> Self {
        Self(secret)
    }

    /// The handle of `file` under `export`: at most [`HANDLE_MAX`] bytes.
    pub fn seal(&self, export: u32, file: &FileKey) -> SealedHandle {
        let object = file.object.as_bytes();
        let mut bytes = [0; HANDLE_MAX];
        bytes[0] = VERSION;
        bytes[1..5].copy_from_slice(&export.to_be_bytes());
        bytes[5..13].copy_from_slice(&file.filesystem.0.to_be_bytes());
        bytes[13] = object.len() as u8;
        let end = HEAD + object.len();
        bytes[HEAD..end].copy_from_slice(object);
        let mac = self.mac(&bytes[..end]);
        bytes[end..end + MAC].copy_from_slice(&mac);
        SealedHandle { length: end + MAC, bytes }
    }

    /// What a handle names, without asking any file system.
    pub fn open(&self, handle: &[u8]) -> Result<Opened> {
        let parts = || {
            let (head, rest) = handle.split_first_chunk::<HEAD>()?;
            let (object, rest) = rest.split_at_checked(usize::from(head[13]))?;
            let (mac, padding) = rest.split_first_chunk::<MAC>()?;
            let signed = &handle[..HEAD + object.len()];
            let ours = self.mac(signed);
            // All bytes are looked at, so that time tells nothing about where they differ.
            let differs = mac.iter().zip(ours).fold(0, |sum, (a, b)| sum | (a ^ b));
            let clean = differs == 0 && head[0] == VERSION && padding.iter().all(|b| *b == 0);
            clean.then_some(())?;
            let export = u32::from_be_bytes(*head[1..].first_chunk()?);
            let filesystem = FileSystemId(u64::from_be_bytes(*head[5..].first_chunk()?));
            let file = FileKey { filesystem, object: ObjectId::new(object)? };
            Some(Opened { export, file })
        };
        parts().ok_or(Error::BadHandle)
    }

    fn mac(&self, bytes: &[u8]) -> [u8; MAC] {
        let mut hasher = SipHasher24::new_with_key(&self.0);
        hasher.write(bytes);
        hasher.finish().to_be_bytes()
    }
}

#[derive(Clone, Copy)]
pub struct SealedHandle {
    length: usize,
    bytes: [u8; HANDLE_MAX],
}

impl SealedHandle {
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(object: &[u8]) -> FileKey {
        FileKey { filesystem: FileSystemId(0x0102_0304), object: ObjectId::new(object).unwrap() }
    }

    #[test]
    fn a_handle_leads_back_to_its_file() {
        let key = HandleKey::new([3; 16]);
        for object in [&b""[..], b"x", &[0xff; ObjectId::MAX]] {
            let sealed = key.seal(77, &sample(object));
            assert!(sealed.as_bytes().len() <= 64);
            let opened = key.open(sealed.as_bytes()).unwrap();
            assert_eq!(opened, Opened { export: 77, file: sample(object) });
        }
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let key = HandleKey::new([3; 16]);
        let good = key.seal(1, &sample(b"inode and generation"));
        for bit in 0..good.as_bytes().len() * 8 {
            let mut bad = good.as_bytes().to_vec();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(key.open(&bad), Err(Error::BadHandle), "bit {bit}");
        }
    }

    #[test]
    fn a_cut_handle_and_another_key_are_refused_and_zero_padding_is_not() {
        let key = HandleKey::new([3; 16]);
        let good = key.seal(1, &sample(b"12345678"));
        for length in 0..good.as_bytes().len() {
            assert_eq!(key.open(&good.as_bytes()[..length]), Err(Error::BadHandle));
        }
        assert_eq!(HandleKey::new([4; 16]).open(good.as_bytes()), Err(Error::BadHandle));
        let mut padded = good.as_bytes().to_vec();
        padded.resize(32, 0);
        assert!(key.open(&padded).is_ok());
        padded[31] = 1;
        assert_eq!(key.open(&padded), Err(Error::BadHandle));
    }
}

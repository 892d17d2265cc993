//! File handles as clients see them.
//!
//! ```text
//! 0        version, 1
//! 1..5     export id
//! 5..13    file-system id
//! 13       length of the object id, n
//! 14..     object id
//! 14+n..   SipHash-2-4 of all before, keyed with the server's secret
//! ```
//! Integers are big-endian. The MAC makes a handle a capability: inode numbers cannot be guessed,
//! and a corrupted handle never reaches a file system. Zeros may follow the MAC, because handles of
//! MOUNT v1 have a fixed length of 32 bytes.

use std::hash::Hasher;

use siphasher::sip::SipHasher24;

use crate::{Error, ObjectId, Result};

/// The permanent id of a file system: configured, or derived from its UUID; never from a device
/// number, which changes between boots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileSystemId(pub u64);

/// Identifies a file independently of the export, name or handle by which it was reached. Locks
/// are keyed by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileKey {
    /// The file system.
    pub filesystem: FileSystemId,
    /// The object in it.
    pub object: ObjectId,
}

/// The content of a handle whose MAC was correct.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VerifiedHandle {
    /// The id of the export through which the handle was given out.
    pub export: u32,
    /// The file that it names.
    pub file: FileKey,
}

/// The secret key that handles are signed with. Clients keep handles across restarts, so the key
/// must be the same after each; see [`secrets`](crate::secrets).
#[derive(Clone)]
pub struct HandleKey([u8; 16]);

const VERSION: u8 = 1;
const HEAD: usize = 14;
const MAC: usize = 8;
const HANDLE_MAX: usize = HEAD + ObjectId::MAX + MAC;

impl HandleKey {
    /// A key of 128 random bits.
    pub fn new(secret: [u8; 16]) -> Self {
        Self(secret)
    }

    /// The handle of `file` under `export`: at most 64 bytes.
    #[doc(hidden)]
    pub fn sign(&self, export: u32, file: &FileKey) -> SignedHandle {
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
        SignedHandle { length: end + MAC, bytes }
    }

    /// The content of a handle that [`sign`](HandleKey::sign) made with this key, else
    /// [`Error::BadHandle`]. Does no I/O, so a lock on a deleted file can still be released.
    #[doc(hidden)]
    pub fn verify(&self, handle: &[u8]) -> Result<VerifiedHandle> {
        let parts = || {
            let (head, rest) = handle.split_first_chunk::<HEAD>()?;
            let (object, rest) = rest.split_at_checked(usize::from(head[13]))?;
            let (mac, padding) = rest.split_first_chunk::<MAC>()?;
            let signed = &handle[..HEAD + object.len()];
            let ours = self.mac(signed);
            // In constant time, so that timing does not reveal a correct prefix.
            let differs = mac.iter().zip(ours).fold(0, |sum, (a, b)| sum | (a ^ b));
            let clean = differs == 0 && head[0] == VERSION && padding.iter().all(|b| *b == 0);
            clean.then_some(())?;
            let export = u32::from_be_bytes(*head[1..].first_chunk()?);
            let filesystem = FileSystemId(u64::from_be_bytes(*head[5..].first_chunk()?));
            let file = FileKey { filesystem, object: ObjectId::new(object)? };
            Some(VerifiedHandle { export, file })
        };
        parts().ok_or(Error::BadHandle)
    }

    fn mac(&self, bytes: &[u8]) -> [u8; MAC] {
        let mut hasher = SipHasher24::new_with_key(&self.0);
        hasher.write(bytes);
        hasher.finish().to_be_bytes()
    }
}

/// The bytes of a handle.
#[derive(Clone, Copy)]
pub struct SignedHandle {
    length: usize,
    bytes: [u8; HANDLE_MAX],
}

impl SignedHandle {
    /// As sent to clients.
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
            let signed = key.sign(77, &sample(object));
            assert!(signed.as_bytes().len() <= 64);
            let verified = key.verify(signed.as_bytes()).unwrap();
            assert_eq!(verified, VerifiedHandle { export: 77, file: sample(object) });
        }
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let key = HandleKey::new([3; 16]);
        let good = key.sign(1, &sample(b"inode and generation"));
        for bit in 0..good.as_bytes().len() * 8 {
            let mut bad = good.as_bytes().to_vec();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(key.verify(&bad), Err(Error::BadHandle), "bit {bit}");
        }
    }

    #[test]
    fn a_cut_handle_and_another_key_are_refused_and_zero_padding_is_not() {
        let key = HandleKey::new([3; 16]);
        let good = key.sign(1, &sample(b"12345678"));
        for length in 0..good.as_bytes().len() {
            assert_eq!(key.verify(&good.as_bytes()[..length]), Err(Error::BadHandle));
        }
        assert_eq!(HandleKey::new([4; 16]).verify(good.as_bytes()), Err(Error::BadHandle));
        let mut padded = good.as_bytes().to_vec();
        padded.resize(32, 0);
        assert!(key.verify(&padded).is_ok());
        padded[31] = 1;
        assert_eq!(key.verify(&padded), Err(Error::BadHandle));
    }
}

//! Parts of an X.509 certificate (RFC 5280, 4.1) that rustls does not show: the public key, and the hash
//! to which SCRAM binds a channel (`tls-server-end-point`, RFC 5929).

use ring::digest::{self, Algorithm, SHA256, SHA384, SHA512};

const SEQUENCE: u8 = 0x30;
const OBJECT_IDENTIFIER: u8 = 0x06;
/// The version, which is optional.
const VERSION: u8 = 0xa0;

/// Signature algorithms by the encoding of their identifiers, with the hash that RFC 5929 has for each.
/// Others, such as Ed25519, define none.
const HASHES: [(&[u8], &Algorithm); 9] = [
    // md5WithRSAEncryption to sha512WithRSAEncryption; MD5 and SHA-1 are replaced by SHA-256.
    (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 4], &SHA256),
    (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 5], &SHA256),
    (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 11], &SHA256),
    (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 12], &SHA384),
    (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 13], &SHA512),
    // ecdsa-with-SHA1 to ecdsa-with-SHA512
    (&[0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 1], &SHA256),
    (&[0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2], &SHA256),
    (&[0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 3], &SHA384),
    (&[0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 4], &SHA512),
];

/// `None` if the signature algorithm has no hash of its own.
pub(super) fn channel_binding(certificate: &[u8]) -> Option<Vec<u8>> {
    let mut parts = Der(Der(certificate).next(SEQUENCE)?.contents);
    parts.next(SEQUENCE)?;
    let identifier = Der(parts.next(SEQUENCE)?.contents).next(OBJECT_IDENTIFIER)?.contents;
    let (_, hash) = HASHES.iter().find(|(known, _)| *known == identifier)?;
    Some(digest::digest(hash, certificate).as_ref().to_vec())
}

/// The SubjectPublicKeyInfo, as it is encoded.
pub(super) fn public_key(certificate: &[u8]) -> Option<&[u8]> {
    let mut parts = Der(Der(Der(certificate).next(SEQUENCE)?.contents).next(SEQUENCE)?.contents);
    if parts.0.first() == Some(&VERSION) {
        parts.any()?;
    }
    // serialNumber, signature, issuer, validity, subject
    for _ in 0..5 {
        parts.any()?;
    }
    Some(parts.next(SEQUENCE)?.whole)
}

/// What is left of a sequence of values.
struct Der<'a>(&'a [u8]);

struct Value<'a> {
    tag: u8,
    whole: &'a [u8],
    contents: &'a [u8],
}

impl<'a> Der<'a> {
    fn next(&mut self, tag: u8) -> Option<Value<'a>> {
        self.any().filter(|value| value.tag == tag)
    }

    fn any(&mut self) -> Option<Value<'a>> {
        let (&tag, after) = self.0.split_first()?;
        let (&first, after) = after.split_first()?;
        let (length, after) = match first {
            0..=0x7f => (usize::from(first), after),
            // A certificate is shorter than 16 MiB.
            0x81..=0x83 => {
                let (length, after) = after.split_at_checked(usize::from(first & 0x7f))?;
                (length.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)), after)
            }
            _ => return None,
        };
        let (contents, rest) = after.split_at_checked(length)?;
        let whole = self.0.get(..self.0.len() - rest.len())?;
        self.0 = rest;
        Some(Value { tag, whole, contents })
    }
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject as _;

    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// B5.96: as `openssl x509 -fingerprint -sha256` and `openssl pkey -pubin -outform DER` have them.
    #[test]
    fn hash_and_key_are_those_that_openssl_finds() {
        let pem = include_bytes!("fixtures/server.crt");
        let certificate = CertificateDer::from_pem_slice(pem).unwrap();
        let hash = channel_binding(&certificate).unwrap();
        let expected = "0cdeffc22ad977128dcd3481f00dad729ab91b33d63b1fb12beae91e3db8a426";
        assert_eq!(hex(&hash), expected);
        let key = digest::digest(&SHA256, public_key(&certificate).unwrap());
        let expected = "81916d841968350577db583324b7cb1a45363bad18cff0829c12980a91560e56";
        assert_eq!(hex(key.as_ref()), expected);
    }

    #[test]
    fn a_certificate_that_is_cut_off_has_neither() {
        let pem = include_bytes!("fixtures/server.crt");
        let certificate = CertificateDer::from_pem_slice(pem).unwrap();
        for length in 0..certificate.len() {
            let part = &certificate[..length];
            assert_eq!((channel_binding(part), public_key(part)), (None, None), "{length}");
        }
    }
}

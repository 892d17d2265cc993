//! Whether the database's server is trusted, by its certificate.

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{
    WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature_with_raw_key,
};
use rustls::pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

use super::certificate;

/// What is verified of a server's certificate. In any case the server must have its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Check {
    Nothing,
    /// `verify-ca`: everything but the name.
    Issuer,
    /// `verify-full`
    IssuerAndName,
}

#[derive(Debug)]
pub(super) struct Verifier {
    check: Check,
    roots: RootCertStore,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Verifier {
    pub(super) fn new(
        check: Check,
        roots: RootCertStore,
        algorithms: WebPkiSupportedAlgorithms,
    ) -> Self {
        Self { check, roots, algorithms }
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if self.check == Check::Nothing {
            return Ok(ServerCertVerified::assertion());
        }
        let certificate = ParsedCertificate::try_from(certificate)?;
        verify_server_cert_signed_by_trust_anchor(
            &certificate,
            &self.roots,
            intermediates,
            now,
            self.algorithms.all,
        )?;
        if self.check == Check::IssuerAndName {
            verify_server_name(&certificate, name)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    /// By the key alone: a certificate of version 1, as older recipes make them, is good enough for
    /// [`Check::Nothing`], and its other parts have been verified for the others.
    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let key = certificate::public_key(certificate)
            .ok_or(Error::InvalidCertificate(CertificateError::BadEncoding))?;
        let key = SubjectPublicKeyInfoDer::from(key);
        verify_tls13_signature_with_raw_key(message, &key, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustls::crypto::ring::default_provider;
    use rustls::pki_types::pem::PemObject as _;

    use super::*;

    const OURS: &[u8] = include_bytes!("fixtures/ours.crt");
    const THEIRS: &[u8] = include_bytes!("fixtures/theirs.crt");
    /// Issued by `ours` for db.example.com and 192.0.2.7, valid in 2026; its common name is another.
    const SERVER: &[u8] = include_bytes!("fixtures/server.crt");
    /// June of 2026, in seconds.
    const VALID: u64 = 1_780_272_000;
    const YEAR: u64 = 31_536_000;

    fn certificate(pem: &[u8]) -> CertificateDer<'static> {
        CertificateDer::from_pem_slice(pem).unwrap()
    }

    fn accepts(check: Check, root: &[u8], name: &str, now: u64) -> Result<(), CertificateError> {
        let mut roots = RootCertStore::empty();
        roots.add(certificate(root)).unwrap();
        let algorithms = default_provider().signature_verification_algorithms;
        let verifier = Verifier::new(check, roots, algorithms);
        let name = ServerName::try_from(name).unwrap();
        let now = UnixTime::since_unix_epoch(Duration::from_secs(now));
        match verifier.verify_server_cert(&certificate(SERVER), &[], &name, &[], now) {
            Ok(_) => Ok(()),
            Err(Error::InvalidCertificate(why)) => Err(why),
            Err(other) => panic!("{other}"),
        }
    }

    /// B5.91
    #[test]
    fn verify_ca_tolerates_the_name_and_nothing_else() {
        assert_eq!(accepts(Check::Issuer, OURS, "other.example.com", VALID), Ok(()));
        for name in ["other.example.com", "db.example.com"] {
            let refused = accepts(Check::Issuer, THEIRS, name, VALID).unwrap_err();
            assert_eq!(refused, CertificateError::UnknownIssuer);
            let refused = accepts(Check::Issuer, OURS, name, VALID + YEAR).unwrap_err();
            assert!(matches!(refused, CertificateError::ExpiredContext { .. }), "{refused}");
            let refused = accepts(Check::Issuer, OURS, name, VALID - YEAR).unwrap_err();
            assert!(matches!(refused, CertificateError::NotValidYetContext { .. }), "{refused}");
        }
    }

    /// B5.91
    #[test]
    fn verify_full_compares_names_and_addresses_as_well() {
        let full = |name| accepts(Check::IssuerAndName, OURS, name, VALID);
        assert_eq!((full("db.example.com"), full("192.0.2.7")), (Ok(()), Ok(())));
        for name in ["other.example.com", "ignored.example.com", "192.0.2.8"] {
            let refused = full(name).unwrap_err();
            assert!(
                matches!(refused, CertificateError::NotValidForNameContext { .. }),
                "{refused}"
            );
        }
        accepts(Check::IssuerAndName, THEIRS, "db.example.com", VALID).unwrap_err();
        accepts(Check::IssuerAndName, OURS, "db.example.com", VALID + YEAR).unwrap_err();
    }

    /// B5.90
    #[test]
    fn without_a_root_every_certificate_is_accepted() {
        assert_eq!(accepts(Check::Nothing, THEIRS, "other.example.com", VALID + YEAR), Ok(()));
    }
}

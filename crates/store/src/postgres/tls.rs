//! TLS with the database: `sslmode` and the certificates, as libpq means them
//! (<https://www.postgresql.org/docs/current/libpq-ssl.html>).

mod certificate;
mod connector;
mod refusal;
mod verifier;

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use super::url::OwnParameters;
use crate::error::StoreError;
pub(super) use connector::Connector;
pub(super) use refusal::refusal;
use verifier::{Check, Verifier};

/// What `sslrootcert=system` stands for: the first of these that exists.
const SYSTEM_ROOTS: [&str; 3] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
];
/// The application protocol, without which a server refuses `sslnegotiation=direct`.
const PROTOCOL: &[u8] = b"postgresql";

/// How far the connection is protected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum SslMode {
    Disable,
    /// TLS if the server refuses a connection without.
    Allow,
    /// TLS if the server offers it.
    #[default]
    Prefer,
    /// TLS, with any certificate unless there is a root certificate.
    Require,
    /// TLS, with a certificate that a trusted authority issued.
    VerifyCa,
    /// The same, and it must be for the host of the url.
    VerifyFull,
}

impl FromStr for SslMode {
    type Err = StoreError;

    fn from_str(text: &str) -> Result<Self, StoreError> {
        Ok(match text {
            "disable" => Self::Disable,
            "allow" => Self::Allow,
            "prefer" => Self::Prefer,
            "require" => Self::Require,
            "verify-ca" => Self::VerifyCa,
            "verify-full" => Self::VerifyFull,
            _ => {
                return Err(StoreError::BadSettings(format!(
                    "sslmode={text}: expected disable, allow, prefer, require, verify-ca or verify-full"
                )));
            }
        })
    }
}

/// One way to open a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attempt {
    Plain,
    /// With TLS if the server offers it.
    Offered,
    Encrypted,
}

/// Which certificates the servers must have, and which one this client has.
#[derive(Clone, Debug)]
pub(super) struct TlsSettings {
    mode: SslMode,
    roots: Option<Roots>,
    /// Certificate and key.
    identity: Option<(PathBuf, PathBuf)>,
}

#[derive(Clone, Debug)]
enum Roots {
    System,
    File(PathBuf),
}

impl TlsSettings {
    /// Certificates that the url does not name are those in `~/.postgresql`, if they exist.
    pub(super) fn new(own: &OwnParameters, home: Option<&Path>) -> Result<Self, StoreError> {
        let usual = |name: &str| {
            let path = home.map(|home| home.join(".postgresql").join(name));
            path.filter(|path| path.exists())
        };
        let roots = match &own.root_certificate {
            Some(system) if system.as_os_str() == "system" => Some(Roots::System),
            named => named.clone().or_else(|| usual("root.crt")).map(Roots::File),
        };
        let is_system = matches!(roots, Some(Roots::System));
        let mode = match own.ssl_mode {
            None if is_system => SslMode::VerifyFull,
            mode => mode.unwrap_or_default(),
        };
        let bad = |what: &str| Err(StoreError::BadSettings(what.to_owned()));
        // Anyone can have a certificate of a public authority, for a name of his own.
        if is_system && mode != SslMode::VerifyFull {
            return bad("sslrootcert=system needs sslmode=verify-full");
        }
        if matches!(mode, SslMode::VerifyCa | SslMode::VerifyFull) && roots.is_none() {
            return bad(
                "sslmode=verify-ca and verify-full need the certificate of the authority that issued \
                 the database's: sslrootcert=/PATH in the url (or system, for the authorities that \
                 this machine trusts), or ~/.postgresql/root.crt",
            );
        }
        let certificate = own.client_certificate.clone().or_else(|| usual("postgresql.crt"));
        let key = own.client_key.clone().or_else(|| usual("postgresql.key"));
        let identity = match (certificate, key) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (Some(_), None) => {
                return bad("sslcert needs its key: sslkey=/PATH, or ~/.postgresql/postgresql.key");
            }
            (None, _) => None,
        };
        Ok(Self { mode, roots, identity })
    }

    /// Ways to connect, of which the first that succeeds is taken. There is no TLS over unix sockets.
    pub(super) fn attempts(&self, is_unix_socket: bool) -> &'static [Attempt] {
        match self.mode {
            _ if is_unix_socket => &[Attempt::Plain],
            SslMode::Disable => &[Attempt::Plain],
            SslMode::Allow => &[Attempt::Plain, Attempt::Encrypted],
            SslMode::Prefer => &[Attempt::Offered, Attempt::Plain],
            SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull => &[Attempt::Encrypted],
        }
    }

    pub(super) fn is_disabled(&self) -> bool {
        self.mode == SslMode::Disable
    }

    pub(super) fn has_identity(&self) -> bool {
        self.identity.is_some()
    }

    /// Reads the certificates: each connection does, so that renewed ones are used without a restart.
    pub(super) fn connector(&self) -> Result<Connector, StoreError> {
        let wrong = |error: rustls::Error| StoreError::BadSettings(format!("TLS: {error}"));
        let provider = Arc::new(default_provider());
        let check = match (&self.roots, self.mode) {
            (None, _) => Check::Nothing,
            (Some(_), SslMode::VerifyFull) => Check::IssuerAndName,
            (Some(_), _) => Check::Issuer,
        };
        let verifier =
            Verifier::new(check, self.roots()?, provider.signature_verification_algorithms);
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(wrong)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
        let mut config = match &self.identity {
            None => config.with_no_client_auth(),
            Some((certificate, key)) => {
                let wrong = |error: rustls::Error| {
                    let (certificate, key) = (certificate.display(), key.display());
                    StoreError::BadSettings(format!(
                        "certificate {certificate} and key {key}: {error}"
                    ))
                };
                config
                    .with_client_auth_cert(certificates(certificate)?, private_key(key)?)
                    .map_err(wrong)?
            }
        };
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        config.resumption = Resumption::disabled();
        Ok(Connector::new(config))
    }

    fn roots(&self) -> Result<RootCertStore, StoreError> {
        let mut store = RootCertStore::empty();
        let path = match &self.roots {
            None => return Ok(store),
            Some(Roots::File(path)) => path.as_path(),
            Some(Roots::System) => system_roots()?,
        };
        let (added, _) = store.add_parsable_certificates(certificates(path)?);
        if added == 0 {
            return Err(unusable(path, "it has no certificate of an authority"));
        }
        Ok(store)
    }

    /// The source of trust, for error messages.
    fn roots_shown(&self) -> String {
        match &self.roots {
            Some(Roots::File(path)) => path.display().to_string(),
            Some(Roots::System) => "the authorities that this machine trusts".into(),
            None => "no root certificate".into(),
        }
    }
}

fn system_roots() -> Result<&'static Path, StoreError> {
    let found = SYSTEM_ROOTS.iter().map(Path::new).find(|path| path.exists());
    found.ok_or_else(|| {
        StoreError::BadSettings(format!(
            "sslrootcert=system: none of {} exists; install ca-certificates, or name a file",
            SYSTEM_ROOTS.join(", ")
        ))
    })
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, StoreError> {
    let pem = fs::read(path).map_err(|error| unusable(path, &error.to_string()))?;
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    let certificates = read.map_err(|error| unusable(path, &error.to_string()))?;
    match certificates.is_empty() {
        true => Err(unusable(path, "it has no certificate in PEM form (BEGIN CERTIFICATE)")),
        false => Ok(certificates),
    }
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, StoreError> {
    let metadata = fs::metadata(path).map_err(|error| unusable(path, &error.to_string()))?;
    // As libpq: a key of root's may be readable by a group.
    let others = if metadata.uid() == 0 { 0o037 } else { 0o077 };
    if metadata.mode() & others != 0 {
        return Err(unusable(path, "others can read this key: chmod 600, or 640 if it is root's"));
    }
    let pem = fs::read(path).map_err(|error| unusable(path, &error.to_string()))?;
    PrivateKeyDer::from_pem_slice(&pem).map_err(|_| {
        unusable(path, "it has no private key in PEM form, or an encrypted one: openssl pkey -in")
    })
}

fn unusable(path: &Path, why: &str) -> StoreError {
    StoreError::BadSettings(format!("{}: {why}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// B5.90
    #[test]
    fn only_allow_and_prefer_go_on_without_tls() {
        let attempts = |mode: SslMode, is_unix_socket| {
            TlsSettings { mode, roots: None, identity: None }.attempts(is_unix_socket)
        };
        for (mode, expected) in [
            (SslMode::Disable, &[Attempt::Plain][..]),
            (SslMode::Allow, &[Attempt::Plain, Attempt::Encrypted]),
            (SslMode::Prefer, &[Attempt::Offered, Attempt::Plain]),
            (SslMode::Require, &[Attempt::Encrypted]),
            (SslMode::VerifyCa, &[Attempt::Encrypted]),
            (SslMode::VerifyFull, &[Attempt::Encrypted]),
        ] {
            assert_eq!(attempts(mode, false), expected, "{mode:?}");
            assert_eq!(attempts(mode, true), [Attempt::Plain], "{mode:?}");
        }
    }
}

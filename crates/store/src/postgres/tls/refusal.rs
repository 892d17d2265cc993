//! Why TLS with the database failed, and what to do about it.

use std::error::Error as _;
use std::io;

use rustls::{CertificateError, Error};

use super::{SslMode, TlsSettings};

/// What tokio-postgres says of a server that answered its request for TLS with `N`.
const LACKS_TLS: &str = "server does not support TLS";

/// Whether the server does not offer the TLS that was required.
fn lacks_tls(error: &tokio_postgres::Error) -> bool {
    error.source().is_some_and(|source| source.to_string() == LACKS_TLS)
}

/// Why TLS failed, if that is what failed; with what to do about it.
pub(in crate::postgres) fn refusal(
    error: &tokio_postgres::Error,
    settings: &TlsSettings,
    host: &str,
) -> Option<String> {
    if lacks_tls(error) {
        return Some(format!(
            "its server offers no TLS, which sslmode={} requires: set ssl = on, ssl_cert_file and \
             ssl_key_file in its postgresql.conf and reload it",
            settings.mode.name()
        ));
    }
    let error = error.source()?.downcast_ref::<io::Error>()?.get_ref()?.downcast_ref::<Error>()?;
    Some(match error {
        Error::InvalidCertificate(why) => certificate_refused(why, settings, host),
        Error::AlertReceived(alert) => format!(
            "its server ended the TLS handshake ({alert:?}): it may demand a client certificate that \
             its ssl_ca_file has issued (sslcert and sslkey in the url); its log says why"
        ),
        other => format!("the TLS handshake failed: {other}"),
    })
}

fn certificate_refused(why: &CertificateError, settings: &TlsSettings, host: &str) -> String {
    match why {
        CertificateError::UnknownIssuer => format!(
            "the certificate of its server was issued by an authority that is not in {}: set \
             sslrootcert in the url to the certificate of that authority",
            settings.roots_shown()
        ),
        CertificateError::NotValidForNameContext { presented, .. } => {
            let names = match presented.is_empty() {
                true => "no name (subjectAltName; the common name does not count)".to_owned(),
                false => presented.iter().map(|name| bare(name)).collect::<Vec<_>>().join(", "),
            };
            format!(
                "the certificate of its server is for {names}, not for {host}: connect by one of its \
                 names (with hostaddr=ADDRESS if it does not resolve), or have one issued with this \
                 name"
            )
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            format!(
                "the certificate of its server has expired, or this clock is wrong ({why}): renew it"
            )
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            format!(
                "the certificate of its server is not yet valid, or this clock is wrong ({why})"
            )
        }
        other => format!(
            "the certificate of its server cannot be verified ({other}): it must be of version 3, \
             have a subjectAltName and not be that of an authority (CA:FALSE)"
        ),
    }
}

/// `DnsName("db")` as `db`, `IpAddress(::1)` as `::1`.
fn bare(presented: &str) -> &str {
    let inner = presented.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')'));
    inner.unwrap_or(presented).trim_matches('"')
}

impl SslMode {
    fn name(self) -> &'static str {
        match self {
            Self::Disable => "disable",
            Self::Allow => "allow",
            Self::Prefer => "prefer",
            Self::Require => "require",
            Self::VerifyCa => "verify-ca",
            Self::VerifyFull => "verify-full",
        }
    }
}

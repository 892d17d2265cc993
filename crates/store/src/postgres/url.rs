//! The database's URL: takes the parameters out of it that tokio-postgres does not know, and means them
//! as libpq does (<https://www.postgresql.org/docs/current/libpq-connect.html>).

use std::path::PathBuf;
use std::str::FromStr;

use percent_encoding::percent_decode_str;

use super::tls::SslMode;
use crate::error::StoreError;

const SCHEMES: [&str; 2] = ["postgres://", "postgresql://"];

/// Parameters that are not for tokio-postgres. It parses `sslmode` as well, but not all its values.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct OwnParameters {
    pub(super) ssl_mode: Option<SslMode>,
    pub(super) root_certificate: Option<PathBuf>,
    pub(super) client_certificate: Option<PathBuf>,
    pub(super) client_key: Option<PathBuf>,
    pub(super) passfile: Option<PathBuf>,
}

impl OwnParameters {
    /// The parameters, and the url without them. Both forms of libpq's connection strings.
    pub(super) fn take_from(url: &str) -> Result<(Self, String), StoreError> {
        let mut own = Self::default();
        let rest = match SCHEMES.iter().find(|scheme| url.starts_with(**scheme)) {
            Some(scheme) => own.take_from_uri(url, scheme.len())?,
            None => own.take_from_pairs(url)?,
        };
        Ok((own, rest))
    }

    fn take_from_uri(&mut self, url: &str, authority: usize) -> Result<String, StoreError> {
        // A user name or password may contain a question mark.
        let host = url.find('@').map_or(authority, |at| at + 1);
        let (before, query) = url.split_at(host);
        let Some((place, query)) = query.split_once('?') else { return Ok(url.to_owned()) };
        let mut kept: Vec<&str> = Vec::new();
        for parameter in query.split('&') {
            let (key, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            if !self.set(&decoded(key)?, &decoded(value)?)? {
                kept.push(parameter);
            }
        }
        let mark = if kept.is_empty() { "" } else { "?" };
        Ok(format!("{before}{place}{mark}{}", kept.join("&")))
    }

    fn take_from_pairs(&mut self, text: &str) -> Result<String, StoreError> {
        let mut kept = Vec::new();
        let mut left = text.trim_start();
        while !left.is_empty() {
            // What does not parse is left to tokio-postgres, which says why.
            let Some(pair) = Pair::first(left) else {
                kept.push(left);
                break;
            };
            let (text, after) = left.split_at(pair.length);
            if !self.set(pair.key, &pair.value)? {
                kept.push(text);
            }
            left = after.trim_start();
        }
        Ok(kept.join(" "))
    }

    /// False if the parameter is none of these.
    fn set(&mut self, key: &str, value: &str) -> Result<bool, StoreError> {
        let path = || (!value.is_empty()).then(|| PathBuf::from(value));
        match key {
            "sslmode" => self.ssl_mode = Some(SslMode::from_str(value)?),
            "sslrootcert" => self.root_certificate = path(),
            "sslcert" => self.client_certificate = path(),
            "sslkey" => self.client_key = path(),
            "passfile" => self.passfile = path(),
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// `key = value`, where the value may be quoted.
struct Pair<'a> {
    key: &'a str,
    value: String,
    /// Of the text that it was read from, in bytes.
    length: usize,
}

impl<'a> Pair<'a> {
    fn first(text: &'a str) -> Option<Self> {
        let (key, value) = text.split_once('=')?;
        let value = value.trim_start();
        let start = text.len() - value.len();
        let quoted = value.starts_with('\'');
        let mut unescaped = String::new();
        let mut characters = value.char_indices().skip(usize::from(quoted));
        let length = loop {
            match characters.next() {
                None if quoted => return None,
                None => break value.len(),
                Some((at, '\'')) if quoted => break at + 1,
                Some((at, space)) if !quoted && space.is_whitespace() => break at,
                Some((_, '\\')) => unescaped.push(characters.next()?.1),
                Some((_, other)) => unescaped.push(other),
            }
        };
        Some(Self { key: key.trim_end(), value: unescaped, length: start + length })
    }
}

fn decoded(text: &str) -> Result<String, StoreError> {
    let decoded = percent_decode_str(text).decode_utf8();
    let decoded = decoded.map_err(|_| {
        // Not the text, which may be a password.
        StoreError::BadSettings("its url has a parameter that is not UTF-8".into())
    })?;
    Ok(decoded.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(url: &str) -> (OwnParameters, String) {
        OwnParameters::take_from(url).unwrap()
    }

    #[test]
    fn parameters_are_taken_out_of_a_url() {
        let (own, rest) = taken(
            "postgres://me:a?sslmode=x@one,two:5/db?sslmode=verify-full&connect_timeout=2\
             &sslrootcert=%2Fetc%2Fa%20b&sslcert=/c&sslkey=/k&passfile=/p&options=-c%20a%3Db",
        );
        assert_eq!(
            rest,
            "postgres://me:a?sslmode=x@one,two:5/db?connect_timeout=2&options=-c%20a%3Db"
        );
        let expected = OwnParameters {
            ssl_mode: Some(SslMode::VerifyFull),
            root_certificate: Some("/etc/a b".into()),
            client_certificate: Some("/c".into()),
            client_key: Some("/k".into()),
            passfile: Some("/p".into()),
        };
        assert_eq!(own, expected);
        let (own, rest) = taken("postgresql:///db?ssl%6Dode=allow");
        assert_eq!((own.ssl_mode, rest.as_str()), (Some(SslMode::Allow), "postgresql:///db"));
        for whole in ["postgres://db/x", "postgres://db/x?host=/run/postgresql"] {
            assert_eq!(taken(whole), (OwnParameters::default(), whole.to_owned()));
        }
    }

    #[test]
    fn parameters_are_taken_out_of_pairs() {
        let (own, rest) = taken(
            r"host=/run/a user = 'it\'s sslmode=x' sslmode = verify-ca sslrootcert='/a b' dbname=d\ x",
        );
        assert_eq!(rest, r"host=/run/a user = 'it\'s sslmode=x' dbname=d\ x");
        assert_eq!(own.ssl_mode, Some(SslMode::VerifyCa));
        assert_eq!(own.root_certificate, Some("/a b".into()));
    }

    #[test]
    fn a_mode_that_libpq_does_not_know_is_refused() {
        let error = OwnParameters::take_from("postgres://db/x?sslmode=verify").unwrap_err();
        assert!(error.to_string().contains("verify-full"), "{error}");
    }
}

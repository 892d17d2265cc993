//! The URL of a PostgreSQL store, shown without its password, and where its password is.

use std::fmt;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use store::Durability;
use store::postgres::PostgresSettings;

/// The name of the systemd credential that holds the password.
const CREDENTIAL: &str = "store-password";
/// Where systemd puts the credentials of the service, for commands that an operator starts.
const SERVICE_CREDENTIALS: &str = "/run/credentials/lockkeeper.service";
/// Options that are shown. Any other may be a password.
const SHOWN: [&str; 10] = [
    "host",
    "hostaddr",
    "port",
    "sslmode",
    "sslrootcert",
    "sslcert",
    "sslkey",
    "passfile",
    "channel_binding",
    "connect_timeout",
];

/// `Display` never shows the password.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct PostgresUrl {
    url: String,
    password_file: Option<PathBuf>,
}

impl PostgresUrl {
    pub(crate) fn new(url: &str) -> Self {
        Self { url: url.to_owned(), password_file: None }
    }

    /// With the password of the server: in this file, else in its systemd credential.
    pub(crate) fn with_server_password(self, file: Option<&Path>) -> Self {
        let password_file = match file {
            _ if self.has_password() => None,
            Some(file) => Some(file.to_owned()),
            None => credential(),
        };
        Self { password_file, ..self }
    }

    pub(crate) fn settings(&self, node: &str, durability: Durability) -> PostgresSettings {
        let mut settings = PostgresSettings::new(&self.url, node, durability);
        settings.password_file.clone_from(&self.password_file);
        settings
    }

    pub(crate) fn has_password(&self) -> bool {
        let Parts { user, options, .. } = self.parts();
        user.contains(':') || options.split('&').any(|option| option.starts_with("password="))
    }

    fn parts(&self) -> Parts<'_> {
        let (scheme, rest) = self.url.split_once("//").unwrap_or(("", &self.url));
        // Anything before the last `@` may be part of a password.
        let (user, place) = rest.rsplit_once('@').unwrap_or(("", rest));
        let (place, options) = place.split_once('?').unwrap_or((place, ""));
        Parts { scheme, user, place, options }
    }
}

struct Parts<'a> {
    scheme: &'a str,
    /// Name and password.
    user: &'a str,
    place: &'a str,
    options: &'a str,
}

impl fmt::Display for PostgresUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Parts { scheme, user, place, options } = self.parts();
        let user = user.split(':').next().unwrap_or("");
        let at = if user.is_empty() { "" } else { "@" };
        write!(f, "{scheme}//{user}{at}{place}")?;
        let is_shown =
            |option: &&str| option.split_once('=').is_some_and(|(name, _)| SHOWN.contains(&name));
        for (index, option) in options.split('&').filter(is_shown).enumerate() {
            write!(f, "{}{option}", if index == 0 { '?' } else { '&' })?;
        }
        Ok(())
    }
}

fn credential() -> Option<PathBuf> {
    let own = std::env::var_os("CREDENTIALS_DIRECTORY").map(PathBuf::from);
    let directory = own.unwrap_or_else(|| SERVICE_CREDENTIALS.into());
    Some(directory.join(CREDENTIAL)).filter(|path| path.exists())
}

/// Whether any user of this machine can read a file.
pub(crate) fn is_readable_by_all(path: &Path) -> bool {
    path.metadata().is_ok_and(|found| found.is_file() && found.mode() & 0o004 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// B5.97
    #[test]
    fn a_password_is_never_shown() {
        let shown = |url: &str| PostgresUrl::new(url).to_string();
        assert_eq!(shown("postgres://me:p@ss@db:5/locks"), "postgres://me@db:5/locks");
        assert_eq!(shown("postgres://me:p?ss@db:5/locks"), "postgres://me@db:5/locks");
        assert_eq!(
            shown("postgres:///locks?password=secret&host=/run/postgresql"),
            "postgres:///locks?host=/run/postgresql"
        );
        assert_eq!(
            shown(
                "postgres://me:a@db/x?sslmode=verify-full&pass%77ord=b&sslrootcert=/r&password=c"
            ),
            "postgres://me@db/x?sslmode=verify-full&sslrootcert=/r"
        );
    }

    #[test]
    fn a_password_in_a_url_is_noticed() {
        let has = |url: &str| PostgresUrl::new(url).has_password();
        assert!(has("postgres://me:x@db/x") && has("postgres://db/x?a=b&password=x"));
        assert!(!has("postgres://me@db:5/x?passfile=/x") && !has("postgres:///x"));
    }
}

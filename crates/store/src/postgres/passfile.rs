//! A passfile: passwords by host, port, database and role, in the form of libpq's `.pgpass`
//! (<https://www.postgresql.org/docs/current/libpq-pgpass.html>).

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Directories of unix sockets that a passfile calls `localhost`.
const SOCKET_DIRECTORIES: [&str; 3] = ["/var/run/postgresql", "/run/postgresql", "/tmp"];

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Passfile(PathBuf);

/// Whose password is looked up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Login<'a> {
    /// The host of the url, or the directory of its unix socket.
    pub(super) host: &'a str,
    pub(super) port: u16,
    pub(super) database: &'a str,
    pub(super) role: &'a str,
}

impl Passfile {
    /// The named one, else `$PGPASSFILE`, else `~/.pgpass`.
    pub(super) fn choose(named: Option<PathBuf>, home: Option<&Path>) -> Option<Self> {
        let environment = || std::env::var_os("PGPASSFILE").map(PathBuf::from);
        let usual = || home.map(|home| home.join(".pgpass"));
        named.or_else(environment).or_else(usual).map(Self)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Why the file is not used although it exists. libpq ignores such a file, too.
    pub(super) fn problem(&self) -> Option<String> {
        let path = self.0.display();
        match fs::metadata(&self.0) {
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => Some(format!("passfile {path} is ignored: {error}")),
            Ok(found) if !found.is_file() => {
                Some(format!("passfile {path} is ignored: it is not a file"))
            }
            Ok(found) if found.mode() & 0o077 != 0 => {
                Some(format!("passfile {path} is ignored: others can read it; chmod 600 {path}"))
            }
            Ok(_) => None,
        }
    }

    /// The password of the first line that matches.
    pub(super) fn password(&self, login: &Login<'_>) -> Option<String> {
        if self.problem().is_some() {
            return None;
        }
        let text = fs::read_to_string(&self.0).ok()?;
        text.lines().find_map(|line| password_in(line, login))
    }
}

fn password_in(line: &str, login: &Login<'_>) -> Option<String> {
    if line.starts_with('#') {
        return None;
    }
    let mut fields = Fields(line);
    let host = fields.next()?;
    let is_host = host.matches(login.host)
        || SOCKET_DIRECTORIES.contains(&login.host) && host.matches("localhost");
    let rest = [&login.port.to_string(), login.database, login.role];
    let mut is_match = is_host;
    for expected in rest {
        is_match &= fields.next()?.matches(expected);
    }
    // The password may contain colons, and backslashes before them.
    let password = fields.next()?.text;
    (is_match && !password.is_empty()).then_some(password)
}

/// Fields separated by colons; a backslash protects a colon or a backslash.
struct Fields<'a>(&'a str);

struct Field {
    text: String,
    /// `*` and nothing else: it matches anything.
    is_wildcard: bool,
}

impl Field {
    fn matches(&self, expected: &str) -> bool {
        self.is_wildcard || self.text == expected
    }
}

impl Iterator for Fields<'_> {
    type Item = Field;

    /// `None` past the end of the line.
    fn next(&mut self) -> Option<Field> {
        let mut text = String::new();
        let mut characters = self.0.char_indices();
        let end = loop {
            match characters.next() {
                None => break None,
                Some((at, ':')) => break Some(at),
                Some((_, '\\')) => text.extend(characters.next().map(|(_, escaped)| escaped)),
                Some((_, other)) => text.push(other),
            }
        };
        let raw = &self.0[..end.unwrap_or(self.0.len())];
        let is_wildcard = raw == "*";
        match end {
            Some(at) => self.0 = &self.0[at + 1..],
            None if self.0.is_empty() => return None,
            None => self.0 = "",
        }
        Some(Field { text, is_wildcard })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const LOGIN: Login<'_> =
        Login { host: "db.example.com", port: 5432, database: "locks", role: "keeper" };

    fn found(lines: &[&str], login: Login<'_>) -> Option<String> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pgpass");
        fs::write(&path, lines.join("\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        Passfile(path).password(&login)
    }

    /// B5.95
    #[test]
    fn the_first_line_of_a_passfile_that_matches_counts() {
        let lines = [
            "# db.example.com:5432:locks:keeper:comment",
            "",
            "db.example.com:5433:locks:keeper:another port",
            "db.example.com:5432:*:keeper:first",
            "db.example.com:5432:locks:keeper:second",
            "*:*:*:*:last",
        ];
        assert_eq!(found(&lines, LOGIN).as_deref(), Some("first"));
        assert_eq!(found(&lines, Login { role: "me", ..LOGIN }).as_deref(), Some("last"));
        let other = Login { database: "other", ..LOGIN };
        assert_eq!(found(&lines, other).as_deref(), Some("first"));
        assert_eq!(found(&lines[..5], Login { role: "me", ..LOGIN }), None);
        assert_eq!(found(&["db.example.com:5432:locks:keeper:"], LOGIN), None);
        assert_eq!(found(&["db.example.com:5432:locks:keeper", "*:*"], LOGIN), None);
    }

    /// B5.95
    #[test]
    fn a_backslash_protects_colons_backslashes_and_stars() {
        let odd = Login { host: "fd00::7", role: r"a\b", database: "*", ..LOGIN };
        let line = r"fd00\:\:7:5432:\*:a\\b:p\:w\\x";
        assert_eq!(found(&[line], odd).as_deref(), Some(r"p:w\x"));
        assert_eq!(found(&[line], Login { database: "locks", ..odd }), None);
        assert_eq!(found(&["*:*:d*:*:never"], Login { database: "db", ..LOGIN }), None);
    }

    /// B5.95
    #[test]
    fn a_unix_socket_in_its_usual_place_is_localhost() {
        let socket = Login { host: "/var/run/postgresql", ..LOGIN };
        assert_eq!(found(&["localhost:*:*:*:here"], socket).as_deref(), Some("here"));
        assert_eq!(found(&["/var/run/postgresql:*:*:*:here"], socket).as_deref(), Some("here"));
        let elsewhere = Login { host: "/srv/socket", ..LOGIN };
        assert_eq!(found(&["localhost:*:*:*:here"], elsewhere), None);
    }

    /// B5.95
    #[test]
    fn a_passfile_that_others_can_read_is_ignored_with_a_warning() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pgpass");
        let passfile = Passfile(path.clone());
        assert_eq!((passfile.problem(), passfile.password(&LOGIN)), (None, None));
        fs::write(&path, "*:*:*:*:secret").unwrap();
        for (mode, is_used) in [(0o600, true), (0o400, true), (0o640, false), (0o604, false)] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(passfile.password(&LOGIN).is_some(), is_used, "{mode:o}");
            assert_eq!(passfile.problem().is_none(), is_used, "{mode:o}");
        }
        assert!(passfile.problem().unwrap().contains("chmod 600"));
        assert!(Passfile(directory.path().to_owned()).problem().is_some());
    }
}

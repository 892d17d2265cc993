//! The schema of the tables: its name, creation, version and privileges.

use std::time::Duration;

use tokio::time::timeout;
use tokio_postgres::Client;

use super::connection::{Database, SESSION_SETTINGS};
use super::migrations;
use crate::error::StoreError;

const DEFAULT: &str = "lockkeeper";
/// The meaning of the rows. Counts up when that changes without a change of the tables.
const FORMAT: i64 = 1;
/// The advisory lock of the node that creates or migrates tables.
const MIGRATION_LOCK: i64 = 0x4c6f_636b_6b65_6570;
const MIGRATION_MAX: Duration = Duration::from_secs(60);
const MIGRATION_SETTINGS: &str = "SET statement_timeout = '60s'; SET lock_timeout = '30s'";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Schema(String);

impl Schema {
    /// An explicit name, else the first of the url's search path, else the default.
    pub(super) fn choose(
        explicit: Option<&str>,
        options: Option<&str>,
    ) -> Result<Self, StoreError> {
        let name = match explicit {
            Some(name) => name.to_owned(),
            None => options.and_then(from_options).unwrap_or_else(|| DEFAULT.to_owned()),
        };
        if name.is_empty() || name.len() > 63 || name.contains('\0') || name.starts_with("pg_") {
            let why = format!("{name:?} cannot be the name of a schema (1 to 63 bytes, no pg_...)");
            return Err(StoreError::BadSettings(why));
        }
        Ok(Self(name))
    }

    pub(super) fn quoted(&self) -> String {
        quoted(&self.0)
    }

    /// SQL that grants `role` what a server needs.
    pub(super) fn grants_for(&self, role: &str) -> String {
        let (schema, role) = (self.quoted(), quoted(role));
        format!(
            "CREATE SCHEMA IF NOT EXISTS {schema} AUTHORIZATION {role}; \
             GRANT USAGE, CREATE ON SCHEMA {schema} TO {role}; \
             GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role}"
        )
    }

    /// Creates or migrates the tables. Refuses those of a newer program.
    pub(super) async fn prepare(
        &self,
        client: &mut Client,
        database: &Database,
    ) -> Result<(), StoreError> {
        match timeout(MIGRATION_MAX, self.prepare_untimed(client, database)).await {
            Ok(prepared) => prepared,
            Err(_) => Err(database.unreachable(format!(
                "its tables were not ready within {MIGRATION_MAX:?}; another session may have locked them"
            ))),
        }
    }

    async fn prepare_untimed(
        &self,
        client: &mut Client,
        database: &Database,
    ) -> Result<(), StoreError> {
        let failed = |error: tokio_postgres::Error| database.failure(&error).error;
        client.batch_execute(MIGRATION_SETTINGS).await.map_err(failed)?;
        let lock = "SELECT pg_advisory_lock($1)";
        client.execute(lock, &[&MIGRATION_LOCK]).await.map_err(failed)?;
        // Asked first: a role that may use the schema need not have the privilege to create one.
        let exists = "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)";
        let exists: bool = client.query_one(exists, &[&self.0]).await.map_err(failed)?.get(0);
        if !exists {
            let create = format!("CREATE SCHEMA IF NOT EXISTS {}", self.quoted());
            client.batch_execute(&create).await.map_err(failed)?;
        }
        self.migrate(client, database).await?;
        let format: i64 =
            client.query_one("SELECT format FROM state", &[]).await.map_err(failed)?.get(0);
        if format > FORMAT {
            return Err(self.newer(database, format as u64, FORMAT as u64));
        }
        let unlock = "SELECT pg_advisory_unlock($1)";
        client.execute(unlock, &[&MIGRATION_LOCK]).await.map_err(failed)?;
        client.batch_execute(SESSION_SETTINGS).await.map_err(failed)
    }

    async fn migrate(&self, client: &mut Client, database: &Database) -> Result<(), StoreError> {
        let failed = |error: tokio_postgres::Error| database.failure(&error).error;
        let found = migrations::version(client).await.map_err(failed)?;
        if found > migrations::NEWEST {
            return Err(self.newer(database, found as u64, migrations::NEWEST as u64));
        }
        // Asked first, for the same reason.
        match found < migrations::NEWEST {
            true => migrations::apply_after(found, client).await.map_err(failed),
            false => Ok(()),
        }
    }

    fn newer(&self, database: &Database, found: u64, known: u64) -> StoreError {
        let location = format!("schema {} of {}", self.quoted(), database.location);
        StoreError::Newer { location, found, known }
    }
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// The first schema of `-c search_path=...`, as in `options=-csearch_path%3Dlocks`.
fn from_options(options: &str) -> Option<String> {
    let (_, rest) = options.split_once("search_path=")?;
    let rest = rest.trim_start_matches('\'');
    if let Some(quoted) = rest.strip_prefix('"') {
        // A doubled quote stands for one.
        let mut name = String::new();
        let mut letters = quoted.chars().peekable();
        while let Some(letter) = letters.next() {
            match letter {
                '"' if letters.peek() == Some(&'"') => name.extend(letters.next()),
                '"' => return Some(name),
                '\\' => name.extend(letters.next()),
                letter => name.push(letter),
            }
        }
        return Some(name);
    }
    let end = rest.find([',', ' ', '\'']).unwrap_or(rest.len());
    Some(rest[..end].to_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_comes_from_the_setting_the_url_or_the_default() {
        let chosen = |explicit, options| Schema::choose(explicit, options).unwrap().quoted();
        assert_eq!(chosen(None, None), "\"lockkeeper\"");
        assert_eq!(chosen(None, Some("-c statement_timeout=3")), "\"lockkeeper\"");
        assert_eq!(chosen(None, Some("-csearch_path=Site,public")), "\"site\"");
        assert_eq!(chosen(None, Some("-csearch_path=\"Si\"\"te\",public")), "\"Si\"\"te\"");
        assert_eq!(chosen(Some("a\"; DROP"), Some("-csearch_path=b")), "\"a\"\"; DROP\"");
        assert!(Schema::choose(Some(""), None).is_err());
        assert!(Schema::choose(Some("pg_catalog"), None).is_err());
    }
}

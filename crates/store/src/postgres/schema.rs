//! The schema that the tables are in: its name, its making, its version, and who may use it.

use std::time::Duration;

use tokio::time::timeout;
use tokio_postgres::Client;

use super::connection::{Address, SESSION};
use super::migrations;
use crate::error::StoreError;

const DEFAULT: &str = "lockkeeper";
/// What the rows mean. Counted up when that changes and the tables do not.
const FORMAT: i64 = 1;
/// Only one node at a time makes or changes tables.
const MIGRATION_LOCK: i64 = 0x4c6f_636b_6b65_6570;
const MIGRATION_MAX: Duration = Duration::from_secs(60);
const PATIENT: &str = "SET statement_timeout = '60s'; SET lock_timeout = '30s'";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schema(String);

impl Schema {
    /// An explicit name, else the first of the search path in the address, else the default.
    pub fn choose(explicit: Option<&str>, options: Option<&str>) -> Result<Self, StoreError> {
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

    pub fn quoted(&self) -> String {
        quoted(&self.0)
    }

    /// What an administrator types so that `role` may do what a server does.
    pub fn rights_for(&self, role: &str) -> String {
        let (schema, role) = (self.quoted(), quoted(role));
        format!(
            "CREATE SCHEMA IF NOT EXISTS {schema} AUTHORIZATION {role}; \
             GRANT USAGE, CREATE ON SCHEMA {schema} TO {role}; \
             GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role}"
        )
    }

    /// Makes the tables or brings them up to date, unless they are newer than this program.
    pub async fn prepare(&self, client: &mut Client, address: &Address) -> Result<(), StoreError> {
        match timeout(MIGRATION_MAX, self.prepare_patiently(client, address)).await {
            Ok(prepared) => prepared,
            Err(_) => Err(address.unreachable(format!(
                "its tables were not ready within {MIGRATION_MAX:?}; look for who has them locked"
            ))),
        }
    }

    async fn prepare_patiently(
        &self,
        client: &mut Client,
        address: &Address,
    ) -> Result<(), StoreError> {
        let failed = |error: tokio_postgres::Error| address.failure(&error).error;
        client.batch_execute(PATIENT).await.map_err(failed)?;
        let lock = "SELECT pg_advisory_lock($1)";
        client.execute(lock, &[&MIGRATION_LOCK]).await.map_err(failed)?;
        // Asked first: who may use a schema need not have the right to make one.
        let there = "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)";
        let there: bool = client.query_one(there, &[&self.0]).await.map_err(failed)?.get(0);
        if !there {
            let create = format!("CREATE SCHEMA IF NOT EXISTS {}", self.quoted());
            client.batch_execute(&create).await.map_err(failed)?;
        }
        self.migrate(client, address).await?;
        let format: i64 =
            client.query_one("SELECT format FROM state", &[]).await.map_err(failed)?.get(0);
        if format > FORMAT {
            return Err(self.newer(address, format as u64, FORMAT as u64));
        }
        let unlock = "SELECT pg_advisory_unlock($1)";
        client.execute(unlock, &[&MIGRATION_LOCK]).await.map_err(failed)?;
        client.batch_execute(SESSION).await.map_err(failed)
    }

    async fn migrate(&self, client: &mut Client, address: &Address) -> Result<(), StoreError> {
        let failed = |error: tokio_postgres::Error| address.failure(&error).error;
        let found = migrations::version(client).await.map_err(failed)?;
        if found > migrations::NEWEST {
            return Err(self.newer(address, found as u64, migrations::NEWEST as u64));
        }
        // Who may use the tables need not have the right to make any.
        match found < migrations::NEWEST {
            true => migrations::apply_after(found, client).await.map_err(failed),
            false => Ok(()),
        }
    }

    fn newer(&self, address: &Address, found: u64, known: u64) -> StoreError {
        let place = format!("schema {} of {}", self.quoted(), address.place);
        StoreError::Newer { place, found, known }
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
    fn the_schema_comes_from_the_setting_the_address_or_the_default() {
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

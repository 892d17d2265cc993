//! The migrations of the tables, and the history table that says which have been applied.
//!
//! The history has the name and the columns that version 0.1.0 gave it, so that an older program
//! finds out that the tables are too new for it. A migration that was released is never edited, only
//! followed by another: the checksum in the history would no longer be its own.

use std::hash::{Hash, Hasher};

use siphasher::sip::SipHasher13;
use tokio_postgres::{Client, Error};

struct Migration {
    version: i32,
    name: &'static str,
    sql: &'static str,
}

/// By version, without gaps.
const MIGRATIONS: &[Migration] = &[Migration {
    version: 1,
    name: "tables",
    sql: include_str!("../../migrations/V1__tables.sql"),
}];

/// The version of the tables that this program works with.
pub const NEWEST: i32 = MIGRATIONS.len() as i32;

const HISTORY: &str = "CREATE TABLE IF NOT EXISTS refinery_schema_history (
    version INT4 PRIMARY KEY, name VARCHAR(255), applied_on VARCHAR(255), checksum VARCHAR(255))";
const APPLIED: &str = "INSERT INTO refinery_schema_history VALUES ($1, $2,
    to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"'), $3)";

/// The version of the tables in the search path; 0 if there are none.
pub async fn version(client: &Client) -> Result<i32, Error> {
    let there = "SELECT to_regclass('refinery_schema_history') IS NOT NULL";
    if !client.query_one(there, &[]).await?.try_get::<_, bool>(0)? {
        return Ok(0);
    }
    let newest = "SELECT coalesce(max(version), 0) FROM refinery_schema_history";
    client.query_one(newest, &[]).await?.try_get(0)
}

/// Applies what comes after `found`: each migration and its line in the history together, or not at
/// all. The caller keeps others from doing the same meanwhile.
pub async fn apply_after(found: i32, client: &mut Client) -> Result<(), Error> {
    client.batch_execute(HISTORY).await?;
    for migration in MIGRATIONS.iter().filter(|migration| migration.version > found) {
        let transaction = client.transaction().await?;
        transaction.batch_execute(migration.sql).await?;
        let checksum = migration.checksum().to_string();
        transaction.execute(APPLIED, &[&migration.version, &migration.name, &checksum]).await?;
        transaction.commit().await?;
    }
    Ok(())
}

impl Migration {
    /// As version 0.1.0 counted it.
    fn checksum(&self) -> u64 {
        let mut hasher = SipHasher13::new();
        self.name.hash(&mut hasher);
        self.version.hash(&mut hasher);
        self.sql.hash(&mut hasher);
        hasher.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_have_no_gaps() {
        let versions: Vec<i32> = MIGRATIONS.iter().map(|migration| migration.version).collect();
        assert_eq!(versions, (1..=NEWEST).collect::<Vec<i32>>());
    }
}

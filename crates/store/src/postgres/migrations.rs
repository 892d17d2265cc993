//! The migrations of the tables, and the history table of those that were applied.
//!
//! The history table keeps the name and columns of version 0.1.0, so that an older program notices
//! tables that are too new for it. A released migration is never edited, only followed by another:
//! the history has its checksum.

use std::hash::{Hash, Hasher};

use siphasher::sip::SipHasher13;
use tokio_postgres::{Client, Error};

struct Migration {
    version: i32,
    name: &'static str,
    sql: &'static str,
}

/// By version, without gaps.
const MIGRATIONS: &[Migration] = &[
    Migration { version: 1, name: "tables", sql: include_str!("../../migrations/V1__tables.sql") },
    Migration {
        version: 2,
        name: "fencings",
        sql: include_str!("../../migrations/V2__fencings.sql"),
    },
    Migration {
        version: 3,
        name: "protocols",
        sql: include_str!("../../migrations/V3__protocols.sql"),
    },
    Migration {
        version: 4,
        name: "timelines",
        sql: include_str!("../../migrations/V4__timelines.sql"),
    },
];

/// The version of the tables that this program uses.
pub(super) const NEWEST: i32 = MIGRATIONS.len() as i32;

const HISTORY: &str = "CREATE TABLE IF NOT EXISTS refinery_schema_history (
    version INT4 PRIMARY KEY, name VARCHAR(255), applied_on VARCHAR(255), checksum VARCHAR(255))";
const APPLIED: &str = "INSERT INTO refinery_schema_history VALUES ($1, $2,
    to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"'), $3)";

/// The version of the tables in the search path; 0 if there are none.
pub(super) async fn version(client: &Client) -> Result<i32, Error> {
    let exists = "SELECT to_regclass('refinery_schema_history') IS NOT NULL";
    if !client.query_one(exists, &[]).await?.try_get::<_, bool>(0)? {
        return Ok(0);
    }
    let newest = "SELECT coalesce(max(version), 0) FROM refinery_schema_history";
    client.query_one(newest, &[]).await?.try_get(0)
}

/// Applies the migrations after `found`, each in one transaction with its row of the history. The
/// caller holds the migration lock.
pub(super) async fn apply_after(found: i32, client: &mut Client) -> Result<(), Error> {
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
    /// Computed as in version 0.1.0.
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

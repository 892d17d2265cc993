//! What the database guarantees about acknowledged transactions. Read on every connection, because a
//! restart may change the settings, and passed with every statement, because a reload may.

use tokio_postgres::{Client, Error};

use super::Failover;
use super::connection::Database;
use crate::durability::Durability;
use crate::error::StoreError;

/// Settings of the database that the configured durability accepts.
#[derive(Debug)]
pub(super) struct ServerDurability {
    /// The session's `synchronous_commit`.
    configured: String,
    /// A crash of the database may lose acknowledged transactions.
    pub(super) weak: bool,
    /// One sentence for each setting that weakens durability.
    pub(super) warnings: Vec<String>,
}

impl ServerDurability {
    /// `synchronous_commit`, `fsync`, `full_page_writes` and `synchronous_standby_names`.
    pub(super) async fn read(client: &Client) -> Result<[String; 4], Error> {
        let sql = "SELECT current_setting('synchronous_commit'), current_setting('fsync'), \
             current_setting('full_page_writes'), current_setting('synchronous_standby_names')";
        let row = client.query_one(sql, &[]).await?;
        Ok([row.get(0), row.get(1), row.get(2), row.get(3)])
    }

    /// Refuses settings that are too weak for `durability`.
    pub(super) fn check(
        settings: [String; 4],
        durability: Durability,
        failover: Failover,
        database: &Database,
    ) -> Result<Self, StoreError> {
        let [synchronous, fsync, pages, replicas] = settings;
        let role = format!("\"{}\"", database.role.replace('"', "\"\""));
        let mut warnings = Vec::new();
        let checks = [
            (
                "synchronous_commit",
                &synchronous,
                format!("ALTER ROLE {role} SET synchronous_commit = on"),
            ),
            ("fsync", &fsync, "ALTER SYSTEM SET fsync = on; SELECT pg_reload_conf()".to_owned()),
            (
                "full_page_writes",
                &pages,
                "ALTER SYSTEM SET full_page_writes = on; SELECT pg_reload_conf()".to_owned(),
            ),
        ];
        for (setting, value, fix) in checks {
            if value != "off" {
                continue;
            }
            if durability == Durability::Power {
                let location = database.location.clone();
                return Err(StoreError::WeakDurability { location, setting: setting.into(), fix });
            }
            warnings.push(format!(
                "{} runs with {setting} = off: acknowledged locks can be lost when it crashes. To \
                 keep them: {fix}",
                database.location
            ));
        }
        let weak = !warnings.is_empty();
        if synchronous == "local" && !replicas.is_empty() {
            warnings.push(format!(
                "{} runs with synchronous_commit = local: a failover to its replica can lose \
                 acknowledged locks. To keep them: ALTER ROLE {role} SET synchronous_commit = on",
                database.location
            ));
        }
        if failover == Failover::Synchronous && replicas.is_empty() {
            warnings.push(format!(
                "{} has no synchronous replica (synchronous_standby_names is empty), although \
                 failover = \"synchronous\" is configured: after a failover clients must reclaim \
                 their locks",
                database.location
            ));
        }
        Ok(Self { configured: synchronous, weak, warnings })
    }

    /// Whether a commit waits for synchronous replicas, if there are any.
    pub(super) fn waits_for_replicas(&self) -> bool {
        !["off", "local"].contains(&self.configured.as_str())
    }

    /// `synchronous_commit` for one transaction. What must not be lost (an epoch, a registration, a
    /// new leader) is synced even if locks are not; a setting stronger than `on` stays.
    pub(super) fn synchronous_commit(&self, must_sync: bool) -> &str {
        if must_sync && self.configured == "off" { "on" } else { &self.configured }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::postgres::PostgresSettings;

    fn check(
        synchronous: &str,
        fsync: &str,
        durability: Durability,
    ) -> Result<ServerDurability, String> {
        let database = PostgresSettings::new("postgres://keeper@db/locks", "a", durability);
        let database = Database::parse(&database).unwrap();
        let settings = [synchronous, fsync, "on", ""].map(str::to_owned);
        let failover = Failover::Asynchronous;
        ServerDurability::check(settings, durability, failover, &database)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn power_is_refused_if_the_database_guarantees_less() {
        let error = check("off", "on", Durability::Power).unwrap_err();
        assert!(error.contains("ALTER ROLE \"keeper\" SET synchronous_commit = on"), "{error}");
        let error = check("on", "off", Durability::Power).unwrap_err();
        assert!(error.contains("ALTER SYSTEM SET fsync = on"), "{error}");
        assert!(check("on", "on", Durability::Power).unwrap().warnings.is_empty());
    }

    #[test]
    fn process_accepts_it_with_a_warning() {
        let server = check("off", "off", Durability::Process).unwrap();
        assert_eq!(server.warnings.len(), 2);
        assert_eq!(
            (server.synchronous_commit(false), server.synchronous_commit(true)),
            ("off", "on")
        );
    }

    #[test]
    fn a_stronger_setting_stays() {
        let server = check("remote_apply", "on", Durability::Power).unwrap();
        assert_eq!(server.synchronous_commit(true), "remote_apply");
    }
}

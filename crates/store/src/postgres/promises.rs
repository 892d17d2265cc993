//! What the server promises of what it has acknowledged. Looked at on every connection, because a
//! server may come back with other settings, and pinned for the session, because a reload could
//! weaken it under us.

use tokio_postgres::{Client, Error};

use super::connection::Address;
use crate::durability::Durability;
use crate::error::StoreError;

/// What was found, when it can be lived with.
#[derive(Debug)]
pub struct Promises {
    /// The session's `synchronous_commit`.
    found: String,
    /// A crash of the server may take back what it has acknowledged.
    pub weak: bool,
    /// What a person should know.
    pub remarks: Vec<String>,
}

impl Promises {
    pub async fn look(client: &Client) -> Result<[String; 4], Error> {
        let sql = "SELECT current_setting('synchronous_commit'), current_setting('fsync'), \
             current_setting('full_page_writes'), current_setting('synchronous_standby_names')";
        let row = client.query_one(sql, &[]).await?;
        Ok([row.get(0), row.get(1), row.get(2), row.get(3)])
    }

    pub fn judge(
        found: [String; 4],
        durability: Durability,
        address: &Address,
    ) -> Result<Self, StoreError> {
        let [synchronous, fsync, pages, replicas] = found;
        let role = format!("\"{}\"", address.role.replace('"', "\"\""));
        let mut remarks = Vec::new();
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
                let place = address.place.clone();
                return Err(StoreError::WeakPromises { place, setting: setting.into(), fix });
            }
            remarks.push(format!(
                "{} runs with {setting} = off: locks that were acknowledged can be lost when it \
                 crashes. To keep them: {fix}",
                address.place
            ));
        }
        let weak = !remarks.is_empty();
        if synchronous == "local" && !replicas.is_empty() {
            remarks.push(format!(
                "{} runs with synchronous_commit = local: a failover to its replica can lose locks \
                 that were acknowledged. To keep them: ALTER ROLE {role} SET synchronous_commit = on",
                address.place
            ));
        }
        Ok(Self { found: synchronous, weak, remarks })
    }

    /// `synchronous_commit` for one transaction. What must not be lost (an epoch, a registration, a
    /// new holder) is synced even where locks need not be; what the administrator made stronger than
    /// `on` is left as it is.
    pub fn synchronous(&self, must_sync: bool) -> &str {
        if must_sync && self.found == "off" { "on" } else { &self.found }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(synchronous: &str, fsync: &str, durability: Durability) -> Result<Promises, String> {
        let address = Address::parse("postgres://keeper@db/locks", None, "a").unwrap();
        let found = [synchronous, fsync, "on", ""].map(str::to_owned);
        Promises::judge(found, durability, &address).map_err(|error| error.to_string())
    }

    #[test]
    fn power_is_refused_where_the_server_promises_less() {
        let error = judge("off", "on", Durability::Power).unwrap_err();
        assert!(error.contains("ALTER ROLE \"keeper\" SET synchronous_commit = on"), "{error}");
        let error = judge("on", "off", Durability::Power).unwrap_err();
        assert!(error.contains("ALTER SYSTEM SET fsync = on"), "{error}");
        assert!(judge("on", "on", Durability::Power).unwrap().remarks.is_empty());
    }

    #[test]
    fn process_lives_with_it_and_says_so() {
        let promises = judge("off", "off", Durability::Process).unwrap();
        assert_eq!(promises.remarks.len(), 2);
        assert_eq!((promises.synchronous(false), promises.synchronous(true)), ("off", "on"));
    }

    #[test]
    fn what_is_stronger_stays() {
        let promises = judge("remote_apply", "on", Durability::Power).unwrap();
        assert_eq!(promises.synchronous(true), "remote_apply");
    }
}

//! The columns of clients, locks and shares, and decoding of rows. A row that this program cannot have
//! written is refused, never repaired.
//!
//! Unsigned numbers are stored as the `bigint` with the same bits.

use std::net::IpAddr;
use std::sync::Arc;

use keeper::bytes::{FileKey, Name, OwnerTag};
use keeper::change::{Client, Lock, Protocol, Reboot, Registrant, Share};
use keeper::identity::{
    ClientId, Epoch, Incarnation, LockId, Owner, OwnerNamespace, ShareId, Transport,
};
use keeper::range::Range;
use keeper::request::{Access, Callback, Mode};
use tokio_postgres::types::{FromSql, Type};

/// A table and its columns: name, element type of the parameter array, and type in the table.
pub(super) struct Table {
    pub(super) name: &'static str,
    pub(super) columns: &'static [(&'static str, &'static str, Type)],
}

pub(super) const CLIENTS: Table = Table {
    name: "clients",
    columns: &[
        ("id", "bigint", Type::INT8),
        ("protocol", "text", Type::TEXT),
        ("address", "inet", Type::INET),
        ("name", "bytea", Type::BYTEA),
        ("incarnation", "bigint", Type::INT8),
        ("reboot_from", "bigint", Type::INT8),
        ("reboot_to", "bigint", Type::INT8),
        ("reboot_before", "bigint", Type::INT8),
        ("monitored", "boolean", Type::BOOL),
        ("fenced", "boolean", Type::BOOL),
        // A parameter is text, because PostgreSQL has no arrays of arrays of different lengths.
        ("used", "text", Type::INET_ARRAY),
        ("registered_at_ms", "bigint", Type::INT8),
        ("epoch", "bigint", Type::INT8),
        ("callback_name", "bytea", Type::BYTEA),
        ("program", "bigint", Type::INT8),
        ("version", "bigint", Type::INT8),
        ("procedure", "bigint", Type::INT8),
        ("watched", "bytea", Type::BYTEA),
        ("private", "bytea", Type::BYTEA),
    ],
};

pub(super) const LOCKS: Table = Table {
    name: "locks",
    columns: &[
        ("id", "bigint", Type::INT8),
        ("file", "bytea", Type::BYTEA),
        ("host", "bigint", Type::INT8),
        ("ours", "inet", Type::INET),
        ("udp", "boolean", Type::BOOL),
        ("version", "bigint", Type::INT8),
        ("number", "bigint", Type::INT8),
        ("tag", "bytea", Type::BYTEA),
        ("first", "bigint", Type::INT8),
        ("last", "bigint", Type::INT8),
        ("exclusive", "boolean", Type::BOOL),
        ("incarnation", "bigint", Type::INT8),
        ("monitored", "boolean", Type::BOOL),
        ("since_ms", "bigint", Type::INT8),
    ],
};

pub(super) const SHARES: Table = Table {
    name: "shares",
    columns: &[
        ("id", "bigint", Type::INT8),
        ("file", "bytea", Type::BYTEA),
        ("host", "bigint", Type::INT8),
        ("ours", "inet", Type::INET),
        ("udp", "boolean", Type::BOOL),
        ("version", "bigint", Type::INT8),
        ("number", "bigint", Type::INT8),
        ("tag", "bytea", Type::BYTEA),
        ("reads", "boolean", Type::BOOL),
        ("writes", "boolean", Type::BOOL),
        ("denies_read", "boolean", Type::BOOL),
        ("denies_write", "boolean", Type::BOOL),
        ("incarnation", "bigint", Type::INT8),
        ("since_ms", "bigint", Type::INT8),
    ],
};

/// The values of a row, by column.
pub(super) trait RowValues {
    /// The error names the value, to follow "it has".
    fn value<'a, T: FromSql<'a>>(&'a self, column: usize) -> Result<T, String>;
}

/// What one row of a table decodes to.
pub(super) trait TableRow: Sized {
    const TABLE: Table;
    fn from_row(row: &impl RowValues) -> Result<Self, String>;
}

impl TableRow for Client {
    const TABLE: Table = CLIENTS;

    fn from_row(row: &impl RowValues) -> Result<Self, String> {
        let protocol: &str = row.value(1)?;
        let protocol =
            Protocol::new(protocol).ok_or_else(|| format!("the protocol {protocol:?}"))?;
        let reboot = match (row.value(5)?, row.value(6)?, row.value(7)?) {
            (None, None, None) => None,
            (Some(from), Some(to), Some(before)) => Some(Reboot {
                from: Incarnation(narrow("reboot_from", from)?),
                to: Incarnation(narrow("reboot_to", to)?),
                before: LockId(unsigned(before)),
            }),
            _ => return Err("a reboot with some of its columns missing".into()),
        };
        let registrant = match row.value::<Option<&[u8]>>(13)? {
            None => None,
            Some(name) => Some(Registrant {
                callback: Callback {
                    name: Name::new(name),
                    program: narrow("program", row.value(14)?)?,
                    version: narrow("version", row.value(15)?)?,
                    procedure: narrow("procedure", row.value(16)?)?,
                },
                watched: Name::new(row.value(17)?),
                private: row
                    .value::<&[u8]>(18)?
                    .try_into()
                    .map_err(|_| "private bytes that are not 16".to_owned())?,
            }),
        };
        Ok(Client {
            id: ClientId(unsigned(row.value(0)?)),
            protocol,
            address: row.value(2)?,
            name: Name::new(row.value(3)?),
            incarnation: Incarnation(narrow("incarnation", row.value(4)?)?),
            reboot,
            monitored: row.value(8)?,
            fenced: row.value(9)?,
            used: row.value(10)?,
            registered_at_ms: unsigned(row.value(11)?),
            epoch: Epoch(unsigned(row.value(12)?)),
            registrant,
        })
    }
}

impl TableRow for Lock {
    const TABLE: Table = LOCKS;

    fn from_row(row: &impl RowValues) -> Result<Self, String> {
        let (first, last) = (unsigned(row.value(8)?), unsigned(row.value(9)?));
        Ok(Lock {
            id: LockId(unsigned(row.value(0)?)),
            file: FileKey::new(row.value(1)?),
            owner: owner(row)?,
            range: Range::between(first, last)
                .ok_or_else(|| format!("the range from {first} to {last}"))?,
            mode: if row.value(10)? { Mode::Exclusive } else { Mode::Shared },
            incarnation: Incarnation(narrow("incarnation", row.value(11)?)?),
            monitored: row.value(12)?,
            since_ms: unsigned(row.value(13)?),
        })
    }
}

impl TableRow for Share {
    const TABLE: Table = SHARES;

    fn from_row(row: &impl RowValues) -> Result<Self, String> {
        Ok(Share {
            id: ShareId(unsigned(row.value(0)?)),
            file: FileKey::new(row.value(1)?),
            owner: owner(row)?,
            access: Access { read: row.value(8)?, write: row.value(9)? },
            deny: Access { read: row.value(10)?, write: row.value(11)? },
            incarnation: Incarnation(narrow("incarnation", row.value(12)?)?),
            since_ms: unsigned(row.value(13)?),
        })
    }
}

/// Locks and shares have the owner in the same columns.
fn owner(row: &impl RowValues) -> Result<Arc<Owner>, String> {
    let ours: IpAddr = row.value(3)?;
    let transport = if row.value(4)? { Transport::Udp } else { Transport::Tcp };
    Ok(Arc::new(Owner {
        host: ClientId(unsigned(row.value(2)?)),
        namespace: OwnerNamespace::new(ours, transport, narrow("version", row.value(5)?)?),
        number: narrow("number", row.value(6)?)?,
        tag: OwnerTag::new(row.value(7)?),
    }))
}

pub(super) fn unsigned(number: i64) -> u64 {
    number.cast_unsigned()
}

pub(super) fn signed(number: u64) -> i64 {
    number.cast_signed()
}

fn narrow<T: TryFrom<i64>>(what: &str, number: i64) -> Result<T, String> {
    T::try_from(number).map_err(|_| format!("{number} as its {what}"))
}

//! The bytes of one change or one row of the embedded store. Every value has exactly one encoding;
//! bytes that the encoder cannot have produced are refused, never repaired.
//!
//! Integers are little-endian. A *count* has 7 bits per byte, lowest first, the top bit set on all
//! bytes but the last (LEB128). *Bytes* are a count and that many bytes. An *address* is the byte 4
//! and four bytes, or the byte 6 and sixteen; `::ffff:a.b.c.d` is written as `a.b.c.d`.
//!
//! ```text
//! record      version u8 = 1 | kind u8 | the fields of that kind, and no byte after them
//!
//!  1 Started      epoch u64 | grace u8 (0 none; of a store that is 1 exact, 2 a roster, 3 open;
//!                 the first versions wrote 1 for a roster as well)
//!  2 GraceEnded   -
//!  3 Stopped      -
//!  4 IdsBelow     id u64
//!  5 Client       id u64 | protocol u8 (0 NLM, 1 NSM) | flags u8 | incarnation u32
//!                 | registered_at_ms u64 | epoch u64 | address | name bytes
//!                 | used: count, then that many addresses
//!                 | reboot, if flag 4: from u32 | to u32 | before u64
//!                 | registrant, if flag 8: program u32 | version u32 | procedure u32
//!                 |     | private 16 bytes | its name bytes | watched bytes
//!                 flags: 1 monitored, 2 fenced, 4 has a reboot, 8 has a registrant
//!  6 ClientGone   id u64
//!  7 Lock         id u64 | flags u8 | incarnation u32 | since_ms u64 | first u64 | last u64
//!                 | owner | file bytes
//!                 flags: 1 exclusive, 2 monitored
//!  8 LockGone     id u64
//!  9 Share        id u64 | flags u8 | incarnation u32 | since_ms u64 | owner | file bytes
//!                 flags: access 1 read, 2 write; deny 4 read, 8 write
//! 10 ShareGone    id u64
//! 11 Metadata     epoch u64 | ids_below u64 | token u64 | flags u8
//!                 flags: 1 in grace, 2 stopped cleanly, 4 not exact, 8 at rest, 16 open; 16 only
//!                 with 4, which alone is a roster
//! 12 Cleared      -
//! 13 ForeignClient  as Client, with the protocol's name as bytes in place of its number
//!
//! owner           host u64 | number u32 | transport u8 (0 TCP, 1 UDP) | version u8
//!                 | our address | tag bytes
//! ```

mod read;
#[cfg(test)]
mod tests;
mod write;

use std::net::IpAddr;
use std::sync::Arc;

use keeper::bytes::{FileKey, Name, OwnerTag};
use keeper::change::{Change, Client, Exactness, Lock, Protocol, Reboot, Registrant, Share};
use keeper::identity::{
    ClientId, Epoch, Incarnation, LockId, Owner, OwnerNamespace, ShareId, Transport,
};
use keeper::range::Range;
use keeper::request::{Access, Callback, Mode};
use thiserror::Error;

use crate::store::Token;
pub(crate) use read::FieldReader;
pub(crate) use write::FieldWriter;

/// The version that this program writes, and the only one it reads.
pub(crate) const VERSION: u8 = 1;

const STARTED: u8 = 1;
const GRACE_ENDED: u8 = 2;
const STOPPED: u8 = 3;
const IDS_BELOW: u8 = 4;
const CLIENT: u8 = 5;
const CLIENT_GONE: u8 = 6;
const LOCK: u8 = 7;
const LOCK_GONE: u8 = 8;
const SHARE: u8 = 9;
const SHARE_GONE: u8 = 10;
const METADATA: u8 = 11;
const CLEARED: u8 = 12;
const FOREIGN_CLIENT: u8 = 13;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    Change(Change),
    /// Everything in a snapshot besides its rows.
    Metadata(Metadata),
    /// All locks, shares and registrations were removed (B5.7).
    Cleared,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Metadata {
    pub(crate) epoch: Epoch,
    pub(crate) ids_below: u64,
    pub(crate) token: Token,
    pub(crate) in_grace: bool,
    pub(crate) stopped_cleanly: bool,
    pub(crate) exactness: Exactness,
    /// A clean stop is the last change.
    pub(crate) at_rest: bool,
}

/// Why bytes are not a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum RecordError {
    #[error("a record ends in the middle of its {0}")]
    Short(&'static str),
    #[error("a record goes on for {0} bytes after its last field")]
    Long(usize),
    #[error("a record has version {0}, and this program knows version {VERSION}")]
    Version(u8),
    #[error("a record has the unknown kind {0}")]
    Kind(u8),
    #[error("a record has {1} where its {0} should be")]
    Value(&'static str, u64),
}

/// Appends the record of `change` to `out`.
pub(crate) fn encode(change: &Change, out: &mut Vec<u8>) {
    let mut to = FieldWriter::new(out);
    match change {
        Change::Started { epoch, grace } => {
            to.head(STARTED);
            to.u64(epoch.0);
            to.u8(match grace {
                None => 0,
                Some(Exactness::Exact) => 1,
                Some(Exactness::Roster) => 2,
                Some(Exactness::Open) => 3,
            });
        }
        Change::GraceEnded => to.head(GRACE_ENDED),
        Change::Stopped => to.head(STOPPED),
        Change::IdsBelow(id) => to.head_and_id(IDS_BELOW, *id),
        Change::Client(client) => encode_client(&mut to, client),
        Change::ClientGone(id) => to.head_and_id(CLIENT_GONE, id.0),
        Change::Lock(lock) => encode_lock(&mut to, lock),
        Change::LockGone(id) => to.head_and_id(LOCK_GONE, id.0),
        Change::Share(share) => encode_share(&mut to, share),
        Change::ShareGone(id) => to.head_and_id(SHARE_GONE, id.0),
    }
}

fn encode_client(to: &mut FieldWriter<'_>, client: &Client) {
    if client.protocol.is_foreign() {
        to.head_and_id(FOREIGN_CLIENT, client.id.0);
        to.bytes(client.protocol.name().as_bytes());
    } else {
        to.head_and_id(CLIENT, client.id.0);
        to.u8(u8::from(client.protocol == Protocol::NSM));
    }
    to.flags([
        client.monitored,
        client.fenced,
        client.reboot.is_some(),
        client.registrant.is_some(),
    ]);
    to.u32(client.incarnation.0);
    to.u64(client.registered_at_ms);
    to.u64(client.epoch.0);
    to.address(client.address);
    to.bytes(client.name.bytes());
    to.count(client.used.len() as u64);
    client.used.iter().for_each(|address| to.address(*address));
    if let Some(reboot) = client.reboot {
        to.u32(reboot.from.0);
        to.u32(reboot.to.0);
        to.u64(reboot.before.0);
    }
    if let Some(registrant) = &client.registrant {
        to.u32(registrant.callback.program);
        to.u32(registrant.callback.version);
        to.u32(registrant.callback.procedure);
        to.raw(&registrant.private);
        to.bytes(registrant.callback.name.bytes());
        to.bytes(registrant.watched.bytes());
    }
}

fn encode_lock(to: &mut FieldWriter<'_>, lock: &Lock) {
    to.head_and_id(LOCK, lock.id.0);
    to.flags([lock.mode == Mode::Exclusive, lock.monitored, false, false]);
    to.u32(lock.incarnation.0);
    to.u64(lock.since_ms);
    to.u64(lock.range.first());
    to.u64(lock.range.last());
    encode_owner(to, &lock.owner);
    to.bytes(lock.file.bytes());
}

fn encode_share(to: &mut FieldWriter<'_>, share: &Share) {
    to.head_and_id(SHARE, share.id.0);
    to.flags([share.access.read, share.access.write, share.deny.read, share.deny.write]);
    to.u32(share.incarnation.0);
    to.u64(share.since_ms);
    encode_owner(to, &share.owner);
    to.bytes(share.file.bytes());
}

fn encode_owner(to: &mut FieldWriter<'_>, owner: &Owner) {
    to.u64(owner.host.0);
    to.u32(owner.number);
    to.u8(match owner.namespace.transport() {
        Transport::Tcp => 0,
        Transport::Udp => 1,
    });
    to.u8(owner.namespace.version());
    to.address(owner.namespace.server_address());
    to.bytes(owner.tag.bytes());
}

pub(crate) fn encode_metadata(metadata: &Metadata, out: &mut Vec<u8>) {
    let mut to = FieldWriter::new(out);
    to.head(METADATA);
    to.u64(metadata.epoch.0);
    to.u64(metadata.ids_below);
    to.u64(metadata.token.0);
    let inexact = !metadata.exactness.is_exact();
    let open = metadata.exactness == Exactness::Open;
    to.flags([metadata.in_grace, metadata.stopped_cleanly, inexact, metadata.at_rest, open]);
}

pub(crate) fn encode_cleared(out: &mut Vec<u8>) {
    FieldWriter::new(out).head(CLEARED);
}

/// Decodes exactly one record.
pub(crate) fn decode(bytes: &[u8]) -> Result<Record, RecordError> {
    let mut from = FieldReader::new(bytes);
    let version = from.u8("version")?;
    if version != VERSION {
        return Err(RecordError::Version(version));
    }
    let record = match from.u8("kind")? {
        STARTED => Record::Change(Change::Started {
            epoch: Epoch(from.u64("epoch")?),
            grace: match from.u8("grace")? {
                0 => None,
                1 => Some(Exactness::Exact),
                2 => Some(Exactness::Roster),
                3 => Some(Exactness::Open),
                other => return Err(RecordError::Value("grace", u64::from(other))),
            },
        }),
        GRACE_ENDED => Record::Change(Change::GraceEnded),
        STOPPED => Record::Change(Change::Stopped),
        IDS_BELOW => Record::Change(Change::IdsBelow(from.u64("id")?)),
        kind @ (CLIENT | FOREIGN_CLIENT) => {
            let client = decode_client(&mut from, kind == FOREIGN_CLIENT)?;
            Record::Change(Change::Client(Arc::new(client)))
        }
        CLIENT_GONE => Record::Change(Change::ClientGone(ClientId(from.u64("id")?))),
        LOCK => Record::Change(Change::Lock(decode_lock(&mut from)?)),
        LOCK_GONE => Record::Change(Change::LockGone(LockId(from.u64("id")?))),
        SHARE => Record::Change(Change::Share(decode_share(&mut from)?)),
        SHARE_GONE => Record::Change(Change::ShareGone(ShareId(from.u64("id")?))),
        METADATA => Record::Metadata(decode_metadata(&mut from)?),
        CLEARED => Record::Cleared,
        kind => return Err(RecordError::Kind(kind)),
    };
    from.end()?;
    Ok(record)
}

fn decode_client(from: &mut FieldReader<'_>, foreign: bool) -> Result<Client, RecordError> {
    let id = ClientId(from.u64("client id")?);
    let protocol = match foreign {
        false => from.choice("protocol", [Protocol::NLM, Protocol::NSM])?,
        true => decode_foreign_protocol(from)?,
    };
    let [monitored, fenced, has_reboot, has_registrant] = from.flags("flags of a client")?;
    let incarnation = Incarnation(from.u32("incarnation")?);
    let registered_at_ms = from.u64("time")?;
    let epoch = Epoch(from.u64("epoch")?);
    let address = from.address("address")?;
    let name = Name::new(from.bytes("name")?);
    let mut used: Vec<IpAddr> = Vec::new();
    for _ in 0..from.count("number of addresses")? {
        used.push(from.address("address that it used")?);
    }
    let reboot = if has_reboot { Some(decode_reboot(from)?) } else { None };
    let registrant = if has_registrant { Some(decode_registrant(from)?) } else { None };
    Ok(Client {
        id,
        protocol,
        address,
        name,
        incarnation,
        reboot,
        monitored,
        fenced,
        used,
        registered_at_ms,
        epoch,
        registrant,
    })
}

fn decode_foreign_protocol(from: &mut FieldReader<'_>) -> Result<Protocol, RecordError> {
    let name = from.bytes("protocol")?;
    let protocol = std::str::from_utf8(name).ok().and_then(Protocol::new);
    let foreign = protocol.filter(Protocol::is_foreign);
    foreign.ok_or(RecordError::Value("protocol", name.len() as u64))
}

fn decode_reboot(from: &mut FieldReader<'_>) -> Result<Reboot, RecordError> {
    Ok(Reboot {
        from: Incarnation(from.u32("reboot")?),
        to: Incarnation(from.u32("reboot")?),
        before: LockId(from.u64("reboot")?),
    })
}

fn decode_registrant(from: &mut FieldReader<'_>) -> Result<Registrant, RecordError> {
    let program = from.u32("program")?;
    let version = from.u32("version")?;
    let procedure = from.u32("procedure")?;
    let private = from.array("private bytes")?;
    let name = Name::new(from.bytes("name of a registrant")?);
    let watched = Name::new(from.bytes("watched name")?);
    Ok(Registrant { callback: Callback { name, program, version, procedure }, watched, private })
}

fn decode_lock(from: &mut FieldReader<'_>) -> Result<Lock, RecordError> {
    let id = LockId(from.u64("lock id")?);
    let [exclusive, monitored, unused4, unused8] = from.flags("flags of a lock")?;
    if unused4 || unused8 {
        return Err(RecordError::Value("flags of a lock", u64::MAX));
    }
    let incarnation = Incarnation(from.u32("incarnation")?);
    let since_ms = from.u64("time")?;
    let (first, last) = (from.u64("range")?, from.u64("range")?);
    let range = Range::between(first, last).ok_or(RecordError::Value("end of a range", last))?;
    let owner = Arc::new(decode_owner(from)?);
    let file = FileKey::new(from.bytes("file")?);
    let mode = if exclusive { Mode::Exclusive } else { Mode::Shared };
    Ok(Lock { id, file, owner, range, mode, incarnation, monitored, since_ms })
}

fn decode_share(from: &mut FieldReader<'_>) -> Result<Share, RecordError> {
    let id = ShareId(from.u64("share id")?);
    let [reads, writes, deny_read, deny_write] = from.flags("flags of a share")?;
    Ok(Share {
        id,
        access: Access { read: reads, write: writes },
        deny: Access { read: deny_read, write: deny_write },
        incarnation: Incarnation(from.u32("incarnation")?),
        since_ms: from.u64("time")?,
        owner: Arc::new(decode_owner(from)?),
        file: FileKey::new(from.bytes("file")?),
    })
}

fn decode_owner(from: &mut FieldReader<'_>) -> Result<Owner, RecordError> {
    let host = ClientId(from.u64("host")?);
    let number = from.u32("owner's number")?;
    let transport = from.choice("transport", [Transport::Tcp, Transport::Udp])?;
    let version = from.u8("protocol version")?;
    let ours = from.address("our address")?;
    let tag = OwnerTag::new(from.bytes("owner's tag")?);
    Ok(Owner { host, namespace: OwnerNamespace::new(ours, transport, version), number, tag })
}

fn decode_metadata(from: &mut FieldReader<'_>) -> Result<Metadata, RecordError> {
    let epoch = Epoch(from.u64("epoch")?);
    let ids_below = from.u64("id")?;
    let token = Token(from.u64("token")?);
    const FLAGS: &str = "flags of the metadata";
    let [in_grace, stopped_cleanly, inexact, at_rest, open] = from.flags(FLAGS)?;
    let exactness = match (inexact, open) {
        (false, false) => Exactness::Exact,
        (true, false) => Exactness::Roster,
        (true, true) => Exactness::Open,
        (false, true) => return Err(RecordError::Value(FLAGS, 16)),
    };
    Ok(Metadata { epoch, ids_below, token, in_grace, stopped_cleanly, exactness, at_rest })
}

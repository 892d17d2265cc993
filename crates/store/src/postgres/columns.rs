//! Encodes rows for a statement: one array per column, in the order of `rows.rs`.

use std::net::IpAddr;

use keeper::change::{Client, Lock, Share};
use keeper::identity::{Owner, Transport};
use keeper::request::Mode;
use tokio_postgres::types::ToSql;

use super::rows::signed;

/// Parameters of a `tokio_postgres` statement.
pub(super) type Parameters<'a> = Vec<&'a (dyn ToSql + Sync)>;

/// The parameters of one table: the ids to remove, then the columns of the rows to insert or update.
pub(super) trait Columns<'a, R: 'a>: Default {
    fn remove(&mut self, id: u64);
    fn push(&mut self, row: &'a R);
    fn add_to<'b>(&'b self, parameters: &mut Parameters<'b>);
}

#[derive(Default)]
pub(super) struct ClientColumns<'a> {
    removed: Vec<i64>,
    id: Vec<i64>,
    protocol: Vec<&'a str>,
    address: Vec<IpAddr>,
    name: Vec<&'a [u8]>,
    incarnation: Vec<i64>,
    reboot_from: Vec<Option<i64>>,
    reboot_to: Vec<Option<i64>>,
    reboot_before: Vec<Option<i64>>,
    monitored: Vec<bool>,
    fenced: Vec<bool>,
    used: Vec<String>,
    registered_at_ms: Vec<i64>,
    epoch: Vec<i64>,
    callback_name: Vec<Option<&'a [u8]>>,
    program: Vec<Option<i64>>,
    version: Vec<Option<i64>>,
    procedure: Vec<Option<i64>>,
    watched: Vec<Option<&'a [u8]>>,
    private: Vec<Option<&'a [u8]>>,
}

impl<'a> Columns<'a, Client> for ClientColumns<'a> {
    fn remove(&mut self, id: u64) {
        self.removed.push(signed(id));
    }

    fn push(&mut self, client: &'a Client) {
        self.id.push(signed(client.id.0));
        self.protocol.push(client.protocol.name());
        self.address.push(client.address);
        self.name.push(client.name.bytes());
        self.incarnation.push(client.incarnation.0.into());
        self.reboot_from.push(client.reboot.map(|reboot| reboot.from.0.into()));
        self.reboot_to.push(client.reboot.map(|reboot| reboot.to.0.into()));
        self.reboot_before.push(client.reboot.map(|reboot| signed(reboot.before.0)));
        self.monitored.push(client.monitored);
        self.fenced.push(client.fenced);
        let used: Vec<String> = client.used.iter().map(ToString::to_string).collect();
        self.used.push(format!("{{{}}}", used.join(",")));
        self.registered_at_ms.push(signed(client.registered_at_ms));
        self.epoch.push(signed(client.epoch.0));
        let registrant = client.registrant.as_ref();
        let callback = registrant.map(|registrant| &registrant.callback);
        self.callback_name.push(callback.map(|callback| callback.name.bytes()));
        self.program.push(callback.map(|callback| callback.program.into()));
        self.version.push(callback.map(|callback| callback.version.into()));
        self.procedure.push(callback.map(|callback| callback.procedure.into()));
        self.watched.push(registrant.map(|registrant| registrant.watched.bytes()));
        self.private.push(registrant.map(|registrant| registrant.private.as_slice()));
    }

    fn add_to<'b>(&'b self, parameters: &mut Parameters<'b>) {
        parameters.extend::<[&'b (dyn ToSql + Sync); 20]>([
            &self.removed,
            &self.id,
            &self.protocol,
            &self.address,
            &self.name,
            &self.incarnation,
            &self.reboot_from,
            &self.reboot_to,
            &self.reboot_before,
            &self.monitored,
            &self.fenced,
            &self.used,
            &self.registered_at_ms,
            &self.epoch,
            &self.callback_name,
            &self.program,
            &self.version,
            &self.procedure,
            &self.watched,
            &self.private,
        ]);
    }
}

#[derive(Default)]
struct OwnerColumns<'a> {
    host: Vec<i64>,
    ours: Vec<IpAddr>,
    udp: Vec<bool>,
    version: Vec<i64>,
    number: Vec<i64>,
    tag: Vec<&'a [u8]>,
}

impl<'a> OwnerColumns<'a> {
    fn push(&mut self, owner: &'a Owner) {
        self.host.push(signed(owner.host.0));
        self.ours.push(owner.namespace.server_address());
        self.udp.push(owner.namespace.transport() == Transport::Udp);
        self.version.push(owner.namespace.version().into());
        self.number.push(owner.number.into());
        self.tag.push(owner.tag.bytes());
    }

    fn add_to<'b>(&'b self, parameters: &mut Parameters<'b>) {
        parameters.extend::<[&'b (dyn ToSql + Sync); 6]>([
            &self.host,
            &self.ours,
            &self.udp,
            &self.version,
            &self.number,
            &self.tag,
        ]);
    }
}

#[derive(Default)]
pub(super) struct LockColumns<'a> {
    removed: Vec<i64>,
    id: Vec<i64>,
    file: Vec<&'a [u8]>,
    owner: OwnerColumns<'a>,
    first: Vec<i64>,
    last: Vec<i64>,
    exclusive: Vec<bool>,
    incarnation: Vec<i64>,
    monitored: Vec<bool>,
    since_ms: Vec<i64>,
}

impl<'a> Columns<'a, Lock> for LockColumns<'a> {
    fn remove(&mut self, id: u64) {
        self.removed.push(signed(id));
    }

    fn push(&mut self, lock: &'a Lock) {
        self.id.push(signed(lock.id.0));
        self.file.push(lock.file.bytes());
        self.owner.push(&lock.owner);
        self.first.push(signed(lock.range.first()));
        self.last.push(signed(lock.range.last()));
        self.exclusive.push(lock.mode == Mode::Exclusive);
        self.incarnation.push(lock.incarnation.0.into());
        self.monitored.push(lock.monitored);
        self.since_ms.push(signed(lock.since_ms));
    }

    fn add_to<'b>(&'b self, parameters: &mut Parameters<'b>) {
        parameters.extend::<[&'b (dyn ToSql + Sync); 3]>([&self.removed, &self.id, &self.file]);
        self.owner.add_to(parameters);
        parameters.extend::<[&'b (dyn ToSql + Sync); 6]>([
            &self.first,
            &self.last,
            &self.exclusive,
            &self.incarnation,
            &self.monitored,
            &self.since_ms,
        ]);
    }
}

#[derive(Default)]
pub(super) struct ShareColumns<'a> {
    removed: Vec<i64>,
    id: Vec<i64>,
    file: Vec<&'a [u8]>,
    owner: OwnerColumns<'a>,
    reads: Vec<bool>,
    writes: Vec<bool>,
    denies_read: Vec<bool>,
    denies_write: Vec<bool>,
    incarnation: Vec<i64>,
    since_ms: Vec<i64>,
}

impl<'a> Columns<'a, Share> for ShareColumns<'a> {
    fn remove(&mut self, id: u64) {
        self.removed.push(signed(id));
    }

    fn push(&mut self, share: &'a Share) {
        self.id.push(signed(share.id.0));
        self.file.push(share.file.bytes());
        self.owner.push(&share.owner);
        self.reads.push(share.access.read);
        self.writes.push(share.access.write);
        self.denies_read.push(share.deny.read);
        self.denies_write.push(share.deny.write);
        self.incarnation.push(share.incarnation.0.into());
        self.since_ms.push(signed(share.since_ms));
    }

    fn add_to<'b>(&'b self, parameters: &mut Parameters<'b>) {
        parameters.extend::<[&'b (dyn ToSql + Sync); 3]>([&self.removed, &self.id, &self.file]);
        self.owner.add_to(parameters);
        parameters.extend::<[&'b (dyn ToSql + Sync); 6]>([
            &self.reads,
            &self.writes,
            &self.denies_read,
            &self.denies_write,
            &self.incarnation,
            &self.since_ms,
        ]);
    }
}

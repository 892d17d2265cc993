//! READ, WRITE and COMMIT.

use std::{os::fd::OwnedFd, sync::atomic::Ordering::Relaxed};

use bytes::Bytes;
use rustix::{
    fs::{fdatasync, fsync, syncfs},
    io::{Errno, pwrite},
};

use super::{
    Metadata, node::Node, permission::ask_to_write, sys, tree::Tree, uncommitted::Uncommitted,
};
use crate::{
    Attributes, Change, Context, Error, FileKind, ObjectId, Patience, ReadOut, Result, Snapshot,
    Stability, WriteVerifier, Written,
};

impl Tree {
    pub(super) fn read(
        &self,
        context: &Context<'_>,
        file: &ObjectId,
        offset: u64,
        count: u32,
    ) -> Result<ReadOut> {
        let node = self.node(context, file)?;
        check_regular(&node)?;
        // Looked at before the data is read: attributes that are older than the data make a
        // client look again, newer ones would make it believe that old data is current.
        let attributes = self.attributes(&node)?;
        self.may_read(context, &node, &attributes)?;
        let wanted = u64::from(count).min(attributes.size.saturating_sub(offset)) as usize;
        let mut data = Vec::new();
        if wanted > 0 {
            data.reserve_exact(wanted);
            let fd = match context.patience {
                Patience::Now => node.reader(|| Err(Error::WouldBlock))?,
                Patience::Wait => self.reader(&node)?,
            };
            let nowait = context.patience == Patience::Now;
            while data.len() < wanted {
                let (left, at) = (wanted - data.len(), offset + data.len() as u64);
                match sys::read_at(fd, &mut data, left, at, nowait) {
                    // It became shorter meanwhile.
                    Ok(0) => break,
                    Ok(_) => {}
                    Err(Errno::AGAIN | Errno::NOTSUP) if nowait => return Err(Error::WouldBlock),
                    Err(Errno::INTR) => {}
                    Err(other) => return Err(other.into()),
                }
            }
        }
        let eof =
            data.len() < wanted || offset.saturating_add(data.len() as u64) >= attributes.size;
        Ok(ReadOut { data: Bytes::from(data), eof, attributes: Some(attributes) })
    }

    pub(super) fn write(
        &self,
        context: &Context<'_>,
        file: &ObjectId,
        offset: u64,
        data: &Bytes,
        stability: Stability,
    ) -> Result<Written> {
        let node = self.node(context, file)?;
        check_regular(&node)?;
        if offset.checked_add(data.len() as u64).is_none_or(|end| end > i64::MAX as u64) {
            return Err(Error::TooLarge);
        }
        let (count, file) = {
            let _order = node.in_order();
            let before = self.attributes(&node)?;
            let verdict = self.known_to_write(context, &node, &before);
            verdict.unwrap_or(Ok(()))?;
            // With the server's authority, so before the switch.
            let fd = self.writer(&node)?;
            let count = {
                // Under the caller's identity, so that the kernel takes set-user-id away and
                // holds the caller to its quota.
                let _caller = self.identity.assume(context.caller)?;
                if verdict.is_none() {
                    ask_to_write(&node)?;
                }
                write_all(fd, data, offset)?
            };
            if stability == Stability::Unstable && count > 0 {
                self.uncommitted.wrote(&node);
            }
            (count, self.change(&node, &before))
        };
        match stability {
            Stability::Unstable => {
                // A few, so that the bound comes back into reach, but one writer does not work
                // for all the others.
                for oldest in (0..4).map_while(|_| self.uncommitted.excess()) {
                    // A failure changes the verifier, and with that the client that wrote is told.
                    let _ = self.sync(&oldest, Stability::File);
                }
            }
            Stability::Data | Stability::File => self.sync(&node, stability)?,
        }
        Ok(Written { count, stability, file })
    }

    pub(super) fn commit(&self, context: &Context<'_>, file: &ObjectId) -> Result<Change> {
        let node = self.node(context, file)?;
        check_regular(&node)?;
        self.sync(&node, Stability::File)?;
        // A commit changes nothing, so one look is both before and after.
        let after = self.attributes(&node)?;
        Ok(Change { before: Some(Snapshot::from(&after)), after: Some(after) })
    }

    /// Makes the file's data durable, with all unstable writes up to now. If that fails, they may
    /// be lost for good (the kernel drops the pages and reports it once), so the verifier changes.
    pub(super) fn sync(&self, node: &Node, stability: Stability) -> Result<()> {
        // The kernel reports a failure once. Who asks next must not be told that all is well
        // before the verifier has changed.
        let _turn = (node.kind == FileKind::Regular).then(|| node.syncing());
        let writes = Uncommitted::writes(node);
        let fd = match node.open_writer() {
            Some(fd) => fd,
            // A server without privileges may write what it cannot read.
            None => self.reader(node).or_else(|_| self.writer(node))?,
        };
        let synced = if stability == Stability::Data { fdatasync(fd) } else { fsync(fd) };
        match synced {
            Ok(()) => {
                self.uncommitted.committed(node, writes);
                Ok(())
            }
            Err(error) => {
                self.renew_verifier();
                tracing::error!(%error, object = ?node.id, "a file could not be written to disk");
                self.uncommitted.forget(&node.id);
                Err(error.into())
            }
        }
    }

    /// Makes changes of the file itself or, of a directory, its entries durable, if the export
    /// asks for that.
    pub(super) fn sync_metadata(&self, node: &Node) -> Result<()> {
        if self.metadata == Metadata::Async {
            return Ok(());
        }
        match node.kind {
            // A file that the server may not open for reading is left to the next case.
            FileKind::Regular | FileKind::Directory
                if node.open_writer().is_some() || self.reader(node).is_ok() =>
            {
                self.sync(node, Stability::File)
            }
            // There is no descriptor with which one link or device could be synchronised.
            _ => syncfs(&self.mount).map_err(|error| {
                self.renew_verifier();
                tracing::error!(%error, "the file system could not be written to disk");
                Error::from(error)
            }),
        }
    }

    pub(super) fn write_verifier(&self) -> WriteVerifier {
        self.verifier.load(Relaxed).to_be_bytes()
    }

    fn renew_verifier(&self) {
        // Without randomness, any other value does.
        let new = sys::random().unwrap_or_else(|_| self.verifier.load(Relaxed).wrapping_add(1));
        self.verifier.store(new, Relaxed);
    }

    /// What an operation did to a file. Called while the file's order is held.
    pub(super) fn change(&self, node: &Node, before: &Attributes) -> Change {
        let after = self.attributes(node).ok();
        Change { before: Some(Snapshot::from(before)), after }
    }
}

fn check_regular(node: &Node) -> Result<()> {
    match node.kind {
        FileKind::Regular => Ok(()),
        FileKind::Directory => Err(Error::IsADirectory),
        _ => Err(Error::Invalid),
    }
}

/// Writes everything, or as much as there is room for.
fn write_all(fd: &OwnedFd, data: &[u8], offset: u64) -> Result<u32> {
    let mut done = 0;
    while done < data.len() {
        match pwrite(fd, &data[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(Errno::INTR) => {}
            Err(_) if done > 0 => break,
            Err(error) => return Err(error.into()),
        }
    }
    if done == 0 && !data.is_empty() { Err(Error::Io) } else { Ok(done as u32) }
}

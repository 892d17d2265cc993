//! READ, WRITE and COMMIT.

use std::{
    os::fd::{AsFd, OwnedFd},
    sync::atomic::Ordering::Relaxed,
};

use bytes::Bytes;
use rustix::{
    fs::{Mode, OFlags, fdatasync, fsync, openat, syncfs},
    io::{Errno, pwrite},
};

use super::{
    MetadataMode,
    node::{Node, Opened},
    permission::check_write,
    sys,
    tree::Tree,
    uncommitted::UncommittedFiles,
};
use crate::{
    AttributeChange, Attributes, BlockingMode, Context, Error, FileKind, ObjectId, ReadReply,
    Result, Stability, WccAttributes, WriteReply, WriteVerifier, buffers::Buffer,
};

/// So much after a range that is read the kernel may begin to read, at most, with its default
/// settings.
const READ_AHEAD: u64 = 256 << 10;

/// Up to this size it costs little to find out whether a whole file is in memory.
const SMALL_FILE: u64 = 256 << 20;

impl Tree {
    pub(super) fn read(
        &self,
        context: &Context<'_>,
        file: &ObjectId,
        offset: u64,
        count: u32,
    ) -> Result<ReadReply> {
        let node = self.node(context, file)?;
        check_regular(&node)?;
        // Before the data: attributes newer than the data would make the client take its copy for
        // current; older ones only make it ask again.
        let attributes = self.attributes(&node)?;
        self.may_read(context, &node, &attributes)?;
        let wanted = u64::from(count).min(attributes.size.saturating_sub(offset)) as usize;
        let mut data = Buffer::default();
        if wanted > 0 {
            let fd = match context.blocking {
                BlockingMode::Nonblocking => node.reader(|| Err(Error::WouldBlock))?,
                BlockingMode::MayBlock => self.reader(&node)?,
            };
            let nowait = context.blocking == BlockingMode::Nonblocking;
            // The kernel may wait for the journal with an access time, although all data is in memory (B1.67).
            if nowait
                && (self.access_times.are_written(&attributes)
                    || !self.is_in_memory(&node, &fd, &attributes, offset, wanted as u64))
            {
                return Err(Error::WouldBlock);
            }
            data = Buffer::with_capacity(wanted);
            while data.len() < wanted {
                let (left, at) = (wanted - data.len(), offset + data.len() as u64);
                match sys::read_at(&fd, data.rest(left), at, nowait) {
                    // Truncated meanwhile.
                    Ok(0) => break,
                    Ok(read) => data.fill(read),
                    Err(Errno::AGAIN | Errno::NOTSUP) if nowait => return Err(Error::WouldBlock),
                    Err(Errno::INTR) => {}
                    Err(other) => return Err(other.into()),
                }
            }
        }
        let eof =
            data.len() < wanted || offset.saturating_add(data.len() as u64) >= attributes.size;
        Ok(ReadReply { data: data.freeze(), eof, attributes: Some(attributes) })
    }

    /// Whether the range is in memory, with what the kernel would read ahead. Otherwise it would begin
    /// to read from the disk, and to find out where may wait for it in spite of `RWF_NOWAIT`.
    fn is_in_memory(
        &self,
        node: &Node,
        fd: impl AsFd,
        attributes: &Attributes,
        offset: u64,
        wanted: u64,
    ) -> bool {
        let Attributes { size, .. } = *attributes;
        let is_cached = |from, length| sys::is_cached(&fd, from, length) != Some(false);
        // Mostly the whole file is, and need not be looked at for each range.
        (size <= SMALL_FILE && node.is_in_memory(|| is_cached(0, size)))
            || is_cached(offset, (wanted + READ_AHEAD).min(size - offset))
    }

    pub(super) fn write(
        &self,
        context: &Context<'_>,
        file: &ObjectId,
        offset: u64,
        data: &Bytes,
        stability: Stability,
    ) -> Result<WriteReply> {
        let node = self.node(context, file)?;
        check_regular(&node)?;
        if offset.checked_add(data.len() as u64).is_none_or(|end| end > i64::MAX as u64) {
            return Err(Error::TooLarge);
        }
        let (count, file) = {
            let _order = node.lock_for_change();
            let found = self.attributes(&node)?;
            let permission = self.cached_may_write(context, &node, &found);
            permission.unwrap_or(Ok(()))?;
            // Needs the server's privileges, so before the identity changes.
            let fd = self.writer(&node)?;
            let count = {
                // As the caller, so that the kernel clears set-user-id and charges its quota.
                let _caller = self.identity.assume(context.caller)?;
                if permission.is_none() {
                    check_write(&node)?;
                }
                write_all(&fd, data, offset)?
            };
            if stability == Stability::Unstable && count > 0 {
                self.uncommitted.add(&node);
            }
            // Without the attributes of before: programs of the host write without our lock.
            (count, self.change(&node, None))
        };
        match stability {
            Stability::Unstable => {
                // Bounded: back under the limit in a few writes, without one request paying for
                // all.
                for oldest in (0..4).map_while(|_| self.uncommitted.excess()) {
                    // A failure changes the write verifier, by which its writer learns of it.
                    let _ = self.sync(&oldest, Stability::File);
                }
            }
            Stability::Data | Stability::File => self.sync(&node, stability)?,
        }
        Ok(WriteReply { count, stability, file })
    }

    pub(super) fn commit(&self, context: &Context<'_>, file: &ObjectId) -> Result<AttributeChange> {
        let node = self.node(context, file)?;
        check_regular(&node)?;
        self.sync(&node, Stability::File)?;
        // A commit changes no attribute.
        let after = self.attributes(&node)?;
        Ok(AttributeChange { before: Some(WccAttributes::from(&after)), after: Some(after) })
    }

    /// Makes all writes up to now durable. If that fails they may be lost (the kernel drops the
    /// pages and reports it once), so the write verifier changes before this returns.
    pub(super) fn sync(&self, node: &Node, stability: Stability) -> Result<()> {
        // The kernel reports a failure once, so a concurrent `fsync` succeeds: it must not return
        // before the verifier has changed.
        let _sync = (node.kind == FileKind::Regular).then(|| node.sync_lock());
        let writes = UncommittedFiles::writes(node);
        let fd = match node.open_writer() {
            Some(fd) => Opened::Shared(fd),
            // An unprivileged server may be able to write a file that it cannot read.
            None => self.reader(node).or_else(|_| self.writer(node).map(Opened::Shared))?,
        };
        let synced = if stability == Stability::Data { fdatasync(&fd) } else { fsync(&fd) };
        match synced {
            Ok(()) => {
                self.uncommitted.committed(node, writes);
                Ok(())
            }
            Err(error) => {
                self.renew_verifier();
                tracing::error!(%error, object = ?node.id, "fsync failed; unstable writes may be lost");
                self.uncommitted.forget(&node.id);
                Err(error.into())
            }
        }
    }

    /// Makes the attributes of a file, or the entries of a directory, durable if the export is
    /// configured so.
    pub(super) fn sync_metadata(&self, node: &Node) -> Result<()> {
        if self.metadata == MetadataMode::Async {
            return Ok(());
        }
        match node.kind {
            // Files that the server cannot open fall through to `syncfs`.
            FileKind::Regular | FileKind::Directory
                if node.open_writer().is_some() || self.reader(node).is_ok() =>
            {
                self.sync(node, Stability::File)
            }
            // Links and special files have no descriptor to `fsync`.
            _ => self.sync_log().or_else(|_| self.sync_all()),
        }
    }

    /// Makes all changes of metadata durable by the `fsync` of a new file without a name, where they
    /// share one log. Unlike `syncfs` it waits for no data.
    fn sync_log(&self) -> Result<()> {
        if !self.kind.has_one_log {
            return Err(Error::NotSupported);
        }
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        let file = openat(&self.mount, c".", flags, Mode::RUSR | Mode::WUSR)?;
        Ok(fsync(&file)?)
    }

    fn sync_all(&self) -> Result<()> {
        syncfs(&self.mount).map_err(|error| {
            self.renew_verifier();
            tracing::error!(%error, "syncfs failed; unstable writes may be lost");
            Error::from(error)
        })
    }

    pub(super) fn write_verifier(&self) -> WriteVerifier {
        self.verifier.load(Relaxed).to_be_bytes()
    }

    fn renew_verifier(&self) {
        // Any different value will do.
        let new = sys::random().unwrap_or_else(|_| self.verifier.load(Relaxed).wrapping_add(1));
        self.verifier.store(new, Relaxed);
    }

    /// The change of a file's attributes since `before`, if they are known. The order lock must have
    /// been held since they were read.
    pub(super) fn change(&self, node: &Node, before: Option<&Attributes>) -> AttributeChange {
        // Programs of the host may have changed the file in between.
        let before = before.filter(|_| self.is_exclusive).map(WccAttributes::from);
        AttributeChange { before, after: self.attributes(node).ok() }
    }
}

fn check_regular(node: &Node) -> Result<()> {
    match node.kind {
        FileKind::Regular => Ok(()),
        FileKind::Directory => Err(Error::IsADirectory),
        _ => Err(Error::Invalid),
    }
}

/// Writes all of `data`, or as much as fits on the disk.
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

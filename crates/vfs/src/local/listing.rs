//! READDIR and READDIRPLUS.
//!
//! Cookies are the kernel's directory offsets where those last. Each call opens the directory again
//! and seeks to the cookie, so a continuation costs no more than the beginning, and clients do not
//! share a position. Where an offset is a position in a list that the file system makes anew at each
//! open, names are listed in the order of their hashes instead (`sorted.rs`).

mod sorted;

use std::mem::MaybeUninit;

use rustix::fs::{OFlags, RawDir, SeekFrom, seek};

pub(super) use sorted::SortedListings;

use super::{node::Node, status::status_of_entry, tree::Tree};
use crate::{Attributes, Context, DirEntry, Error, LookupReply, ObjectId, ReadDirReply, Result};
use sorted::Position;

/// Roughly one reply: names alone, and names with attributes and handles.
const BUFFER: usize = 32 * 1024;
const BUFFER_PLUS: usize = 8 * 1024;

type Sink<'a> = dyn FnMut(DirEntry<'_>) -> bool + 'a;

/// A directory that is being listed.
struct Listed<'a> {
    dir: &'a Node,
    attributes: &'a Attributes,
    /// Objects and attributes are wanted, and the caller may have them.
    plus: bool,
}

impl Tree {
    pub(super) fn read_dir(
        &self,
        context: &Context<'_>,
        dir: &ObjectId,
        cookie: u64,
        plus: bool,
        sink: &mut Sink<'_>,
    ) -> Result<ReadDirReply> {
        let dir = self.directory(context, dir)?;
        let attributes = self.attributes(&dir)?;
        let may = self.permissions(context, &dir, &attributes)?;
        if !may.read {
            return Err(Error::Denied);
        }
        let listed = Listed { dir: &dir, attributes: &attributes, plus: plus && may.execute };
        let eof = match self.kind.has_lasting_offsets {
            true => self.list_by_offset(&listed, cookie, sink)?,
            false => self.list_by_hash(&listed, cookie, sink)?,
        };
        Ok(ReadDirReply { verifier: [0; 8], eof, attributes: Some(attributes) })
    }

    /// Returns whether the end was reached.
    fn list_by_offset(
        &self,
        listed: &Listed<'_>,
        cookie: u64,
        sink: &mut Sink<'_>,
    ) -> Result<bool> {
        let fd = self.reopen(listed.dir.path(), OFlags::RDONLY | OFlags::DIRECTORY)?;
        if cookie != 0 {
            // The kernel refuses offsets that the file system cannot have given out.
            seek(&fd, SeekFrom::Start(cookie)).map_err(|_| Error::BadCookie)?;
        }
        let size = if listed.plus { BUFFER_PLUS } else { BUFFER };
        let mut buffer = vec![MaybeUninit::uninit(); size];
        let mut entries = RawDir::new(&fd, &mut buffer);
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if !self.pass(listed, name, entry.ino(), entry.next_entry_cookie(), sink) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns whether the end was reached.
    fn list_by_hash(&self, listed: &Listed<'_>, cookie: u64, sink: &mut Sink<'_>) -> Result<bool> {
        let dir = listed.dir;
        if cookie == 0 {
            self.listings.begin(&dir.id);
        }
        for (number, name) in [b".".as_slice(), b".."].into_iter().enumerate() {
            let own = number as u64 + 1;
            if cookie >= own {
                continue;
            }
            let fileid = match number {
                0 => listed.attributes.fileid,
                // It is not looked at outside of the export.
                _ if dir.id == self.root.id => listed.attributes.fileid,
                _ => status_of_entry(dir.path(), name)?.attributes.fileid,
            };
            if !self.pass(listed, name, fileid, own, sink) {
                return Ok(false);
            }
        }
        let mut position = Position::after(cookie);
        loop {
            let page = match self.listings.find(&dir.id, position) {
                Some(page) => page,
                None => {
                    let fd = self.reopen(dir.path(), OFlags::RDONLY | OFlags::DIRECTORY)?;
                    self.listings.read(&dir.id, &fd, position)?
                }
            };
            for entry in page.entries_after(position) {
                if !self.pass(listed, entry.name, entry.fileid, entry.cookie, sink) {
                    return Ok(false);
                }
            }
            match page.next() {
                Some(next) => position = next,
                None => return Ok(true),
            }
        }
    }

    /// Passes an entry to `sink`; returns whether it was accepted.
    fn pass(
        &self,
        listed: &Listed<'_>,
        name: &[u8],
        fileid: u64,
        cookie: u64,
        sink: &mut Sink<'_>,
    ) -> bool {
        let Listed { dir, attributes, plus } = *listed;
        let own = LookupReply { object: dir.id, attributes: *attributes };
        let at_root = name == b".." && dir.id == self.root.id;
        let fileid = if at_root { attributes.fileid } else { fileid };
        let lookup = match name {
            _ if !plus => None,
            b"." => Some(own),
            b".." => at_root.then_some(own),
            _ => self.lookup_entry(dir, name, fileid),
        };
        sink(DirEntry { name, fileid, cookie, lookup })
    }
}

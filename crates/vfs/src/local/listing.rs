//! READDIR and READDIRPLUS, with the kernel's directory offsets as cookies.
//!
//! Each call opens the directory again and seeks to the cookie, so a continuation costs no more
//! than the beginning, and clients do not share a position.

use std::mem::MaybeUninit;

use rustix::fs::{OFlags, RawDir, SeekFrom, seek};

use super::{node::Node, tree::Tree};
use crate::{Attributes, Context, DirEntry, Error, LookupReply, ObjectId, ReadDirReply, Result};

/// Roughly one reply: names alone, and names with attributes and handles.
const BUFFER: usize = 32 * 1024;
const BUFFER_PLUS: usize = 8 * 1024;

impl Tree {
    pub(super) fn read_dir(
        &self,
        context: &Context<'_>,
        dir: &ObjectId,
        cookie: u64,
        plus: bool,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<ReadDirReply> {
        let dir = self.directory(context, dir)?;
        let attributes = self.attributes(&dir)?;
        let may = self.permissions(context, &dir, &attributes)?;
        if !may.read {
            return Err(Error::Denied);
        }
        let eof = self.list(&dir, &attributes, cookie, plus && may.execute, sink)?;
        Ok(ReadDirReply { verifier: [0; 8], eof, attributes: Some(attributes) })
    }

    /// Returns whether the end was reached.
    fn list(
        &self,
        dir: &Node,
        attributes: &Attributes,
        cookie: u64,
        plus: bool,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<bool> {
        let fd = self.reopen(&dir.path, OFlags::RDONLY | OFlags::DIRECTORY)?;
        if cookie != 0 {
            // The kernel refuses offsets that the file system cannot have given out.
            seek(&fd, SeekFrom::Start(cookie)).map_err(|_| Error::BadCookie)?;
        }
        let mut buffer = vec![MaybeUninit::uninit(); if plus { BUFFER_PLUS } else { BUFFER }];
        let mut entries = RawDir::new(&fd, &mut buffer);
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            let at_root = name == b".." && dir.id == self.root.id;
            let fileid = if at_root { attributes.fileid } else { entry.ino() };
            let lookup = match name {
                b"." => Some(LookupReply { object: dir.id, attributes: *attributes }),
                b".." => at_root.then_some(LookupReply { object: dir.id, attributes: *attributes }),
                _ if plus => self.lookup_entry(dir, name, fileid),
                _ => None,
            };
            let lookup = lookup.filter(|_| plus);
            if !sink(DirEntry { name, fileid, cookie: entry.next_entry_cookie(), lookup }) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

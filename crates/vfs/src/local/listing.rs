//! READDIR and READDIRPLUS, by the kernel's own cookies.
//!
//! Each call opens the directory anew and seeks to the cookie, so that a listing costs the same
//! wherever it goes on, and any number of clients list at once.

use std::mem::MaybeUninit;

use rustix::fs::{OFlags, RawDir, SeekFrom, seek};

use super::{node::Node, tree::Tree};
use crate::{Attributes, Context, DirEntry, Error, Listed, Looked, ObjectId, Result};

/// About what fits in one reply: names alone, and names with attributes and handles.
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
    ) -> Result<Listed> {
        let dir = self.directory(context, dir)?;
        let attributes = self.attributes(&dir)?;
        let may = self.permissions(context, &dir, &attributes)?;
        if !may.read {
            return Err(Error::Denied);
        }
        let eof = self.list(&dir, &attributes, cookie, plus && may.execute, sink)?;
        Ok(Listed { verifier: [0; 8], eof, attributes: Some(attributes) })
    }

    /// `true` if the end was reached.
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
            // The kernel refuses positions that the file system cannot have given.
            seek(&fd, SeekFrom::Start(cookie)).map_err(|_| Error::BadCookie)?;
        }
        let mut buffer = vec![MaybeUninit::uninit(); if plus { BUFFER_PLUS } else { BUFFER }];
        let mut entries = RawDir::new(&fd, &mut buffer);
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            let at_root = name == b".." && dir.id == self.root.id;
            let fileid = if at_root { attributes.fileid } else { entry.ino() };
            let found = match name {
                b"." => Some(Looked { object: dir.id, attributes: *attributes }),
                b".." => at_root.then_some(Looked { object: dir.id, attributes: *attributes }),
                _ if plus => self.look_at_entry(dir, name, fileid),
                _ => None,
            };
            let found = found.filter(|_| plus);
            if !sink(DirEntry { name, fileid, cookie: entry.next_entry_cookie(), found }) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

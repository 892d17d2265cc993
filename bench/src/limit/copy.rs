//! recv and pwrite, pread and send: through one buffer, which stays in the processor's cache as far
//! as it fits.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::FileExt;

use super::record::{Records, Reply};

#[derive(Default)]
pub(super) struct Buffer(Vec<u8>);

impl Buffer {
    pub(super) fn write(
        &mut self,
        from: &mut Records,
        file: &File,
        at: u64,
        count: u32,
    ) -> io::Result<()> {
        let data = self.first(count as usize);
        from.data(data.len()).read_exact(data)?;
        file.write_all_at(data, at)
    }

    /// Reply and data in one send.
    pub(super) fn read(
        &mut self,
        file: &File,
        at: u64,
        reply: &Reply,
        count: u32,
        to: &mut TcpStream,
    ) -> io::Result<()> {
        let head = reply.bytes();
        let whole = self.first(head.len() + count as usize);
        let (start, data) = whole.split_at_mut(head.len());
        start.copy_from_slice(head);
        file.read_exact_at(data, at)?;
        to.write_all(whole)
    }

    fn first(&mut self, count: usize) -> &mut [u8] {
        if self.0.len() < count {
            self.0.resize(count, 0);
        }
        &mut self.0[..count]
    }
}

//! splice and sendfile: data never enters the process.

use std::fs::File;
use std::io;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use rustix::fs::sendfile;
use rustix::net::{SendFlags, send};
use rustix::pipe::{SpliceFlags, fcntl_setpipe_size, pipe, splice};

use super::record::{Records, Reply};

const PIPE_BYTES: usize = 1 << 20;

pub(super) struct Pipe {
    out: OwnedFd,
    into: OwnedFd,
}

impl Pipe {
    pub(super) fn new() -> io::Result<Self> {
        let (out, into) = pipe()?;
        fcntl_setpipe_size(&into, PIPE_BYTES)?;
        Ok(Self { out, into })
    }

    pub(super) fn write(
        &mut self,
        from: &mut Records,
        file: &File,
        mut at: u64,
        count: u32,
    ) -> io::Result<()> {
        let end = at + u64::from(count);
        let stream = from.data(count as usize);
        // What came with the head.
        let first = stream.buffer();
        let first = &first[..first.len().min(count as usize)];
        file.write_all_at(first, at)?;
        let taken = first.len();
        at += taken as u64;
        io::BufRead::consume(stream, taken);
        let (stream, flags) = (stream.get_ref(), SpliceFlags::MOVE);
        while at < end {
            let mut piped = splice(stream, None, &self.into, None, (end - at) as usize, flags)?;
            if piped == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            while piped > 0 {
                piped -= splice(&self.out, None, file, Some(&mut at), piped, flags)?;
            }
        }
        Ok(())
    }
}

pub(super) fn read(
    file: &File,
    mut at: u64,
    reply: &Reply,
    count: u32,
    to: &mut TcpStream,
) -> io::Result<()> {
    let mut head = reply.bytes();
    while !head.is_empty() {
        let sent = send(&*to, head, SendFlags::MORE)?;
        head = &head[sent..];
    }
    let end = at + u64::from(count);
    while at < end {
        let left = (end - at) as usize;
        if sendfile(&*to, file, Some(&mut at), left)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(())
}

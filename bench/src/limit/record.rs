//! Calls of the load generator and replies to them, no more of either than the loops need.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use wire::rpc::Procedure;
use wire::{mount, nfs3};

/// More than the head of any call, and little to copy if data follows.
const HEAD_BYTES: usize = 512;

/// A call before its data.
pub(super) enum Head {
    Read {
        xid: u32,
        file: u32,
        at: u64,
        count: u32,
    },
    /// The data follows in the stream.
    Write {
        xid: u32,
        file: u32,
        at: u64,
        count: u32,
    },
    Create {
        xid: u32,
    },
    Mount {
        xid: u32,
    },
    Commit {
        xid: u32,
    },
    Remove {
        xid: u32,
    },
    Null {
        xid: u32,
    },
}

/// The calls of a connection. Each is one fragment.
pub(super) struct Records {
    stream: BufReader<TcpStream>,
    /// What is left of the present record.
    left: usize,
}

impl Records {
    pub(super) fn new(stream: TcpStream) -> Self {
        Self { stream: BufReader::with_capacity(HEAD_BYTES, stream), left: 0 }
    }

    /// The head of the next call. The data of a WRITE must have been taken from the stream.
    pub(super) fn next(&mut self) -> io::Result<Head> {
        self.skip(self.left)?;
        self.left = 4;
        self.left = (self.word()? & 0x7fff_ffff) as usize;
        let xid = self.word()?;
        self.skip(8)?;
        let (program, _, procedure) = (self.word()?, self.word()?, self.word()?);
        for _credential_and_verifier in 0..2 {
            self.skip(4)?;
            let length = self.word()?;
            self.skip(length.next_multiple_of(4) as usize)?;
        }
        if (program, procedure) == (mount::PROGRAM, mount::Mnt::NUMBER) {
            return Ok(Head::Mount { xid });
        }
        Ok(match procedure {
            nfs3::Read::NUMBER => {
                let (file, at, count) = self.place()?;
                Head::Read { xid, file, at, count }
            }
            nfs3::Write::NUMBER => {
                let (file, at, count) = self.place()?;
                self.skip(8)?;
                Head::Write { xid, file, at, count }
            }
            nfs3::Create::NUMBER | nfs3::MkDir::NUMBER => Head::Create { xid },
            nfs3::Commit::NUMBER => Head::Commit { xid },
            nfs3::Remove::NUMBER | nfs3::RmDir::NUMBER => Head::Remove { xid },
            _ => Head::Null { xid },
        })
    }

    /// The stream, from which `count` bytes of data are taken.
    pub(super) fn data(&mut self, count: usize) -> &mut BufReader<TcpStream> {
        self.left = self.left.saturating_sub(count);
        &mut self.stream
    }

    fn place(&mut self) -> io::Result<(u32, u64, u32)> {
        self.skip(4)?;
        let (file, high, low) = (self.word()?, self.word()?, self.word()?);
        Ok((file, u64::from(high) << 32 | u64::from(low), self.word()?))
    }

    fn word(&mut self) -> io::Result<u32> {
        let mut bytes = [0; 4];
        self.data(4).read_exact(&mut bytes)?;
        Ok(u32::from_be_bytes(bytes))
    }

    fn skip(&mut self, mut count: usize) -> io::Result<()> {
        while count > 0 {
            let there = self.stream.fill_buf()?.len().min(count);
            if there == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.data(there).consume(there);
            count -= there;
        }
        Ok(())
    }
}

/// A reply with its mark; that of a READ without the data.
pub(super) struct Reply(Vec<u8>);

impl Reply {
    pub(super) fn read(xid: u32, count: u32) -> Self {
        Self::new(xid, &[0, 0, count, 0, count], count)
    }

    pub(super) fn written(xid: u32, count: u32) -> Self {
        Self::new(xid, &[0, 0, 0, count, 0, 0, 0], 0)
    }

    pub(super) fn created(xid: u32, file: u32) -> Self {
        Self::new(xid, &[0, 1, 4, file, 0, 0, 0], 0)
    }

    pub(super) fn mounted(xid: u32) -> Self {
        Self::new(xid, &[0, 4, 0, 1, 1], 0)
    }

    pub(super) fn committed(xid: u32) -> Self {
        Self::new(xid, &[0, 0, 0, 0, 0], 0)
    }

    pub(super) fn removed(xid: u32) -> Self {
        Self::new(xid, &[0, 0, 0], 0)
    }

    pub(super) fn null(xid: u32) -> Self {
        Self::new(xid, &[], 0)
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub(super) fn send(&self, to: &mut impl Write) -> io::Result<()> {
        to.write_all(&self.0)
    }

    fn new(xid: u32, results: &[u32], data: u32) -> Self {
        // An accepted call without a verifier, executed.
        let head = [xid, 1, 0, 0, 0, 0];
        let length = 4 * (head.len() + results.len()) as u32 + data;
        let words = [1 << 31 | length].into_iter().chain(head).chain(results.iter().copied());
        Self(words.flat_map(u32::to_be_bytes).collect())
    }
}

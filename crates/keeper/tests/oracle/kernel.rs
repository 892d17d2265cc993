//! The kernel: open-file-description locks on a temporary file. An open file description is an
//! owner there, as (host, namespace, number, tag) is here.

use std::fs::File;
use std::os::fd::AsFd;

use lockkeeper_keeper::request::Mode;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc::{self, flock};

use super::operation::{Answer, Held, LAST, OWNERS, Operation, Verb};

pub struct Kernel {
    opens: Vec<File>,
}

impl Kernel {
    pub fn new() -> Self {
        let file = tempfile::NamedTempFile::new().unwrap();
        let open = || File::options().read(true).write(true).open(file.path()).unwrap();
        Self { opens: (0..OWNERS).map(|_| open()).collect() }
    }

    /// Unlocks everything of every owner.
    pub fn clear(&self) {
        for open in &self.opens {
            fcntl(open.as_fd(), FcntlArg::F_OFD_SETLK(&record(libc::F_UNLCK, 0, 0))).unwrap();
        }
    }

    pub fn judge(&self, operation: Operation) -> Answer {
        let Operation { owner, verb, offset, length } = operation;
        // `fcntl` offsets are signed: a lock of all 2^63 bytes can only be expressed as "to the
        // end", and a longer one not at all.
        let length = if offset == 0 && length == LAST + 1 { 0 } else { length };
        let (Ok(start), Ok(length)) = (i64::try_from(offset), i64::try_from(length)) else {
            return Answer::OffsetTooLarge;
        };
        let open = self.opens[owner].as_fd();
        let kind = match verb {
            Verb::Unlock => libc::F_UNLCK,
            Verb::Lock(Mode::Shared) | Verb::Test(Mode::Shared) => libc::F_RDLCK,
            Verb::Lock(Mode::Exclusive) | Verb::Test(Mode::Exclusive) => libc::F_WRLCK,
        };
        let mut record = record(kind, start, length);
        let result = match verb {
            Verb::Test(_) => fcntl(open, FcntlArg::F_OFD_GETLK(&mut record)),
            _ => fcntl(open, FcntlArg::F_OFD_SETLK(&record)),
        };
        match (result, verb) {
            (Ok(_), Verb::Test(_)) => match i32::from(record.l_type) {
                libc::F_UNLCK => Answer::Free,
                kind => Answer::Held(Held {
                    first: record.l_start as u64,
                    last: match record.l_len {
                        0 => LAST,
                        length => (record.l_start + length - 1) as u64,
                    },
                    mode: if kind == libc::F_WRLCK { Mode::Exclusive } else { Mode::Shared },
                }),
            },
            (Ok(_), _) => Answer::Done,
            (Err(Errno::EAGAIN | Errno::EACCES), _) => Answer::Conflict,
            (Err(Errno::EOVERFLOW | Errno::EINVAL), _) => Answer::OffsetTooLarge,
            (Err(other), _) => panic!("the kernel says {other} to {operation:?}"),
        }
    }
}

fn record(kind: i32, start: i64, length: i64) -> flock {
    flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start,
        l_len: length,
        l_pid: 0,
    }
}

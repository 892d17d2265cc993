//! NFS calls, their bytes and their errors, counted per connection and per export (B8.92). In memory only.
//!
//! Network threads share no line of memory for it: a connection has counters of its own, an export has
//! some for each of a few groups of threads, which a read adds up.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use wire::nfs3;
use wire::rpc::Procedure;

/// What a call did, as far as it is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CallIo {
    pub kind: CallKind,
    /// Of file contents that were read or written; 0 if the call failed.
    pub bytes: u64,
    pub failed: bool,
}

/// The kinds of NFS calls; the label `op`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallKind {
    Read,
    Write,
    Other,
}

impl CallKind {
    /// `None` for NULL, which asks for nothing.
    pub(crate) fn of(procedure: u32) -> Option<Self> {
        match procedure {
            nfs3::Null::NUMBER => None,
            nfs3::Read::NUMBER => Some(Self::Read),
            nfs3::Write::NUMBER => Some(Self::Write),
            _ => Some(Self::Other),
        }
    }
}

/// Numbers of NFS calls, bytes and errors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IoTotals {
    /// Calls that read file contents.
    pub reads: u64,
    /// Calls that write file contents.
    pub writes: u64,
    /// All other calls.
    pub others: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
    /// Calls answered with an error; not a LOOKUP that finds nothing.
    pub errors: u64,
}

impl IoTotals {
    pub fn operations(&self) -> u64 {
        self.reads + self.writes + self.others
    }

    pub(crate) fn add(&mut self, more: Self) {
        let Self { reads, writes, others, bytes_read, bytes_written, errors } = more;
        self.reads += reads;
        self.writes += writes;
        self.others += others;
        self.bytes_read += bytes_read;
        self.bytes_written += bytes_written;
        self.errors += errors;
    }

    pub(crate) fn count(&mut self, call: CallIo) {
        let CallIo { kind, bytes, failed } = call;
        match kind {
            CallKind::Read => (self.reads += 1, self.bytes_read += bytes).0,
            CallKind::Write => (self.writes += 1, self.bytes_written += bytes).0,
            CallKind::Other => self.others += 1,
        }
        self.errors += u64::from(failed);
    }
}

/// Counters that one thread at a time mostly has to itself, on cache lines of their own.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct IoCounts {
    reads: AtomicU64,
    writes: AtomicU64,
    others: AtomicU64,
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
    errors: AtomicU64,
}

impl IoCounts {
    pub(crate) fn count(&self, call: CallIo) {
        let CallIo { kind, bytes, failed } = call;
        let (calls, of_kind) = match kind {
            CallKind::Read => (&self.reads, Some(&self.bytes_read)),
            CallKind::Write => (&self.writes, Some(&self.bytes_written)),
            CallKind::Other => (&self.others, None),
        };
        calls.fetch_add(1, Ordering::Relaxed);
        if let Some(total) = of_kind {
            total.fetch_add(bytes, Ordering::Relaxed);
        }
        if failed {
            self.errors.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn read(&self) -> IoTotals {
        let Self { reads, writes, others, bytes_read, bytes_written, errors } = self;
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        IoTotals {
            reads: get(reads),
            writes: get(writes),
            others: get(others),
            bytes_read: get(bytes_read),
            bytes_written: get(bytes_written),
            errors: get(errors),
        }
    }
}

/// Groups of threads that count an export's calls apart.
const GROUPS: usize = 16;

/// The counters of an export.
#[derive(Debug, Default)]
pub(crate) struct ExportIo([IoCounts; GROUPS]);

impl ExportIo {
    pub(crate) fn count(&self, call: CallIo) {
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static GROUP: usize = THREADS.fetch_add(1, Ordering::Relaxed) % GROUPS;
        }
        // The thread may be ending.
        let group = GROUP.try_with(|group| *group).unwrap_or_default();
        self.0[group].count(call);
    }

    pub(crate) fn read(&self) -> IoTotals {
        self.0.iter().fold(IoTotals::default(), |mut sum, counts| {
            sum.add(counts.read());
            sum
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_export_adds_up_what_all_threads_count() {
        let io = ExportIo::default();
        let read = CallIo { kind: CallKind::Read, bytes: 5, failed: false };
        let write = CallIo { kind: CallKind::Write, bytes: 7, failed: false };
        let failed = CallIo { kind: CallKind::Other, bytes: 0, failed: true };
        std::thread::scope(|threads| {
            for _ in 0..2 * GROUPS {
                threads.spawn(|| [read, read, write, failed].map(|call| io.count(call)));
            }
        });
        let threads = 2 * GROUPS as u64;
        let sum = io.read();
        assert_eq!((sum.reads, sum.writes, sum.others), (2 * threads, threads, threads));
        assert_eq!((sum.bytes_read, sum.bytes_written), (10 * threads, 7 * threads));
        assert_eq!((sum.errors, sum.operations()), (threads, 4 * threads));
    }

    #[test]
    fn a_total_counts_as_the_counters_do() {
        let (counts, mut total) = (IoCounts::default(), IoTotals::default());
        for kind in [CallKind::Read, CallKind::Write, CallKind::Other] {
            for failed in [false, true] {
                let call = CallIo { kind, bytes: 3 * u64::from(kind != CallKind::Other), failed };
                counts.count(call);
                total.count(call);
            }
        }
        assert_eq!(counts.read(), total);
    }

    #[test]
    fn null_is_not_counted() {
        assert_eq!(CallKind::of(nfs3::Null::NUMBER), None);
        assert_eq!(CallKind::of(nfs3::GetAttr::NUMBER), Some(CallKind::Other));
    }
}

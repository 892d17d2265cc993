//! What hostile bytes can make the decoder allocate: no more than a small multiple of their own
//! length, whatever lengths and lists they promise.
#![allow(unsafe_code, reason = "a global allocator cannot be written without it")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use bytes::{BufMut, Bytes, BytesMut};
use judge::programs::{self, Form};
use judge::{Source, check};
use lockkeeper_wire::record::{self, Limits, Records};
use lockkeeper_wire::rpc::{Call, Credential, Reply};
use lockkeeper_wire::{Decode, Encode};

/// The system's allocator; it counts what the current thread holds, and the most it ever held.
struct Counting;

thread_local! {
    static HELD: Cell<usize> = const { Cell::new(0) };
    static PEAK: Cell<usize> = const { Cell::new(0) };
}

fn took(bytes: usize) {
    HELD.set(HELD.get().wrapping_add(bytes));
    // A thread that frees what another allocated holds less than nothing.
    PEAK.set(PEAK.get().max(if HELD.get() as isize > 0 { HELD.get() } else { 0 }));
}

fn gave_back(bytes: usize) {
    HELD.set(HELD.get().wrapping_sub(bytes));
}

// SAFETY: every call goes unchanged to the system's allocator, which keeps the contract; the
// counters are cells without destructors and never allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        took(layout.size());
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        gave_back(layout.size());
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Both blocks may exist while one is copied into the other.
        took(size);
        gave_back(layout.size());
        // SAFETY: the caller's promise is passed on.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// The most that `work` held at one time.
fn peak<T>(work: impl FnOnce() -> T) -> usize {
    HELD.set(0);
    PEAK.set(0);
    drop(work());
    PEAK.get()
}

/// Replies carry lists. The smallest item of the greediest list takes 24 bytes on the wire and
/// six times that in memory, and a growing list holds its old and its new place at once. The
/// constant is a list's first place.
fn allowed(input: usize) -> usize {
    20 * input + 1_024
}

/// Arguments carry none: all they may cost is the count that two slices of a buffer share.
fn allowed_for_args(_: usize) -> usize {
    64
}

/// Every message form, with its name and what it may hold for so many bytes.
fn forms() -> impl Iterator<Item = (String, Form, fn(usize) -> usize)> {
    programs::all().flat_map(|procedure| {
        let name = procedure.name;
        [
            (format!("{name} call"), procedure.args, allowed_for_args as _),
            (format!("{name} reply"), procedure.reply, allowed as _),
        ]
    })
}

fn assert_bounded(name: &str, form: Form, allowed: fn(usize) -> usize, bytes: Bytes) {
    let length = bytes.len();
    let peak = peak(|| (form.decode)(bytes));
    assert!(
        peak <= allowed(length),
        "{name}: {length} bytes made the decoder hold {peak}, allowed {}",
        allowed(length)
    );
}

#[test]
fn the_allocator_counts() {
    assert!((4_096..5_000).contains(&peak(|| vec![1u8; 4_096])));
    assert!(peak(|| ()) < 64);
}

#[test]
fn a_huge_number_in_any_place_of_a_message_allocates_nothing_huge() {
    let huge = [u32::MAX, 0x7fff_ffff, 0x0100_0000, 1 << 20, 100_000, 4_096, 1_024, 16];
    for (name, form, allowed) in forms() {
        let samples = (0..20).map(|seed| (form.sample)(&mut Source::new(seed)));
        for bytes in samples.filter(|bytes| bytes.len() <= 512) {
            for place in 0..bytes.len() / 4 {
                for word in huge {
                    let mut bytes = bytes.to_vec();
                    bytes[4 * place..4 * place + 4].copy_from_slice(&word.to_be_bytes());
                    assert_bounded(&name, form, allowed, bytes.into());
                }
            }
        }
    }
}

#[test]
fn endless_promises_of_one_more_item_are_bounded() {
    // TRUE forever or with a little behind it; before either a status of OK, or one that is not.
    let patterns: &[&[u32]] = &[&[1], &[1, 0], &[1, 0, 0], &[1, 0, 0, 0], &[1, 1, 0], &[0, 1]];
    for pattern in patterns {
        for first in [0, 1] {
            let words = std::iter::once(&first).chain(pattern.iter().cycle());
            let bytes: Bytes = words.take(1 << 15).flat_map(|word| word.to_be_bytes()).collect();
            for (name, form, allowed) in forms() {
                assert_bounded(&name, form, allowed, bytes.clone());
            }
        }
    }
}

#[test]
fn the_longest_lists_of_the_smallest_items_are_bounded() {
    use lockkeeper_wire::mount::{Export, ExportList, Mount, Mounts};
    use lockkeeper_wire::nfs3::{
        Entries, EntriesPlus, Entry, EntryPlus, ReadDirPlusReply, ReadDirReply,
    };
    use lockkeeper_wire::rpcbind::{
        Address, Addresses, Binding, Bindings, Mapping, Mappings, Text,
    };

    fn assert_list<T: Encode + Decode>(name: &str, value: &T) {
        let bytes = value.to_bytes();
        let length = bytes.len();
        let mut decoded = false;
        let peak = peak(|| decoded = T::from_bytes(bytes).is_ok());
        assert!(decoded, "{name}");
        assert!(peak <= allowed(length), "{name}: {length} bytes made the decoder hold {peak}");
    }

    // One more than a power of two: the list has just doubled its place.
    let many = (1 << 16) + 1;
    let few = (1 << 11) + 1;
    let plus =
        EntryPlus { fileid: 0, name: b""[..].into(), cookie: 0, attributes: None, handle: None };
    let entries = vec![plus; many];
    let listing: ReadDirPlusReply =
        Ok(EntriesPlus { attributes: None, verifier: [0; 8], entries, eof: true });
    assert_list("READDIRPLUS", &listing);
    let entries = vec![Entry { fileid: 0, name: b""[..].into(), cookie: 0 }; many];
    let listing: ReadDirReply =
        Ok(Entries { attributes: None, verifier: [0; 8], entries, eof: true });
    assert_list("READDIR", &listing);
    let mount = Mount { host: b""[..].into(), path: b""[..].into() };
    assert_list("MOUNT DUMP", &Mounts(vec![mount; many]));
    let export = Export { path: b""[..].into(), clients: vec![] };
    assert_list("EXPORT", &ExportList(vec![export; many]));
    let export = Export { path: b""[..].into(), clients: vec![b""[..].into(); many] };
    assert_list("EXPORT to many", &ExportList(vec![export]));
    let mapping = Mapping { program: 0, version: 0, protocol: 0, port: 0 };
    assert_list("portmap DUMP", &Mappings(vec![mapping; few]));
    let none = || Text::from(&b""[..]);
    let binding = Binding { program: 0, version: 0, netid: none(), address: none(), owner: none() };
    assert_list("rpcbind DUMP", &Bindings(vec![binding; few]));
    let address =
        Address { address: none(), netid: none(), semantics: 0, family: none(), protocol: none() };
    assert_list("GETADDRLIST", &Addresses(vec![address; few]));
}

#[test]
fn a_huge_number_in_any_place_of_an_envelope_allocates_nothing_huge() {
    for seed in 0..20 {
        let source = &mut Source::new(seed);
        let credential: Credential = source.any();
        let call = programs::NFS3[1].call(1, &credential, source);
        let reply = programs::NFS3[1].reply(1, source);
        for (message, is_call) in [(call, true), (reply, false)] {
            for place in 0..message.len() / 4 {
                for word in [u32::MAX, 0x0100_0000, 400, 16] {
                    let mut bytes = message.to_vec();
                    bytes[4 * place..4 * place + 4].copy_from_slice(&word.to_be_bytes());
                    let bytes = Bytes::from(bytes);
                    let peak = peak(|| match is_call {
                        true => Call::parse(bytes).is_ok(),
                        false => Reply::from_bytes(bytes).is_ok(),
                    });
                    assert!(peak <= 128, "seed {seed}, word {place} = {word:#x}: held {peak}");
                }
            }
        }
    }
}

#[test]
fn a_record_that_is_only_promised_takes_no_room() {
    let limits = Limits { record_bytes_max: usize::MAX / 4, fragments_max: 16 };
    for word in [record::mark(0x7fff_ffff), 0x7fff_ffff, record::mark(1 << 20)] {
        let mut received = BytesMut::with_capacity(64);
        received.put_u32(word);
        received.put_u32(7);
        let mut records = Records::new(limits);
        let peak = peak(|| records.next(&mut received));
        assert!(peak <= 64, "{word:#x}: held {peak}");
    }
}

#[test]
fn a_record_in_many_fragments_takes_a_small_multiple_of_what_came() {
    let limits = Limits { record_bytes_max: 1 << 20, fragments_max: 1 << 16 };
    let mut received = BytesMut::new();
    for last in [false; 4_095].into_iter().chain([true]) {
        received.put_u32(if last { record::mark(64) } else { 64 });
        received.put_bytes(7, 64);
    }
    let length = received.len();
    let mut records = Records::new(limits);
    let peak = peak(|| records.next(&mut received));
    assert!(peak <= 4 * length, "{length} bytes: held {peak}");
}

#[test]
fn what_fuzzers_are_offered_is_bounded_too() {
    for target in check::TARGETS {
        for first in 0..=u8::MAX {
            let bytes: Vec<u8> = std::iter::once(first).chain([0xff; 63]).collect();
            let peak = peak(|| (target.check)(&bytes));
            // The checks themselves copy and encode.
            assert!(peak <= 64 * 1_024, "{}, {first}: held {peak}", target.name);
        }
    }
}

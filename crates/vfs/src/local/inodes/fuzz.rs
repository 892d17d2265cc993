//! Properties of the inode map for arbitrary files: no panic, every search ends, and what is understood
//! can be written again and means the same.
//!
//! The input describes records, which get valid checksums, so that a fuzzer reaches what is behind
//! them; a record may also be raw bytes, as after damage.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed check panics")]

use std::{fs, path::Path};

use super::{
    file::MapFile,
    record::{Record, RecordKind},
    table::Table,
};

/// Inodes that a record's byte names; few, so that a fuzzer finds records of one inode.
const INODES: u64 = 8;

/// `directory` takes the file of the map.
pub fn check(directory: &Path, data: &[u8]) {
    let path = directory.join("inodes");
    let (bytes, inodes) = file(data);
    fs::write(&path, &bytes).unwrap();
    let table = Table::new();
    let file = MapFile::open(&path, Vec::new(), &table).unwrap();
    // A torn record is cut off, and nothing else.
    let kept = fs::read(&path).unwrap();
    assert!(bytes.starts_with(&kept), "the file has other bytes");
    drop(file);

    for inode in &inodes {
        for root in [0, 1, *inode] {
            if let Some(known) = table.known(*inode, root, b"") {
                table.candidates(root, *inode, known.generation);
            }
        }
    }
    let written = encoded(&table);
    let copy = Table::new();
    apply(&copy, &written);
    assert_eq!(records(&encoded(&copy)), records(&written));
    assert_eq!(copy.len(), table.len());
    table.prune(table.len() / 2, usize::MAX);
    table.prune(0, 0);
    apply(&table, &encoded(&table));
}

fn encoded(table: &Table) -> Vec<u8> {
    let mut bytes = Vec::new();
    table.encode(&mut bytes);
    bytes
}

fn apply(table: &Table, mut bytes: &[u8]) {
    while let Some((record, length)) = Record::decode(bytes) {
        table.apply(&record, || ());
        bytes = &bytes[length..];
    }
    assert!(bytes.is_empty(), "{} bytes cannot be read back", bytes.len());
}

/// Sorted, as tables write their inodes in any order.
fn records(mut bytes: &[u8]) -> Vec<String> {
    let mut all = Vec::new();
    while let Some((record, length)) = Record::decode(bytes) {
        all.push(format!("{record:?}"));
        bytes = &bytes[length..];
    }
    all.sort();
    all
}

/// The file that an input describes, and the inodes in it. An input is records:
///
/// ```text
/// what u8 | inode u8 | parent u8 | generation u8 | length u8 | name
/// what  0, 1, 2 the kind of record; 3 no record, but the raw name
///       4 inode, parent and generation are u64
/// ```
fn file(mut data: &[u8]) -> (Vec<u8>, Vec<u64>) {
    let (mut bytes, mut inodes) = (Vec::new(), Vec::new());
    while let Some((what, rest)) = data.split_first() {
        data = rest;
        let wide = what & 4 != 0;
        let mut number = || match (wide, data) {
            (true, [a, b, c, d, e, f, g, h, rest @ ..]) => {
                let number = u64::from_le_bytes([*a, *b, *c, *d, *e, *f, *g, *h]);
                data = rest;
                number
            }
            (false, [number, rest @ ..]) => {
                data = rest;
                u64::from(*number) % INODES
            }
            _ => 0,
        };
        let (inode, parent, generation) = (number(), number(), number());
        let Some((length, rest)) = data.split_first() else { break };
        let (name, rest) = rest.split_at(rest.len().min(usize::from(*length)));
        data = rest;
        let kind = match what & 3 {
            0 => RecordKind::NameAdded,
            1 => RecordKind::NameRemoved,
            2 => RecordKind::Born,
            _ => {
                bytes.extend_from_slice(name);
                continue;
            }
        };
        inodes.push(inode);
        Record { kind, inode, generation, parent, name }.encode(&mut bytes);
    }
    (bytes, inodes)
}

#[cfg(test)]
mod tests {
    use testbed::corpus;

    use super::*;

    fn record(what: u8, inode: u8, parent: u8, name: &str) -> Vec<u8> {
        [&[what, inode, parent, 0, name.len() as u8], name.as_bytes()].concat()
    }

    fn wide(inode: u64, parent: u64, name: &str) -> Vec<u8> {
        let numbers = [inode, parent, u64::MAX].map(u64::to_le_bytes).concat();
        [&[4], &numbers[..], &[name.len() as u8], name.as_bytes()].concat()
    }

    fn seeds() -> Vec<(&'static str, Vec<u8>)> {
        let [directory, file] = [record(0, 2, 1, "d"), record(0, 3, 2, "f")];
        let born = record(2, 3, 77, "");
        vec![
            ("names", [directory.clone(), file.clone()].concat()),
            ("used", [directory.clone(), file.clone(), file.clone()].concat()),
            ("born", [directory.clone(), born, file.clone()].concat()),
            ("removed", [directory.clone(), file.clone(), record(1, 3, 2, "f")].concat()),
            ("loop", [record(0, 2, 3, "a"), record(0, 3, 2, "b")].concat()),
            ("wide", [wide(u64::MAX, 1, "f"), wide(1 << 40, u64::MAX, "g")].concat()),
            ("torn", [directory, record(3, 0, 0, "\u{19}\0\0\0torn"), file].concat()),
        ]
    }

    #[test]
    fn the_corpus_passes_and_its_seeds_are_what_is_written_here() {
        for (name, bytes) in seeds() {
            corpus::is_seed("inode_map", name, &bytes);
        }
        let directory = tempfile::tempdir().unwrap();
        corpus::each("inode_map", |data| check(directory.path(), data));
    }

    #[test]
    fn valid_records_are_understood() {
        let (bytes, _) = file(&seeds()[0].1);
        let table = Table::new();
        apply(&table, &bytes);
        assert_eq!(table.candidates(1, 3, 0).unwrap().paths.len(), 1);
    }
}

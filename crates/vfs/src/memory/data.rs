//! The content of a file, sparse: holes take no memory.

use std::collections::BTreeMap;

pub(super) const CHUNK: u64 = 4096;

#[derive(Default)]
pub(super) struct Data {
    size: u64,
    chunks: BTreeMap<u64, Box<[u8; CHUNK as usize]>>,
}

impl Data {
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// Bytes of memory in use.
    pub(super) fn used(&self) -> u64 {
        self.chunks.len() as u64 * CHUNK
    }

    /// Up to `count` bytes; fewer at the end of the file.
    pub(super) fn read(&self, offset: u64, count: u64) -> Vec<u8> {
        let end = offset.saturating_add(count).min(self.size);
        let mut read = Vec::with_capacity(end.saturating_sub(offset) as usize);
        let mut at = offset;
        while at < end {
            let (number, start, length) = piece(at, end);
            match self.chunks.get(&number) {
                Some(chunk) => read.extend_from_slice(&chunk[start..start + length]),
                None => read.resize(read.len() + length, 0),
            }
            at += length as u64;
        }
        read
    }

    /// Writes as much as fits into `room` more bytes of memory, and returns how much.
    pub(super) fn write(&mut self, offset: u64, data: &[u8], room: u64) -> usize {
        let used_max = self.used().saturating_add(room);
        let end = offset + data.len() as u64;
        let mut done = 0;
        while done < data.len() {
            let (number, start, length) = piece(offset + done as u64, end);
            if !self.chunks.contains_key(&number) && self.used() + CHUNK > used_max {
                break;
            }
            let chunk = self.chunks.entry(number).or_insert_with(|| Box::new([0; CHUNK as usize]));
            chunk[start..start + length].copy_from_slice(&data[done..done + length]);
            done += length;
        }
        if done > 0 {
            self.size = self.size.max(offset + done as u64);
        }
        done
    }

    pub(super) fn resize(&mut self, size: u64) {
        if size < self.size {
            self.chunks.split_off(&size.div_ceil(CHUNK));
            // The bytes beyond the new size must read as zeros if the file grows again.
            if let Some(last) = self.chunks.get_mut(&(size / CHUNK)) {
                last[(size % CHUNK) as usize..].fill(0);
            }
        }
        self.size = size;
    }
}

/// The chunk that contains `at`, the offset in it, and the number of its bytes before `end`.
fn piece(at: u64, end: u64) -> (u64, usize, usize) {
    let start = at % CHUNK;
    (at / CHUNK, start as usize, (CHUNK - start).min(end - at) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hole_reads_as_zeros_and_takes_no_memory() {
        let mut data = Data::default();
        assert_eq!(data.write(1 << 50, b"far", u64::MAX), 3);
        assert_eq!(data.size(), (1 << 50) + 3);
        assert_eq!(data.used(), CHUNK);
        assert_eq!(data.read((1 << 50) - 2, 10), b"\0\0far");
    }

    #[test]
    fn truncated_bytes_are_zero_when_the_file_grows_again() {
        let mut data = Data::default();
        data.write(0, &[7; 10_000], u64::MAX);
        data.resize(5);
        data.resize(10_000);
        assert_eq!(data.read(0, 7), [7, 7, 7, 7, 7, 0, 0]);
        assert!(data.read(5, 10_000).iter().all(|byte| *byte == 0));
        assert_eq!(data.used(), CHUNK);
    }

    #[test]
    fn a_write_stops_where_the_room_ends() {
        let mut data = Data::default();
        assert_eq!(data.write(1, &[7; 10_000], 2 * CHUNK), 2 * CHUNK as usize - 1);
        assert_eq!(data.write(0, &[8; 10], 0), 10, "existing bytes can be overwritten");
        assert_eq!(data.size(), 2 * CHUNK);
    }
}

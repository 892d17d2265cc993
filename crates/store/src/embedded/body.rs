//! The body of a frame: records, each behind its length.

use keeper::change::Change;

use crate::record::{self, BadRecord, Facts, Reader, Record, Writer};

/// Gathers records. Its memory is used again from one body to the next.
#[derive(Default)]
pub struct Body {
    bytes: Vec<u8>,
    record: Vec<u8>,
}

impl Body {
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub fn clear(&mut self) {
        self.bytes.clear();
    }

    pub fn push(&mut self, change: &Change) {
        self.add(|out| record::encode(change, out));
    }

    pub fn push_facts(&mut self, facts: &Facts) {
        self.add(|out| record::encode_facts(facts, out));
    }

    pub fn push_cleared(&mut self) {
        self.add(record::encode_cleared);
    }

    fn add(&mut self, encode: impl FnOnce(&mut Vec<u8>)) {
        self.record.clear();
        encode(&mut self.record);
        Writer::new(&mut self.bytes).bytes(&self.record);
    }
}

/// Gives every record of a body to `each`, in order.
pub fn read(bytes: &[u8], mut each: impl FnMut(Record)) -> Result<(), BadRecord> {
    let mut from = Reader::new(bytes);
    while !from.is_empty() {
        each(record::decode(from.bytes("length")?)?);
    }
    Ok(())
}

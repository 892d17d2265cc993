//! The body of a frame: records (`record.rs`), each after its length.

use keeper::change::Change;

use crate::record::{self, FieldReader, FieldWriter, Metadata, Record, RecordError};

/// Encodes the body of a frame. `clear` keeps the memory for the next one.
#[derive(Default)]
pub(super) struct Body {
    bytes: Vec<u8>,
    record: Vec<u8>,
}

impl Body {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn clear(&mut self) {
        self.bytes.clear();
    }

    pub(super) fn push(&mut self, change: &Change) {
        self.add(|out| record::encode(change, out));
    }

    pub(super) fn push_metadata(&mut self, metadata: &Metadata) {
        self.add(|out| record::encode_metadata(metadata, out));
    }

    pub(super) fn push_cleared(&mut self) {
        self.add(record::encode_cleared);
    }

    fn add(&mut self, encode: impl FnOnce(&mut Vec<u8>)) {
        self.record.clear();
        encode(&mut self.record);
        FieldWriter::new(&mut self.bytes).bytes(&self.record);
    }
}

/// Calls `each` with every record of a body, in order.
pub(super) fn read(bytes: &[u8], mut each: impl FnMut(Record)) -> Result<(), RecordError> {
    let mut from = FieldReader::new(bytes);
    while !from.is_empty() {
        each(record::decode(from.bytes("length")?)?);
    }
    Ok(())
}

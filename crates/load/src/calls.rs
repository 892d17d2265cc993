//! The calls of one connection, encoded before the measurement.

use bytes::Bytes;
use client::PreparedCall;
use wire::nfs3::*;
use wire::nlm::{Range, v4};

use crate::owner::Owner;
use crate::session::{FILE_BYTES, READ_NAME, Session, create_name};
use crate::{Operation, Shape};

#[derive(Debug)]
pub(crate) enum Calls {
    /// The same call each time.
    Same(PreparedCall),
    /// The same call at increasing offsets.
    Moving { call: PreparedCall, offset_at: usize, offset: u64, step: u64 },
    /// Alternately CREATE and REMOVE of the slot's name, or LOCK and UNLOCK of its range.
    Pairs { pairs: Vec<[PreparedCall; 2]>, turn: Vec<usize> },
}

impl Calls {
    pub(crate) fn new(
        session: &Session,
        operation: Operation,
        shape: Shape,
        connection: usize,
    ) -> Self {
        let credential = &session.target.options.credential;
        match operation {
            Operation::Null => Self::Same(PreparedCall::new::<Null>(credential, &())),
            Operation::GetAttr => {
                let args = GetAttrArgs { object: session.read_file.clone() };
                Self::Same(PreparedCall::new::<GetAttr>(credential, &args))
            }
            Operation::Lookup => {
                let args = DirOpArgs { dir: session.dir.clone(), name: Name::from(READ_NAME) };
                Self::Same(PreparedCall::new::<Lookup>(credential, &args))
            }
            Operation::Read(count) => {
                let file = session.read_file.clone();
                let args = ReadArgs { file: file.clone(), offset: 0, count };
                Self::moving(PreparedCall::new::<Read>(credential, &args), &file, count, connection)
            }
            Operation::Write(count) => {
                let file = session.write_files[connection].clone();
                let data = Bytes::from(vec![0x5a; count as usize]);
                let stability = Stability::Unstable;
                let args = WriteArgs { file: file.clone(), offset: 0, count, stability, data };
                Self::moving(
                    PreparedCall::new::<Write>(credential, &args),
                    &file,
                    count,
                    connection,
                )
            }
            Operation::CreateRemove => {
                let pair = |slot| {
                    let name = Name::from(create_name(connection, slot));
                    let at = DirOpArgs { dir: session.dir.clone(), name };
                    let new = NewAttributes { mode: Some(0o644), ..Default::default() };
                    let create = CreateArgs { at: at.clone(), how: CreateHow::Guarded(new) };
                    [
                        PreparedCall::new::<Create>(credential, &create),
                        PreparedCall::new::<Remove>(credential, &at),
                    ]
                };
                let pairs = (0..shape.depth).map(pair).collect();
                Self::Pairs { pairs, turn: vec![0; shape.depth] }
            }
            Operation::LockUnlock => {
                // Like programs of one machine that share a file, each with a range of its own.
                let file = &session.write_files[connection];
                let pair = |slot: usize| {
                    let (owner, range) = locker(connection, slot);
                    [
                        PreparedCall::new::<v4::Lock>(credential, &owner.lock(file, range)),
                        PreparedCall::new::<v4::Unlock>(credential, &owner.unlock(file, range)),
                    ]
                };
                let pairs = (0..shape.depth).map(pair).collect();
                Self::Pairs { pairs, turn: vec![0; shape.depth] }
            }
        }
    }

    fn moving(call: PreparedCall, file: &Handle, count: u32, connection: usize) -> Self {
        // The offset follows the handle (a length and padded bytes). Connections start apart.
        let offset_at = 4 + file.len().next_multiple_of(4);
        let offset = (connection as u64 * (8 << 20)) % FILE_BYTES;
        Self::Moving { call, offset_at, offset, step: u64::from(count) }
    }

    /// The call that `slot` makes next.
    pub(crate) fn next(&mut self, slot: usize) -> &PreparedCall {
        match self {
            Self::Same(call) => call,
            Self::Moving { call, offset_at, offset, step } => {
                call.args_mut()[*offset_at..*offset_at + 8].copy_from_slice(&offset.to_be_bytes());
                *offset = (*offset + *step) % FILE_BYTES;
                call
            }
            Self::Pairs { pairs, turn } => {
                let now = turn[slot];
                turn[slot] = 1 - now;
                &pairs[slot][now]
            }
        }
    }

    /// Whether `slot` has created or locked something that it must still remove or unlock.
    pub(crate) fn owes(&self, slot: usize) -> bool {
        matches!(self, Self::Pairs { turn, .. } if turn[slot] == 1)
    }
}

/// The owner and range of a slot.
pub(crate) fn locker(connection: usize, slot: usize) -> (Owner, Range) {
    let owner = Owner::new(format!("bench-{connection}"), slot as i32);
    (owner, Range { offset: slot as u64 * 4096, length: 4096 })
}

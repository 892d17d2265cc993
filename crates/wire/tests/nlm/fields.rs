//! The fields of each message by the names of the specification, apart from any encoding.

use std::fmt::Write;

use lockkeeper_wire::nlm::{
    CancelArgs, FreeAllArgs, Lock, LockArgs, Narrow, Range, ShareArgs, ShareReply, StatusReply,
    TestArgs, TestOutcome, TestReply, UnlockArgs,
};
use lockkeeper_wire::nsm::{
    MonArgs, MonId, MyId, Name, NotifyArgs, StatReply, StateReply, StatusArgs,
};

/// `name=value`, in no particular order.
pub(crate) type Fields = Vec<String>;

pub(crate) trait Described {
    fn fields(&self) -> Fields;
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

fn bytes(name: &str, value: &[u8]) -> String {
    format!("{name}={}", hex(value))
}

fn number(name: &str, value: impl Into<i128>) -> String {
    format!("{name}={}", value.into())
}

fn range(range: Range) -> [String; 2] {
    [number("l_offset", range.offset), number("l_len", range.length)]
}

fn lock(lock: &Lock) -> impl Iterator<Item = String> {
    [
        bytes("caller_name", &lock.caller_name),
        bytes("fh", &lock.file),
        bytes("oh", &lock.owner),
        number("svid", lock.svid),
    ]
    .into_iter()
    .chain(range(lock.range))
}

fn my_id(id: &MyId) -> [String; 4] {
    [
        bytes("my_name", &id.my_name),
        number("my_prog", id.program.cast_signed()),
        number("my_vers", id.version.cast_signed()),
        number("my_proc", id.procedure.cast_signed()),
    ]
}

macro_rules! described {
    ($($type:ty: |$it:ident| $first:expr $(, ..$more:expr)?;)*) => {$(
        impl Described for $type {
            fn fields(&self) -> Fields {
                let $it = self;
                $first.into_iter()$(.chain($more))?.collect()
            }
        }
    )*};
}

described! {
    (): |_it| [];
    TestArgs: |args| [
        bytes("cookie", &args.cookie),
        number("exclusive", args.exclusive),
    ], ..lock(&args.lock);
    LockArgs: |args| [
        bytes("cookie", &args.cookie),
        number("block", args.block),
        number("exclusive", args.exclusive),
        number("reclaim", args.reclaim),
        number("state", args.state),
    ], ..lock(&args.lock);
    CancelArgs: |args| [
        bytes("cookie", &args.cookie),
        number("block", args.block),
        number("exclusive", args.exclusive),
    ], ..lock(&args.lock);
    UnlockArgs: |args| [bytes("cookie", &args.cookie)], ..lock(&args.lock);
    ShareArgs: |args| [
        bytes("cookie", &args.cookie),
        bytes("caller_name", &args.share.caller_name),
        bytes("fh", &args.share.file),
        bytes("oh", &args.share.owner),
        number("mode", args.share.mode as u32),
        number("access", args.share.access as u32),
        number("reclaim", args.reclaim),
    ];
    FreeAllArgs: |args| [bytes("name", &args.name), number("state", args.state)];
    StatusReply: |reply| [
        bytes("cookie", &reply.cookie),
        number("stat", reply.status as u32),
    ];
    ShareReply: |reply| [
        bytes("cookie", &reply.cookie),
        number("stat", reply.status as u32),
        number("sequence", reply.sequence),
    ];
    Name: |name| [bytes("mon_name", name)];
    MyId: |id| my_id(id);
    MonId: |id| [bytes("mon_name", &id.mon_name)], ..my_id(&id.my_id);
    MonArgs: |args| [bytes("priv", &args.private)], ..args.mon_id.fields();
    StatReply: |reply| [
        number("res_stat", reply.outcome as u32),
        number("state", reply.state),
    ];
    StateReply: |reply| [number("state", reply.state)];
    NotifyArgs: |args| [bytes("mon_name", &args.mon_name), number("state", args.state)];
    StatusArgs: |args| [
        bytes("mon_name", &args.mon_name),
        number("state", args.state),
        bytes("priv", &args.private),
    ];
}

impl Described for TestReply {
    fn fields(&self) -> Fields {
        let mut fields = vec![bytes("cookie", &self.cookie)];
        match &self.outcome {
            TestOutcome::Denied(holder) => {
                fields.extend([
                    number("stat", 1),
                    number("exclusive", holder.exclusive),
                    number("svid", holder.svid),
                    bytes("oh", &holder.owner),
                ]);
                fields.extend(range(holder.range));
            }
            TestOutcome::Other(status) => fields.push(number("stat", *status as u32)),
        }
        fields
    }
}

impl<T: Described> Described for Narrow<T> {
    fn fields(&self) -> Fields {
        self.0.fields()
    }
}

//! Two encoders side by side: ours, and that of the crate nfs3_types.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::fmt::Debug;

use judge::{Any, Source};
use lockkeeper_wire::nfs3::{Device, Handle, Time};
use lockkeeper_wire::{Decode, Encode};
use nfs3_types::nfs3::{Nfs3Option, nfs_fh3, nfstime3, specdata3};
use nfs3_types::xdr_codec::{Opaque, Pack, Unpack};

/// Enough that every variant, list length and padding occurs many times.
pub(crate) const SEEDS: std::ops::Range<u64> = 0..400;

/// Encodes many sample values with both encoders; see [`agree`].
pub(crate) fn compare<Ours, Theirs>(to_theirs: impl Fn(&Ours) -> Theirs)
where
    Ours: Any + Encode + Decode + PartialEq + Debug,
    Theirs: Pack + Unpack,
{
    for seed in SEEDS {
        let ours = Source::new(seed).any();
        agree(&ours, &to_theirs(&ours));
    }
}

/// Both encoders give the same bytes, we understand theirs, and they understand ours.
pub(crate) fn agree<Ours, Theirs>(ours: &Ours, theirs: &Theirs)
where
    Ours: Encode + Decode + PartialEq + Debug,
    Theirs: Pack + Unpack,
{
    let our_bytes = ours.to_bytes();
    let their_bytes = pack(theirs);
    assert_eq!(our_bytes, their_bytes, "{ours:?}");
    assert_eq!(Ours::from_bytes(their_bytes.into()).as_ref(), Ok(ours));
    let (understood, length) = Theirs::unpack(&mut &our_bytes[..]).unwrap();
    assert_eq!(length, our_bytes.len(), "{ours:?}");
    assert_eq!(pack(&understood), our_bytes, "{ours:?}");
}

/// Both know the same values of an enumeration.
pub(crate) fn same_values<Ours: Decode, Theirs: Unpack>() {
    for word in 0..20_000u32 {
        let bytes = word.to_bytes();
        let theirs = Theirs::unpack(&mut &bytes[..]).is_ok();
        assert_eq!(Ours::from_bytes(bytes).is_ok(), theirs, "{word}");
    }
}

pub(crate) fn pack(theirs: &impl Pack) -> Vec<u8> {
    let mut bytes = Vec::new();
    theirs.pack(&mut bytes).unwrap();
    bytes
}

pub(crate) fn opaque(bytes: &[u8]) -> Opaque<'static> {
    Opaque::owned(bytes.to_vec())
}

pub(crate) fn handle(ours: &Handle) -> nfs_fh3 {
    nfs_fh3 { data: opaque(ours) }
}

pub(crate) fn time(ours: Time) -> nfstime3 {
    nfstime3 { seconds: ours.seconds, nseconds: ours.nanoseconds }
}

pub(crate) fn device(ours: Device) -> specdata3 {
    specdata3 { specdata1: ours.major, specdata2: ours.minor }
}

pub(crate) fn option<Ours, Theirs: Pack + Unpack>(
    ours: Option<Ours>,
    convert: impl Fn(Ours) -> Theirs,
) -> Nfs3Option<Theirs> {
    match ours {
        Some(value) => Nfs3Option::Some(convert(value)),
        None => Nfs3Option::None,
    }
}

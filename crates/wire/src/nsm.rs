//! NSM version 1, Open Group C702 chapter 11: monitoring hosts and announcing restarts.
//!
//! A *state* is odd while its host is up and grows with each restart.

use crate::rpc::procedures;
use crate::xdr::{xdr_bytes, xdr_enum, xdr_struct};

pub const PROGRAM: u32 = 100_024;
pub const VERSION: u32 = 1;

procedures! { PROGRAM, VERSION;
    Null = 0 (()) -> ();
    Stat = 1 (Name) -> StatReply;
    Mon = 2 (MonArgs) -> StatReply;
    Unmon = 3 (MonId) -> StateReply;
    UnmonAll = 4 (MyId) -> StateReply;
    SimuCrash = 5 (()) -> ();
    Notify = 6 (NotifyArgs) -> ();
}

xdr_bytes! {
    /// A host name.
    pub struct Name(max 1024);
}

xdr_enum! {
    /// Whether the host is (or can be) monitored.
    pub enum Outcome {
        Success = 0,
        Failure = 1,
    }
}

xdr_struct! {
    /// my_id: the host and the procedure to call when the monitored host restarts. The specification
    /// types the three numbers as `int`; RPC numbers are unsigned.
    pub struct MyId {
        pub my_name: Name,
        pub program: u32,
        pub version: u32,
        pub procedure: u32,
    }

    /// mon_id: one registration.
    pub struct MonId {
        pub mon_name: Name,
        pub my_id: MyId,
    }

    /// mon: a registration, and data that the callback repeats.
    pub struct MonArgs {
        pub mon_id: MonId,
        pub private: Private,
    }

    /// sm_stat_res.
    #[derive(Copy)]
    pub struct StatReply {
        pub outcome: Outcome,
        pub state: i32,
    }

    /// sm_stat.
    #[derive(Copy)]
    pub struct StateReply {
        pub state: i32,
    }

    /// stat_chge: "I have restarted", from host to host.
    pub struct NotifyArgs {
        pub mon_name: Name,
        pub state: i32,
    }

    /// status: "that host has restarted", to the procedure in [`MyId`], which has no result.
    pub struct StatusArgs {
        pub mon_name: Name,
        pub state: i32,
        pub private: Private,
    }
}

/// Sixteen bytes that are meaningful to the registrant only.
pub type Private = [u8; 16];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::xdr::{Decode, Encode, Error};

    #[test]
    fn private_bytes_have_no_length_before_them() {
        let status = StatusArgs { mon_name: b"ab"[..].into(), state: -1, private: [7; 16] };
        let expected =
            [&[0, 0, 0, 2, b'a', b'b', 0, 0, 0xff, 0xff, 0xff, 0xff][..], &[7; 16]].concat();
        assert_eq!(status.to_bytes(), expected);
    }

    #[test]
    fn a_name_of_1024_bytes_is_taken_and_a_longer_one_is_not() {
        let longest = Name::from(vec![b'n'; 1_024]);
        assert_eq!(Name::from_bytes(longest.to_bytes()), Ok(longest));
        let longer = Name::from(vec![b'n'; 1_025]).to_bytes();
        assert_eq!(Name::from_bytes(longer), Err(Error::TooLong { length: 1_025, max: 1_024 }));
    }
}

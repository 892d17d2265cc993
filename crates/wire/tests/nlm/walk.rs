//! Every procedure of NLM and NSM with its types, for tests that look at the values.

use std::fmt::Debug;

use judge::Any;
use lockkeeper_wire::nlm::{v1, v3, v4};
use lockkeeper_wire::nsm;
use lockkeeper_wire::rpc::Procedure;

use super::fields::Described;

pub(crate) trait Sample: Any + Described + PartialEq + Debug + 'static {}

impl<T: Any + Described + PartialEq + Debug + 'static> Sample for T {}

pub(crate) trait Visitor {
    fn visit<P: Procedure>(&mut self)
    where
        P::Args: Sample,
        P::Reply: Sample;
}

/// The call that NSM makes to a registrant, under the numbers by which tshark knows it.
pub(crate) struct Callback;

impl Procedure for Callback {
    const PROGRAM: u32 = 200_048;
    const VERSION: u32 = 1;
    const NUMBER: u32 = 1;
    type Args = nsm::StatusArgs;
    type Reply = ();
}

macro_rules! visit {
    ($visitor:ident, $($module:ident::{ $($name:ident)* })*) => {$($(
        $visitor.visit::<$module::$name>();
    )*)*};
}

pub(crate) fn walk(visitor: &mut impl Visitor) {
    visit! { visitor,
        v1::{
            Null Test Lock Cancel Unlock Granted TestMsg LockMsg CancelMsg UnlockMsg GrantedMsg
            TestRes LockRes CancelRes UnlockRes GrantedRes
        }
        v3::{
            Null Test Lock Cancel Unlock Granted TestMsg LockMsg CancelMsg UnlockMsg GrantedMsg
            TestRes LockRes CancelRes UnlockRes GrantedRes Share Unshare NmLock FreeAll
        }
        v4::{
            Null Test Lock Cancel Unlock Granted TestMsg LockMsg CancelMsg UnlockMsg GrantedMsg
            TestRes LockRes CancelRes UnlockRes GrantedRes Share Unshare NmLock FreeAll
        }
        nsm::{ Null Stat Mon Unmon UnmonAll SimuCrash Notify }
    }
    visitor.visit::<Callback>();
}

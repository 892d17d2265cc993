//! The procedures of each program, with the values of the label `procedure`.

use wire::rpc::Procedure;
use wire::{mount, nfs3, nlm::v4 as nlm, nsm, rpcbind};

use super::Program;

impl Program {
    /// Every procedure that the protocol defines, by ascending number.
    pub fn procedures(self) -> &'static [(u32, &'static str)] {
        match self {
            Self::Nfs => &[
                (nfs3::Null::NUMBER, "null"),
                (nfs3::GetAttr::NUMBER, "getattr"),
                (nfs3::SetAttr::NUMBER, "setattr"),
                (nfs3::Lookup::NUMBER, "lookup"),
                (nfs3::Access::NUMBER, "access"),
                (nfs3::ReadLink::NUMBER, "readlink"),
                (nfs3::Read::NUMBER, "read"),
                (nfs3::Write::NUMBER, "write"),
                (nfs3::Create::NUMBER, "create"),
                (nfs3::MkDir::NUMBER, "mkdir"),
                (nfs3::SymLink::NUMBER, "symlink"),
                (nfs3::MkNod::NUMBER, "mknod"),
                (nfs3::Remove::NUMBER, "remove"),
                (nfs3::RmDir::NUMBER, "rmdir"),
                (nfs3::Rename::NUMBER, "rename"),
                (nfs3::Link::NUMBER, "link"),
                (nfs3::ReadDir::NUMBER, "readdir"),
                (nfs3::ReadDirPlus::NUMBER, "readdirplus"),
                (nfs3::FsStat::NUMBER, "fsstat"),
                (nfs3::FsInfo::NUMBER, "fsinfo"),
                (nfs3::PathConf::NUMBER, "pathconf"),
                (nfs3::Commit::NUMBER, "commit"),
            ],
            Self::Mount => &[
                (mount::Null::NUMBER, "null"),
                (mount::Mnt::NUMBER, "mnt"),
                (mount::Dump::NUMBER, "dump"),
                (mount::Umnt::NUMBER, "umnt"),
                (mount::UmntAll::NUMBER, "umntall"),
                (mount::Exports::NUMBER, "export"),
            ],
            Self::Nlm => &[
                (nlm::Null::NUMBER, "null"),
                (nlm::Test::NUMBER, "test"),
                (nlm::Lock::NUMBER, "lock"),
                (nlm::Cancel::NUMBER, "cancel"),
                (nlm::Unlock::NUMBER, "unlock"),
                (nlm::Granted::NUMBER, "granted"),
                (nlm::TestMsg::NUMBER, "test_msg"),
                (nlm::LockMsg::NUMBER, "lock_msg"),
                (nlm::CancelMsg::NUMBER, "cancel_msg"),
                (nlm::UnlockMsg::NUMBER, "unlock_msg"),
                (nlm::GrantedMsg::NUMBER, "granted_msg"),
                (nlm::TestRes::NUMBER, "test_res"),
                (nlm::LockRes::NUMBER, "lock_res"),
                (nlm::CancelRes::NUMBER, "cancel_res"),
                (nlm::UnlockRes::NUMBER, "unlock_res"),
                (nlm::GrantedRes::NUMBER, "granted_res"),
                (nlm::Share::NUMBER, "share"),
                (nlm::Unshare::NUMBER, "unshare"),
                (nlm::NmLock::NUMBER, "nm_lock"),
                (nlm::FreeAll::NUMBER, "free_all"),
            ],
            Self::Nsm => &[
                (nsm::Null::NUMBER, "null"),
                (nsm::Stat::NUMBER, "stat"),
                (nsm::Mon::NUMBER, "mon"),
                (nsm::Unmon::NUMBER, "unmon"),
                (nsm::UnmonAll::NUMBER, "unmon_all"),
                (nsm::SimuCrash::NUMBER, "simu_crash"),
                (nsm::Notify::NUMBER, "notify"),
            ],
            // Literal numbers: not served, so `wire` has no constants.
            Self::Rpcbind => &[
                (rpcbind::v4::Null::NUMBER, "null"),
                (rpcbind::v4::Set::NUMBER, "set"),
                (rpcbind::v4::Unset::NUMBER, "unset"),
                (rpcbind::v2::GetPort::NUMBER, "getport"),
                (rpcbind::v4::Dump::NUMBER, "dump"),
                (5, "callit"),
                (rpcbind::v4::GetTime::NUMBER, "gettime"),
                (7, "uaddr2taddr"),
                (8, "taddr2uaddr"),
                (rpcbind::v4::GetVersAddr::NUMBER, "getversaddr"),
                (10, "indirect"),
                (rpcbind::v4::GetAddrList::NUMBER, "getaddrlist"),
                (12, "getstat"),
            ],
        }
    }
}

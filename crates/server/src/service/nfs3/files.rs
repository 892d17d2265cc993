//! NFS procedures on one file: GETATTR, SETATTR, ACCESS, READLINK, READ, WRITE, COMMIT.

use vfs::{Error, FileKind};
use wire::nfs3::{
    self, AccessArgs, AccessOk, Attributes, CommitArgs, CommitOk, GetAttrArgs, ReadArgs,
    ReadLinkArgs, ReadLinkOk, ReadOk, SetAttrArgs, Wcc, WriteArgs, WriteOk, access,
};

use super::translate::{attributes, new_attributes, stability, stability_reached, time_from, wcc};
use super::{Refusal, Request, refuse};

/// The largest READ or WRITE over UDP: one datagram with its headers.
const UDP_IO_BYTES_MAX: u32 = 32 << 10;

impl Request<'_> {
    pub(super) fn get_attr(&self, args: GetAttrArgs) -> Result<Attributes, Refusal<()>> {
        let target = self.inspect(&args.object).map_err(refuse(|| ()))?;
        let found = target.export.filesystem.attributes(&target.context(), &target.object);
        Ok(attributes(&found.map_err(refuse(|| ()))?, target.export))
    }

    pub(super) fn set_attr(&self, args: SetAttrArgs) -> Result<Wcc, Refusal<Wcc>> {
        let target = self.open_to_change(&args.object).map_err(refuse(Wcc::default))?;
        let guard = args.guard.map(time_from);
        let change = new_attributes(&args.new)
            .and_then(|new| {
                let filesystem = &target.export.filesystem;
                filesystem.set_attributes(&target.context(), &target.object, &new, guard)
            })
            .map_err(refuse(|| target.unchanged()))?;
        Ok(wcc(&change, target.export))
    }

    pub(super) fn access(&self, args: AccessArgs) -> Result<AccessOk, Refusal<Option<Attributes>>> {
        let target = self.open(&args.object).map_err(refuse(|| None))?;
        let (may, found) = target
            .export
            .filesystem
            .access(&target.context(), &target.object)
            .map_err(refuse(|| target.post_op_attributes()))?;
        let changes = may.write && target.check_writable().is_ok();
        let mut granted = 0;
        if may.read {
            granted |= access::READ;
        }
        if changes {
            granted |= access::MODIFY | access::EXTEND;
        }
        if found.kind == FileKind::Directory {
            if may.execute {
                granted |= access::LOOKUP;
            }
            if changes {
                granted |= access::DELETE;
            }
        } else if may.execute {
            granted |= access::EXECUTE;
        }
        let attributes = Some(attributes(&found, target.export));
        Ok(AccessOk { attributes, access: granted & args.access })
    }

    pub(super) fn read_link(
        &self,
        args: ReadLinkArgs,
    ) -> Result<ReadLinkOk, Refusal<Option<Attributes>>> {
        let target = self.open(&args.object).map_err(refuse(|| None))?;
        let (text, found) = target
            .export
            .filesystem
            .read_link(&target.context(), &target.object)
            .map_err(refuse(|| target.post_op_attributes()))?;
        let attributes = Some(attributes(&found, target.export));
        Ok(ReadLinkOk { attributes, text: text.into() })
    }

    pub(super) fn read(&self, args: ReadArgs) -> Result<ReadOk, Refusal<Option<Attributes>>> {
        let target = self.open(&args.file).map_err(refuse(|| None))?;
        let count = args.count.min(self.io_bytes_max());
        let read = target
            .export
            .filesystem
            .read(&target.context(), &target.object, args.offset, count)
            .map_err(refuse(|| target.post_op_attributes()))?;
        self.bytes.set(read.data.len() as u64);
        let attributes = read.attributes.map(|a| attributes(&a, target.export));
        Ok(ReadOk { attributes, eof: read.eof, data: read.data })
    }

    pub(super) fn write(&self, args: WriteArgs) -> Result<WriteOk, Refusal<Wcc>> {
        let target = self.open_to_change(&args.file).map_err(refuse(Wcc::default))?;
        // More bytes promised than sent.
        if args.count as usize > args.data.len() {
            return Err(refuse(|| target.unchanged())(Error::Invalid));
        }
        let data = args.data.slice(..args.count as usize);
        let filesystem = &target.export.filesystem;
        let wanted = stability(args.stability);
        // Read before the write: if the verifier changes meanwhile, the client repeats the write.
        let verifier = filesystem.write_verifier();
        let written = filesystem
            .write(&target.context(), &target.object, args.offset, &data, wanted)
            .map_err(refuse(|| target.unchanged()))?;
        self.bytes.set(written.count.into());
        Ok(WriteOk {
            wcc: wcc(&written.file, target.export),
            count: written.count,
            stability: stability_reached(written.stability),
            verifier,
        })
    }

    pub(super) fn commit(&self, args: CommitArgs) -> Result<CommitOk, Refusal<Wcc>> {
        let target = self.open_to_commit(&args.file).map_err(refuse(Wcc::default))?;
        let filesystem = &target.export.filesystem;
        let change = filesystem
            .commit(&target.context(), &target.object, args.offset, args.count)
            .map_err(refuse(|| target.unchanged()))?;
        let verifier = filesystem.write_verifier();
        Ok(CommitOk { wcc: wcc(&change, target.export), verifier })
    }

    pub(super) fn io_bytes_max(&self) -> u32 {
        match self.peer.transport {
            crate::transport::Transport::Tcp => nfs3::IO_BYTES_MAX,
            crate::transport::Transport::Udp => UDP_IO_BYTES_MAX,
        }
    }
}

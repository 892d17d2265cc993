//! NFS procedures on a file system: FSSTAT, FSINFO, PATHCONF.

use wire::nfs3::{
    Attributes, FsArgs, FsInformation, FsStatus, PathConfiguration, Time, properties,
};

use super::{Refusal, Request, refuse};

/// The READDIR size that clients should use.
const READDIR_PREFERRED: u32 = 64 << 10;

impl Request<'_> {
    pub(super) fn fs_stat(&self, args: FsArgs) -> Result<FsStatus, Refusal<Option<Attributes>>> {
        let target = self.inspect(&args.root).map_err(refuse(|| None))?;
        let space = target
            .export
            .filesystem
            .space(&target.context(), &target.object)
            .map_err(refuse(|| target.post_op_attributes()))?;
        Ok(FsStatus {
            attributes: target.post_op_attributes(),
            bytes_total: space.bytes_total,
            bytes_free: space.bytes_free,
            bytes_available: space.bytes_available,
            files_total: space.files_total,
            files_free: space.files_free,
            files_available: space.files_available,
            stable_seconds: 0,
        })
    }

    pub(super) fn fs_info(
        &self,
        args: FsArgs,
    ) -> Result<FsInformation, Refusal<Option<Attributes>>> {
        let target = self.inspect(&args.root).map_err(refuse(|| None))?;
        let info = target.export.filesystem.info();
        let io_max = self.io_bytes_max();
        let mut bits = properties::HOMOGENEOUS | properties::SETS_TIMES;
        if info.hard_links {
            bits |= properties::HARD_LINKS;
        }
        if info.symlinks {
            bits |= properties::SYMLINKS;
        }
        Ok(FsInformation {
            attributes: target.post_op_attributes(),
            read_max: io_max,
            read_preferred: io_max,
            read_multiple: 4096,
            write_max: io_max,
            write_preferred: io_max,
            write_multiple: 4096,
            readdir_preferred: READDIR_PREFERRED.min(io_max),
            file_size_max: info.file_size_max,
            time_step: Time {
                seconds: info.time_step.seconds as u32,
                nanoseconds: info.time_step.nanoseconds,
            },
            properties: bits,
        })
    }

    pub(super) fn path_conf(
        &self,
        args: FsArgs,
    ) -> Result<PathConfiguration, Refusal<Option<Attributes>>> {
        let target = self.inspect(&args.root).map_err(refuse(|| None))?;
        let info = target.export.filesystem.info();
        Ok(PathConfiguration {
            attributes: target.post_op_attributes(),
            links_max: info.links_max,
            name_max: info.name_max,
            no_truncation: true,
            chown_restricted: true,
            case_insensitive: info.case_insensitive,
            case_preserving: info.case_preserving,
        })
    }
}

//! Procedures on a whole file system: FSSTAT, FSINFO, PATHCONF.

use wire::nfs3::{
    Attributes, FsArgs, FsInformation, FsStatus, PathConfiguration, Time, properties,
};

use super::{Refusal, Request, refuse};

/// What listings should ask for at once.
const READDIR_PREFERRED: u32 = 64 << 10;

impl Request<'_> {
    pub(super) fn fs_stat(&self, args: FsArgs) -> Result<FsStatus, Refusal<Option<Attributes>>> {
        let target = self.open_to_look(&args.root).map_err(refuse(|| None))?;
        let space = target
            .export
            .filesystem
            .space(&target.context(), &target.object)
            .map_err(refuse(|| target.seen()))?;
        Ok(FsStatus {
            attributes: target.seen(),
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
        let target = self.open_to_look(&args.root).map_err(refuse(|| None))?;
        let traits = target.export.filesystem.traits();
        let io_max = self.io_bytes_max();
        let mut bits = properties::HOMOGENEOUS | properties::SETS_TIMES;
        if traits.hard_links {
            bits |= properties::HARD_LINKS;
        }
        if traits.symlinks {
            bits |= properties::SYMLINKS;
        }
        Ok(FsInformation {
            attributes: target.seen(),
            read_max: io_max,
            read_preferred: io_max,
            read_multiple: 4096,
            write_max: io_max,
            write_preferred: io_max,
            write_multiple: 4096,
            readdir_preferred: READDIR_PREFERRED.min(io_max),
            file_size_max: traits.file_size_max,
            time_step: Time {
                seconds: traits.time_step.seconds as u32,
                nanoseconds: traits.time_step.nanoseconds,
            },
            properties: bits,
        })
    }

    pub(super) fn path_conf(
        &self,
        args: FsArgs,
    ) -> Result<PathConfiguration, Refusal<Option<Attributes>>> {
        let target = self.open_to_look(&args.root).map_err(refuse(|| None))?;
        let traits = target.export.filesystem.traits();
        Ok(PathConfiguration {
            attributes: target.seen(),
            links_max: traits.links_max,
            name_max: traits.name_max,
            no_truncation: true,
            chown_restricted: true,
            case_insensitive: traits.case_insensitive,
            case_preserving: traits.case_preserving,
        })
    }
}

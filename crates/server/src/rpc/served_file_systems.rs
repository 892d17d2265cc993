//! What the workers know of the file systems that are served.

use std::sync::Arc;

use super::workers::{FileSystems, Lane};
use crate::files::Files;
use crate::metrics::Metrics;

pub(super) struct ServedFileSystems {
    pub(super) files: Arc<Files>,
    pub(super) metrics: Option<Arc<Metrics>>,
}

impl FileSystems for ServedFileSystems {
    fn are_several(&self) -> bool {
        self.files.has_several_file_systems()
    }

    fn paths(&self, lane: Lane) -> String {
        self.files.export_paths(lane)
    }

    fn count_stalled(&self, count: usize) {
        if let Some(metrics) = &self.metrics {
            metrics.stalled_file_systems.set(count as u64);
        }
    }
}

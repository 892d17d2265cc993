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

    fn set_stalled(&self, lanes: Vec<Lane>) {
        if let Some(metrics) = &self.metrics {
            metrics.stalled_file_systems.set(lanes.len() as u64);
        }
        self.files.set_stalled(lanes.into_iter().flatten().collect());
    }
}

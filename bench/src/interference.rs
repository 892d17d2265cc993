//! How much of the machine went to processes that are not part of the comparison.

use std::time::Duration;

use anyhow::Result;

use crate::server::Server;
use load::usage::{self, Machine};

pub(crate) struct Interference {
    machine: Machine,
    ours: Duration,
}

impl Interference {
    pub(crate) fn begin(servers: &[&Server]) -> Result<Self> {
        Ok(Self { machine: usage::machine()?, ours: Self::ours(servers)? })
    }

    pub(crate) fn share(&self, servers: &[&Server]) -> Result<f64> {
        let machine = usage::machine()?;
        let busy = machine.busy.saturating_sub(self.machine.busy);
        let all = machine.all.saturating_sub(self.machine.all);
        let ours = Self::ours(servers)?.saturating_sub(self.ours);
        Ok(busy.saturating_sub(ours).as_secs_f64() / all.as_secs_f64().max(0.01))
    }

    /// The load's own time and the servers'.
    fn ours(servers: &[&Server]) -> Result<Duration> {
        servers.iter().try_fold(usage::own_cpu(), |sum, server| Ok(sum + server.cpu()?))
    }
}

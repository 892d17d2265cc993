//! Reboots reported from another address (B3.75).

use std::net::IpAddr;

use keeper::identity::ClientId;
use keeper::request::{ProbeAnswer, Question};

use crate::queue::Ms;
use crate::world::World;

/// A notice and two repeats.
const NOTICES_MIN: usize = 3;

impl World {
    /// Whether a notice from `source` may be believed. What roaming risks is that it hits a live
    /// holder: a notice of another machine while the client is cut off.
    pub(crate) fn roaming_allowed(
        &self,
        client: ClientId,
        host: usize,
        to: u32,
        source: IpAddr,
    ) -> Result<Result<(), String>, String> {
        if !self.scenario.config.roaming {
            return Err("roaming is not allowed".to_owned());
        }
        let it = &self.hosts[host];
        let notices = self.model.host_reports.iter().filter(|report| {
            (report.source, report.state) == (source, Some(to))
                && report.name.names_same_machine(&it.name)
        });
        let notices: Vec<Ms> = notices.map(|report| report.at).collect();
        if source == it.address || notices.len() < NOTICES_MIN {
            return Err(format!("{} notices came from {source}", notices.len()));
        }
        let first = notices.into_iter().min().unwrap_or(self.now);
        let called = self.model.called.get(&host).copied().unwrap_or(0);
        let window = self.scenario.config.window.as_millis() as Ms;
        if self.now < first.max(called) + window {
            return Err("its address was not silent for a window".to_owned());
        }
        let answer = self.model.probes.get(&(client, Question::Reachable));
        if matches!(answer, None | Some(ProbeAnswer::Alive)) {
            return Err("its address had answered".to_owned());
        }
        let others = self.model.rows.keys().filter(|other| {
            let other = &self.hosts[**other];
            other.name.names_same_machine(&it.name) && other.address != source
        });
        // In a batch another host of that name may have come or gone.
        if self.scenario.one_by_one && others.count() != 1 {
            return Err("several recorded hosts have that name".to_owned());
        }
        Ok(Ok(()))
    }
}

//! A host that registers with SM_MON for random names, and unregisters.

use keeper::bytes::Name;

use crate::packet::Call;
use crate::queue::SECOND;
use crate::scenario::HostKind;
use crate::world::{Event, Phase, World};

impl World {
    pub(crate) fn watcher_acts(&mut self) {
        if self.phase >= Phase::WindingDown {
            return;
        }
        let pause = self.random.between(10 * SECOND, 60 * SECOND);
        self.later(pause, Event::WatcherActs);
        let Some(watcher) = self.hosts.iter().position(|host| host.kind == HostKind::Watcher)
        else {
            return;
        };
        if !self.hosts[watcher].up {
            return;
        }
        let someone = self.random.index(self.hosts.len());
        let watched = if self.random.percent(50) {
            self.hosts[someone].name.clone()
        } else {
            Name::from(&*self.hosts[someone].address.to_string())
        };
        let call = match self.random.below(6) {
            0 => Call::Unmonitor { watched: None },
            1 => Call::Unmonitor { watched: Some(watched) },
            _ => Call::Monitor { watched },
        };
        let from = self.hosts[watcher].address;
        let request = self.loose_request(watcher, from, Name::from("watcher"), call, true);
        self.send_to_server(&request);
    }
}

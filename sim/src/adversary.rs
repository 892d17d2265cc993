//! The adversary: forges reboot notices, FREE_ALLs, unlocks, cancels, reclaims and callback answers.
//! It sends from its own address or from one that it shares with a victim; over TCP it cannot use the
//! victim's own address (that takes a reserved port there, B7.7), over UDP it can spoof a notice.

use std::rc::Rc;

use keeper::bytes::Name;
use keeper::identity::GrantId;
use keeper::request::{GrantAnswer, Mode};

use crate::cells::{FILES, draw_range};
use crate::connections::Purpose;
use crate::engine::AttemptKey;
use crate::packet::{Call, Request};
use crate::queue::SECOND;
use crate::scenario::HostKind;
use crate::world::{Event, Phase, World};

impl World {
    pub(crate) fn adversary_acts(&mut self) {
        if self.phase != Phase::Faults {
            return;
        }
        let pause = self.random.between(3 * SECOND, 30 * SECOND);
        self.later(pause, Event::AdversaryActs);
        let Some(liar) = self.hosts.iter().position(|host| host.kind == HostKind::Adversary) else {
            return;
        };
        if !self.hosts[liar].up {
            return;
        }
        self.faults += 1;
        match self.random.below(10) {
            9 => self.notice_from_unknown_address(liar),
            7 => self.forge_death(liar),
            8 => self.spoof_notice(liar),
            0 | 1 => self.forge_notice(liar),
            2 => self.forge_free_all(liar),
            3 | 4 => self.forge_for_another(liar),
            5 => self.forge_reclaim(liar),
            _ => self.forge_grant_answer(liar),
        }
    }

    /// A victim, and a source address: the adversary's own or one that the victim shares.
    fn victim(&mut self, liar: usize) -> (usize, std::net::IpAddr) {
        let victim = self.random.index(self.hosts.len());
        let shared = self
            .hosts
            .iter()
            .enumerate()
            .any(|(other, host)| other != victim && host.address == self.hosts[victim].address);
        let address = if shared && self.random.percent(50) {
            self.hosts[victim].address
        } else {
            self.hosts[liar].address
        };
        (victim, address)
    }

    fn forge_notice(&mut self, liar: usize) {
        let (victim, from) = self.victim(liar);
        let name = match self.random.below(3) {
            0 => Name::from(&*self.hosts[victim].short_name()),
            1 => Name::from("nobody.example.com"),
            _ => self.hosts[victim].name.clone(),
        };
        let state = match self.random.below(4) {
            0 => 0,
            1 => self.hosts[victim].state,
            2 => self.hosts[victim].state.wrapping_sub(2),
            _ => self.hosts[victim].state.wrapping_add(2),
        };
        self.coverage.reach("forged notice");
        self.trace(|w| {
            format!("mallory forges a notice: {name} is in state {state} (from {from})")
                .replace("mallory", &w.hosts[liar].short_name())
        });
        let request =
            self.loose_request(liar, from, name.clone(), Call::Notify { name, state }, false);
        self.send_to_server(&request);
    }

    /// A user on the victim's machine connects from an unreserved port and resets that connection
    /// just after a forged notice in the victim's name.
    fn forge_death(&mut self, liar: usize) {
        let victim = self.random.index(self.hosts.len());
        if !self.reachable(victim) || !self.server.open {
            return;
        }
        let life = self.hosts[victim].life;
        self.open_connection(victim, life, Purpose::User);
        self.spoof_notice_of(liar, victim);
        let pause = self.random.between(20, 9 * SECOND);
        self.later(pause, Event::UserReset { host: victim });
    }

    /// A notice from an address that no export admits.
    fn notice_from_unknown_address(&mut self, liar: usize) {
        let victim = self.random.index(self.hosts.len());
        let (name, state) =
            (self.hosts[victim].name.clone(), self.hosts[victim].state.wrapping_add(2));
        let from = std::net::IpAddr::from([192, 88, 99, 1]);
        let request =
            self.loose_request(liar, from, name.clone(), Call::Notify { name, state }, false);
        self.send_to_server(&request);
    }

    /// A notice in the name of the victim, with its address spoofed as source.
    fn spoof_notice(&mut self, liar: usize) {
        let victim = self.random.index(self.hosts.len());
        self.spoof_notice_of(liar, victim);
    }

    fn spoof_notice_of(&mut self, liar: usize, victim: usize) {
        let it = &self.hosts[victim];
        let (from, name, state) = (it.address, it.name.clone(), it.state.wrapping_add(2));
        self.coverage.reach("notice with a spoofed source");
        self.trace(|_| format!("a notice of {name} in state {state} is spoofed"));
        let request =
            self.loose_request(liar, from, name.clone(), Call::Notify { name, state }, false);
        self.send_to_server(&request);
    }

    fn forge_free_all(&mut self, liar: usize) {
        let (victim, from) = self.victim(liar);
        let name = self.hosts[victim].name.clone();
        self.coverage.reach("forged FREE_ALL");
        self.trace(|_| format!("mallory forges FREE_ALL of {name} (from {from})"));
        let request = self.loose_request(liar, from, name.clone(), Call::FreeAll { name }, false);
        self.send_to_server(&request);
    }

    /// Unlocks and cancels with the victim's owner and name, but not its address.
    fn forge_for_another(&mut self, liar: usize) {
        let victim = self.random.index(self.hosts[liar].first_process);
        let (file, range) = (self.random.index(FILES), draw_range(&mut self.random));
        let call = match self.random.below(3) {
            0 => Call::Unlock { file, range },
            1 => Call::Unlock { file, range: keeper::range::Range::ALL },
            _ => Call::Cancel { file, range, mode: Mode::Exclusive },
        };
        let name = if self.random.percent(50) {
            self.hosts[self.processes[victim].host].name.clone()
        } else {
            self.hosts[liar].name.clone()
        };
        let from = self.hosts[liar].address;
        let request = self.loose_request(liar, from, name, call, false);
        let it = &self.processes[victim];
        let request = Request {
            namespace: self.hosts[it.host].namespaces[it.namespace],
            number: it.number,
            tag: it.tag.clone(),
            ..(*request).clone()
        };
        self.coverage.reach("forged unlock or cancel");
        self.send_to_server(&Rc::new(request));
    }

    fn forge_reclaim(&mut self, liar: usize) {
        let Some(forger) = self.hosts[liar].processes().last() else { return };
        let (file, range) = (self.random.index(FILES), draw_range(&mut self.random));
        let mode = Mode::Exclusive;
        let call = Call::Lock { file, range, mode, wait: false, reclaim: true, state: 0 };
        let request = self.request_of(forger, call, 0);
        let mut request = (*request).clone();
        request.truth.honest = false;
        self.coverage.reach("forged reclaim");
        self.send_to_server(&Rc::new(request));
    }

    fn forge_grant_answer(&mut self, liar: usize) {
        let mine = self.hosts[liar].processes();
        let others = self.model.grants.iter().filter(|(_, grant)| !mine.contains(&grant.process));
        let open: Vec<GrantId> = others.map(|(id, _)| *id).collect();
        if open.is_empty() {
            return;
        }
        let grant = *self.random.pick(&open);
        let answer =
            if self.random.percent(50) { GrantAnswer::Denied } else { GrantAnswer::Accepted };
        let what = AttemptKey::Grant(grant, 1 + self.random.below(2) as u32);
        let life = self.server.life;
        self.later(5, Event::AttemptAnswered { life, host: liar, what, answer });
    }
}

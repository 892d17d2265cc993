//! A Windows client: SHARE and UNSHARE of whole files, no byte-range locks.

use keeper::request::Access;
use keeper::step::{Outcome, Reply};

use super::{Activity, BelievedShare};
use crate::cells::FILES;
use crate::packet::{Answer, Call};
use crate::queue::SECOND;
use crate::world::{Event, World};

impl World {
    /// SHARE carries no NSM state, so no server can tell a share taken between a boot and its notice
    /// from one taken before. These hosts wait until their notice was answered.
    pub(crate) fn think_of_shares(&mut self, process: usize) {
        let host = self.processes[process].host;
        if self.hosts[host].announcement.is_some() && !self.winding_down() {
            return self.rest(process, SECOND);
        }
        let file = self.random.index(FILES);
        let taken = (0..FILES).find(|file| self.processes[process].shares[*file].is_some());
        match taken {
            Some(file) if self.winding_down() || self.random.percent(50) => {
                self.unshare(process, file);
            }
            None if self.winding_down() => self.processes[process].doing = Activity::Finished,
            _ => {
                let access = self.some_access();
                let deny = self.some_access();
                let generation = 0;
                self.processes[process].doing =
                    Activity::Sharing { file, access, deny, generation };
                self.ask_for_share(process);
            }
        }
    }

    pub(crate) fn ask_for_share(&mut self, process: usize) {
        if let Activity::Sharing { file, access, deny, .. } = self.processes[process].doing {
            let generation = self.hosts[self.processes[process].host].generation;
            self.processes[process].doing = Activity::Sharing { file, access, deny, generation };
            let call = Call::Share { file, access, deny, reclaim: false };
            self.call(process, call, 0);
        }
    }

    fn some_access(&mut self) -> Access {
        Access { read: self.random.percent(40), write: self.random.percent(40) }
    }

    fn unshare(&mut self, process: usize, file: usize) {
        self.processes[process].shares[file] = None;
        self.processes[process].doing = Activity::Unsharing;
        self.call(process, Call::Unshare { file }, 0);
    }

    /// A SHARE is answered.
    pub(crate) fn shared(
        &mut self,
        process: usize,
        file: usize,
        (access, deny): (Access, Access),
        answer: &Answer,
        decided: u64,
    ) {
        let now = self.hosts[self.processes[process].host].generation;
        let overtaken = match self.processes[process].doing {
            Activity::Sharing { generation, .. } => generation != now,
            _ => false,
        };
        match answer {
            // The server restarted while the reply was under way: the reclaimer does not know this
            // share.
            Answer::Keeper(Reply::Share(Outcome::Granted)) if overtaken => {
                return self.ask_for_share(process);
            }
            Answer::Keeper(Reply::Share(Outcome::Granted)) => {
                let tainted = self.model.unshared_at[process][file] > decided;
                let sharing = BelievedShare { access, deny, tainted, given_up: false };
                self.processes[process].shares[file] = Some(sharing);
                self.check_shared();
            }
            // Retried until grace is over.
            Answer::Keeper(Reply::Share(Outcome::Grace)) => {
                let turn = self.processes[process].turn;
                return self.later(5 * SECOND, Event::Poll { process, turn });
            }
            Answer::Keeper(Reply::Share(Outcome::Denied)) => {}
            // It may have been committed before a crash in which the reply was lost: then server and
            // process legitimately disagree.
            _ => {
                self.model.abandoned.insert((process, file));
                if let Some(sharing) = &mut self.processes[process].shares[file] {
                    sharing.tainted = true;
                }
            }
        }
        self.rest_a_while(process);
    }
}

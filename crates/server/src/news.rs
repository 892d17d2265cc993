//! What happened to locks, told to the one who reads the log at 3 a.m.: one line each, with names.

use std::fmt;

use tracing::{debug, info, warn};

use keeper::Keeper;
use keeper::event::{Doubt, Event, GraceEnd, Proof, Release};
use keeper::identity::ClientId;
use keeper::step::Refusal;

use crate::rarely::Rarely;

static REFUSED: Rarely = Rarely::new();
static STRANGER: Rarely = Rarely::new();
static GHOST: Rarely = Rarely::new();

/// A host by the name and address that people know it by.
struct Host<'a>(&'a Keeper, ClientId);

impl fmt::Display for Host<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.client(self.1) {
            Some(view) => write!(f, "{} ({})", view.client.name, view.client.address),
            None => write!(f, "host {}", (self.1).0),
        }
    }
}

pub fn tell(keeper: &Keeper, event: &Event) {
    let host = |client: &ClientId| Host(keeper, *client);
    match event {
        Event::Started { epoch, clients, locks, exact } => {
            let trust = if *exact { "" } else { " (a roster: only who held locks is certain)" };
            info!("epoch {}: {locks} locks of {clients} hosts recovered{trust}", epoch.0);
        }
        Event::GraceStarted { hosts } => {
            info!("grace begins: new locks wait until {hosts} hosts have their old ones back");
        }
        Event::GraceEnded { why: GraceEnd::Complete } => {
            info!("grace is over: everybody has their locks back");
        }
        Event::GraceEnded { why: GraceEnd::Deadline } => info!("grace is over: its time is up"),
        Event::GraceEnded { why: GraceEnd::Operator(by) } => info!("grace was ended by {by}"),
        Event::Stopped => debug!("the clean stop is in the store"),
        Event::Registered { client } => debug!("{} is monitored", host(client)),
        Event::Unregistered { client } => debug!("host {} is forgotten", client.0),
        Event::Rebooted { client, to, proof, released } => {
            let proof = match proof {
                Proof::NothingHeld => "it held nothing",
                Proof::Reset => "its old connection was reset",
                Proof::Notice => "it said so, and nothing of its old kernel answers",
                Proof::Stateless => "a new connection of a stateless client",
                Proof::Operator(_) => "an operator confirmed it",
            };
            info!("{} rebooted (state {}, {proof}): {released} locks freed", host(client), to.0);
        }
        Event::RebootPending { client, to, why } => {
            let why = match why {
                Doubt::Alive => "its old kernel still answers",
                Doubt::Unproven => "the notice came from elsewhere or is old",
            };
            warn!(
                "{} is said to have rebooted (state {}), but {why}: its locks stay",
                host(client),
                to.0
            );
        }
        Event::NoticeUnknown { source, name } => {
            if STRANGER.due() {
                debug!("a notice from {source} about {name}, who holds nothing here");
            }
        }
        Event::Suspect { client, was, is } => {
            warn!(
                "{} changed its state from {} to {} without proof of a reboot: its locks stay",
                host(client),
                was.0,
                is.0
            );
        }
        Event::Crashed { client } => {
            warn!("{} was not heard of in the recovery window", host(client));
        }
        Event::Released { client, count, why } => {
            let why = match why {
                Release::FreeAll => "it freed all it had".into(),
                Release::Unanswered => "not reclaimed, wanted, and it does not answer".into(),
                Release::Unreachable => "it could not be notified".into(),
                Release::RosterEnd => "not reclaimed in the grace period".into(),
                Release::Operator(by) => format!("released by {by}"),
            };
            warn!("{count} locks of {} released: {why}", host(client));
        }
        Event::Ghost { client, incarnation } => {
            if GHOST.due() {
                info!("a late request of {} from state {} ignored", host(client), incarnation.0);
            }
        }
        Event::ReclaimRefused { client } => warn!("a reclaim of {} was refused", host(client)),
        Event::Deadlock { client } => info!("a lock of {} would deadlock", host(client)),
        Event::GrantUndone { client, .. } => debug!("{} no longer wanted a lock", host(client)),
        Event::PassedOver { client } => {
            info!("{} does not answer and was passed over; it keeps its place", host(client));
        }
        Event::NoticeSent { client, attempt, .. } => {
            debug!("notice {attempt} to {}", host(client));
        }
        // With thousands of hosts these lines would drown the others.
        Event::NoticeAnswered { client, .. } if few(keeper) => {
            info!("{} was notified", host(client));
        }
        Event::NoticeAnswered { client, .. } => debug!("{} was notified", host(client)),
        Event::NoticeFailed { client, .. } if few(keeper) => {
            info!("{} did not answer a notice", host(client));
        }
        Event::NoticeFailed { client, .. } => debug!("{} did not answer a notice", host(client)),
        Event::NoticeGivenUp { client, .. } => {
            warn!("{} never answered a notice of our restart; given up", host(client));
        }
        Event::Refused { client, why } => {
            if REFUSED.due() {
                let who = client.map_or_else(|| "a new host".into(), |id| host(&id).to_string());
                warn!("a request of {who} was refused: {}", explain(*why));
            }
        }
        Event::Fenced { client, by } => warn!("{} was fenced by {by}", host(client)),
        Event::Unfenced { client, by } => warn!("{} was let in again by {by}", host(client)),
    }
}

fn few(keeper: &Keeper) -> bool {
    keeper.counts().clients <= 100
}

fn explain(why: Refusal) -> &'static str {
    match why {
        Refusal::TooManyLocks => "too many locks; allow more with `locks` in [limits]",
        Refusal::TooManyLocksOnFile => {
            "too many locks on one file; allow more with `locks_per_file` in [limits]"
        }
        Refusal::TooManyLocksOfHost => {
            "too many locks of one host; allow more with `locks_per_client` in [limits]"
        }
        Refusal::TooManyWaitersOnFile => {
            "too many wait for one file; allow more with `waiters_per_file` in [limits]"
        }
        Refusal::TooManyClients => "too many hosts; allow more with `clients` in [limits]",
        Refusal::TooManyParked => "too many requests are held back already",
        Refusal::Fenced => "it is fenced",
        Refusal::Withdrawn => "it was withdrawn meanwhile",
        Refusal::Ghost => "it is of a kernel that is gone",
    }
}

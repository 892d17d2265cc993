//! The verdict on whether the kernel that took the locks is still running, from what the connections
//! of its host say.
//!
//! A host runs one kernel at a time. A connection spans the time from its opening to the last
//! acknowledgement on it, all under one kernel. Two connections whose spans overlap lead to the same
//! kernel, and so does a third that overlaps one of them. So a client that reconnects while another of
//! its connections is alive stays known, and one that mounts again after a crash does not pass for its
//! predecessor.
//!
//! | the connections that were probed, or ended recently | answer |
//! |---|---|
//! | one acknowledges, and by overlaps its kernel has been up since before the last lock | Alive |
//! | one acknowledges; no other was lost between the last lock and the start of its kernel's span: the client reconnected after an orderly end | Alive |
//! | one acknowledges; another, alive after the last lock, was reset by our probe, and their spans do not meet: another kernel is up now | Gone |
//! | the same, but the other one was reset unprompted, or does not answer | Silent |
//! | none acknowledges; one that was alive after the last lock is reset by our probe | Gone |
//! | none acknowledges; one could not be probed (its unsent data waits for a timer) and has not missed three answers | Alive |
//! | none acknowledges, or there are none | Silent |
//!
//! Gone is proof, so it needs a segment of ours that the host answered with a reset. An unprompted
//! reset may come from a running kernel: for a program that closes a socket with unread data, or when
//! a port is reused after a long network outage. An old connection that is silent beside a new one
//! that answers is what a rebooted client with a firewall looks like, which drops segments of unknown
//! connections instead of resetting them. Both are Silent: then a notice from the host's own address
//! is believed, and nothing else is.
//!
//! What remains: a running kernel is taken for dead if *all* its connections were cut off, by an
//! outage of minutes, and within a quarter of an hour a forged notice arrives from its own address.

use std::time::{Duration, Instant};

use keeper::request::ProbeAnswer;

/// Shorter than any reboot; covers the delay with which a busy server accepts a connection.
const MARGIN: Duration = Duration::from_secs(1);

/// What one connection says.
#[derive(Debug, Clone, Copy)]
pub struct Observation {
    /// Since when its kernel is known to be up.
    pub kernel_since: Instant,
    pub last_ack: Instant,
    pub response: Response,
}

/// How a connection responded to probes, or ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Response {
    Acknowledged,
    ResetByProbe,
    ResetUnprompted,
    Unanswered,
    /// The kernel could not send a probe in time.
    NotProbed,
    /// It ended in order, or its end is no evidence about this host.
    Inconclusive,
}

/// `last_lock`: when the kernel in question last took a lock; `None` if that was before all
/// connections.
pub fn verdict(observations: &[Observation], last_lock: Option<Instant>) -> ProbeAnswer {
    // A connection that fell silent before the last lock may lead to an earlier kernel.
    let concerns = |o: &&Observation| last_lock.is_none_or(|at| o.last_ack + MARGIN >= at);
    let Some(up_since) = up_since(observations) else {
        let mut all = observations.iter();
        return if all.clone().filter(concerns).any(|o| o.response == Response::ResetByProbe) {
            ProbeAnswer::Gone
        } else if all.any(|o| o.response == Response::NotProbed) {
            ProbeAnswer::Alive
        } else {
            ProbeAnswer::Silent
        };
    };
    if last_lock.is_some_and(|at| up_since <= at) {
        return ProbeAnswer::Alive;
    }
    let mut lost = observations.iter().filter(concerns).filter(|o| o.last_ack + MARGIN < up_since);
    if lost.clone().any(|o| o.response == Response::ResetByProbe) {
        ProbeAnswer::Gone
    } else if lost.any(|o| matches!(o.response, Response::ResetUnprompted | Response::Unanswered)) {
        ProbeAnswer::Silent
    } else {
        ProbeAnswer::Alive
    }
}

/// Since when the kernel that acknowledges is known to be up.
fn up_since(observations: &[Observation]) -> Option<Instant> {
    let alive = observations.iter().filter(|o| o.response == Response::Acknowledged);
    let mut since = alive.map(|o| o.kernel_since).min()?;
    let mut by_last_ack: Vec<_> = observations.iter().collect();
    by_last_ack.sort_unstable_by_key(|o| std::cmp::Reverse(o.last_ack));
    for o in by_last_ack {
        if o.last_ack + MARGIN < since {
            break;
        }
        since = since.min(o.kernel_since);
    }
    Some(since)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ProbeAnswer::{Alive, Gone, Silent};
    use Response::*;

    /// The verdict on connections given as (opened, last acknowledgement, response), in seconds, for
    /// every order of them.
    fn judge(connections: &[(u64, u64, Response)], last_lock: Option<u64>) -> ProbeAnswer {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let observation = |(since, ack, response)| {
            let (kernel_since, last_ack) = (at(since), at(ack));
            Observation { kernel_since, last_ack, response }
        };
        let mut observations: Vec<_> = connections.iter().copied().map(observation).collect();
        let answer = verdict(&observations, last_lock.map(at));
        observations.reverse();
        assert_eq!(verdict(&observations, last_lock.map(at)), answer, "the order matters");
        answer
    }

    #[test]
    fn a_connection_from_before_the_last_lock_that_acknowledges_outweighs_everything() {
        let old = (0, 900, Acknowledged);
        assert_eq!(judge(&[old], Some(100)), Alive);
        for lost in [ResetByProbe, ResetUnprompted, Unanswered, NotProbed, Inconclusive] {
            assert_eq!(judge(&[old, (0, 500, lost)], Some(100)), Alive);
            assert_eq!(judge(&[old, (200, 500, lost)], Some(100)), Alive);
        }
    }

    #[test]
    fn a_later_connection_counts_if_one_of_the_old_kernel_was_alive_when_it_opened() {
        let old = (0, 500, ResetByProbe);
        assert_eq!(judge(&[old, (400, 900, Acknowledged)], Some(100)), Alive);
        let between = (450, 700, Inconclusive);
        assert_eq!(judge(&[old, between, (650, 900, Acknowledged)], Some(100)), Alive);
        // Accepted a moment after it was opened.
        assert_eq!(judge(&[(0, 500, ResetUnprompted), (501, 900, Acknowledged)], Some(100)), Alive);
    }

    #[test]
    fn a_client_that_reconnected_after_an_orderly_end_is_alive() {
        assert_eq!(judge(&[(600, 900, Acknowledged)], Some(100)), Alive);
        assert_eq!(judge(&[(600, 900, Acknowledged)], None), Alive);
        assert_eq!(judge(&[(0, 300, Inconclusive), (600, 900, Acknowledged)], Some(100)), Alive);
    }

    #[test]
    fn a_connection_opened_after_the_old_ones_fell_silent_is_of_another_kernel() {
        let new = (600, 900, Acknowledged);
        assert_eq!(judge(&[(0, 500, ResetByProbe), new], Some(100)), Gone);
        assert_eq!(judge(&[(0, 500, ResetByProbe), new], None), Gone);
        assert_eq!(judge(&[(200, 500, ResetByProbe), new], Some(100)), Gone);
        let many = [(0, 500, Unanswered), (90, 500, ResetByProbe), (90, 500, ResetUnprompted), new];
        assert_eq!(judge(&many, Some(100)), Gone);
    }

    #[test]
    fn an_unprompted_reset_or_silence_beside_a_new_connection_leaves_the_question_open() {
        let new = (600, 900, Acknowledged);
        assert_eq!(judge(&[(0, 500, ResetUnprompted), new], Some(100)), Silent);
        assert_eq!(judge(&[(0, 500, Unanswered), new], Some(100)), Silent);
        assert_eq!(judge(&[(0, 500, NotProbed), new], Some(100)), Alive);
    }

    #[test]
    fn a_connection_that_was_lost_before_the_last_lock_says_nothing_about_who_took_it() {
        let (lost, new) = ((0, 50, ResetByProbe), (600, 900, Acknowledged));
        assert_eq!(judge(&[lost, new], Some(100)), Alive);
        assert_eq!(judge(&[lost], Some(100)), Silent);
        assert_eq!(judge(&[(0, 50, ResetUnprompted), new], Some(100)), Alive);
    }

    #[test]
    fn only_a_reset_that_answers_a_probe_is_proof() {
        assert_eq!(judge(&[(0, 500, ResetByProbe)], Some(100)), Gone);
        assert_eq!(judge(&[(0, 500, ResetByProbe)], None), Gone);
        assert_eq!(judge(&[(0, 500, ResetByProbe), (0, 500, NotProbed)], None), Gone);
        assert_eq!(judge(&[(0, 500, ResetUnprompted)], Some(100)), Silent);
        assert_eq!(judge(&[(0, 500, Unanswered)], Some(100)), Silent);
        assert_eq!(judge(&[(0, 500, Inconclusive)], Some(100)), Silent);
        assert_eq!(judge(&[], Some(100)), Silent);
    }

    #[test]
    fn a_host_that_could_not_be_probed_is_not_dead() {
        assert_eq!(judge(&[(0, 500, NotProbed)], Some(100)), Alive);
        assert_eq!(judge(&[(0, 500, NotProbed), (0, 500, Unanswered)], Some(100)), Alive);
    }
}

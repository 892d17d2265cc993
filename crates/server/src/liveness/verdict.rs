//! Does the kernel that took the locks still live? What the lines of a host say, put together.
//!
//! A host is one kernel at a time. A line *tells of* a kernel from the moment it was opened to the
//! last acknowledgement on it. Two lines whose times overlap tell of the same kernel, and so does a
//! third that overlaps one of them: so a client that reconnects while another of its connections
//! lives stays known, and one that mounts again after a crash does not pass for its predecessor.
//!
//! | the lines that were asked or that ended lately | answer |
//! |---|---|
//! | one acknowledges, and tells of the kernel (by overlaps) since before the last lock | Alive |
//! | one acknowledges; no other was lost since the last lock and before its time began: the client reconnected after an orderly end | Alive |
//! | one acknowledges; another, heard of after the last lock, was reset by our asking, and their times do not meet: what lives is another kernel | Gone |
//! | the same, but the other one was reset without our asking, or does not answer | Silent |
//! | none acknowledges; one that was heard of after the last lock is reset by our asking | Gone |
//! | none acknowledges; one could not be asked (its unsent data waits for a timer) and has not missed three answers | Alive |
//! | none acknowledges, or there are none | Silent |
//!
//! "Gone" is proof, so it needs a segment of ours that the peer's kernel answered with a reset. A
//! reset that comes by itself can also be sent by a living kernel: on behalf of a program that
//! closes a socket with unread data, or when it uses a port again after a long cut of the network.
//! Silence of an old line beside a new one that answers is what a rebooted client with a firewall
//! looks like: it drops segments of unknown connections instead of resetting them. Both leave the
//! question open: then a notice from the host's own address is believed, and nothing else is.
//!
//! What remains is that a living kernel is taken for dead if *all* its connections were cut off (by
//! a network down for minutes), and within a quarter of an hour somebody sends a false notice from
//! its own address.

use std::time::{Duration, Instant};

use keeper::request::ProbeAnswer;

/// No machine reboots in this time, but a busy one may look at its connections this late.
const MARGIN: Duration = Duration::from_secs(1);

/// What one line has to say.
#[derive(Debug, Clone, Copy)]
pub struct Testimony {
    /// From when to when it tells of a kernel.
    pub since: Instant,
    pub life: Instant,
    pub said: Said,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Said {
    Acknowledged,
    ResetWhenAsked,
    Reset,
    Unanswered,
    /// It could not be asked in the time there was.
    Unasked,
    /// It ended in order, or nobody knows whose it is.
    Nothing,
}

/// `taken`: when the kernel in question last took a lock; `None` if that was before all lines.
pub fn verdict(testimonies: &[Testimony], taken: Option<Instant>) -> ProbeAnswer {
    // A line that fell silent before the last lock may belong to an earlier kernel.
    let concerns = |t: &&Testimony| taken.is_none_or(|taken| t.life + MARGIN >= taken);
    let Some(since) = living_since(testimonies) else {
        let mut all = testimonies.iter();
        return if all.clone().filter(concerns).any(|t| t.said == Said::ResetWhenAsked) {
            ProbeAnswer::Gone
        } else if all.any(|t| t.said == Said::Unasked) {
            ProbeAnswer::Alive
        } else {
            ProbeAnswer::Silent
        };
    };
    if taken.is_some_and(|taken| since <= taken) {
        return ProbeAnswer::Alive;
    }
    let mut lost = testimonies.iter().filter(concerns).filter(|t| t.life + MARGIN < since);
    if lost.clone().any(|t| t.said == Said::ResetWhenAsked) {
        ProbeAnswer::Gone
    } else if lost.any(|t| matches!(t.said, Said::Reset | Said::Unanswered)) {
        ProbeAnswer::Silent
    } else {
        ProbeAnswer::Alive
    }
}

/// Since when the kernel that acknowledges is known to live.
fn living_since(testimonies: &[Testimony]) -> Option<Instant> {
    let living = testimonies.iter().filter(|t| t.said == Said::Acknowledged);
    let mut since = living.map(|t| t.since).min()?;
    let mut by_life: Vec<_> = testimonies.iter().collect();
    by_life.sort_unstable_by_key(|t| std::cmp::Reverse(t.life));
    for t in by_life {
        if t.life + MARGIN < since {
            break;
        }
        since = since.min(t.since);
    }
    Some(since)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ProbeAnswer::{Alive, Gone, Silent};
    use Said::*;

    /// Lines as (opened, last sign of life, what it says), in seconds; `taken` too.
    fn judge(lines: &[(u64, u64, Said)], taken: Option<u64>) -> ProbeAnswer {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let testimony = |(since, life, said)| Testimony { since: at(since), life: at(life), said };
        let mut lines: Vec<_> = lines.iter().copied().map(testimony).collect();
        let answer = verdict(&lines, taken.map(at));
        lines.reverse();
        assert_eq!(verdict(&lines, taken.map(at)), answer, "the order matters");
        answer
    }

    #[test]
    fn a_line_from_before_the_last_lock_that_acknowledges_outweighs_everything() {
        let old = (0, 900, Acknowledged);
        assert_eq!(judge(&[old], Some(100)), Alive);
        for lost in [ResetWhenAsked, Reset, Unanswered, Unasked, Nothing] {
            assert_eq!(judge(&[old, (0, 500, lost)], Some(100)), Alive);
            assert_eq!(judge(&[old, (200, 500, lost)], Some(100)), Alive);
        }
    }

    #[test]
    fn a_later_line_counts_if_a_line_of_the_old_kernel_lived_when_it_opened() {
        let old = (0, 500, ResetWhenAsked);
        assert_eq!(judge(&[old, (400, 900, Acknowledged)], Some(100)), Alive);
        let between = (450, 700, Nothing);
        assert_eq!(judge(&[old, between, (650, 900, Acknowledged)], Some(100)), Alive);
        // Accepted a moment after it was opened.
        assert_eq!(judge(&[(0, 500, Reset), (501, 900, Acknowledged)], Some(100)), Alive);
    }

    #[test]
    fn a_client_that_reconnected_after_an_orderly_end_is_alive() {
        assert_eq!(judge(&[(600, 900, Acknowledged)], Some(100)), Alive);
        assert_eq!(judge(&[(600, 900, Acknowledged)], None), Alive);
        assert_eq!(judge(&[(0, 300, Nothing), (600, 900, Acknowledged)], Some(100)), Alive);
    }

    #[test]
    fn a_line_opened_after_the_old_ones_fell_silent_is_of_another_kernel() {
        let new = (600, 900, Acknowledged);
        assert_eq!(judge(&[(0, 500, ResetWhenAsked), new], Some(100)), Gone);
        assert_eq!(judge(&[(0, 500, ResetWhenAsked), new], None), Gone);
        assert_eq!(judge(&[(200, 500, ResetWhenAsked), new], Some(100)), Gone);
        let many = [(0, 500, Unanswered), (90, 500, ResetWhenAsked), (90, 500, Reset), new];
        assert_eq!(judge(&many, Some(100)), Gone);
    }

    #[test]
    fn a_reset_by_itself_or_silence_beside_a_new_line_leaves_the_question_open() {
        let new = (600, 900, Acknowledged);
        assert_eq!(judge(&[(0, 500, Reset), new], Some(100)), Silent);
        assert_eq!(judge(&[(0, 500, Unanswered), new], Some(100)), Silent);
        assert_eq!(judge(&[(0, 500, Unasked), new], Some(100)), Alive);
    }

    #[test]
    fn a_line_that_was_lost_before_the_last_lock_says_nothing_about_who_took_it() {
        let (lost, new) = ((0, 50, ResetWhenAsked), (600, 900, Acknowledged));
        assert_eq!(judge(&[lost, new], Some(100)), Alive);
        assert_eq!(judge(&[lost], Some(100)), Silent);
        assert_eq!(judge(&[(0, 50, Reset), new], Some(100)), Alive);
    }

    #[test]
    fn only_a_reset_that_answers_us_is_proof() {
        assert_eq!(judge(&[(0, 500, ResetWhenAsked)], Some(100)), Gone);
        assert_eq!(judge(&[(0, 500, ResetWhenAsked)], None), Gone);
        assert_eq!(judge(&[(0, 500, ResetWhenAsked), (0, 500, Unasked)], None), Gone);
        assert_eq!(judge(&[(0, 500, Reset)], Some(100)), Silent);
        assert_eq!(judge(&[(0, 500, Unanswered)], Some(100)), Silent);
        assert_eq!(judge(&[(0, 500, Nothing)], Some(100)), Silent);
        assert_eq!(judge(&[], Some(100)), Silent);
    }

    #[test]
    fn who_could_not_be_asked_is_not_dead() {
        assert_eq!(judge(&[(0, 500, Unasked)], Some(100)), Alive);
        assert_eq!(judge(&[(0, 500, Unasked), (0, 500, Unanswered)], Some(100)), Alive);
    }
}

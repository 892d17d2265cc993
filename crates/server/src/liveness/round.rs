//! One round of questions: the lines of a host are asked all at once, and looked at until they have
//! answered or the time is over. No I/O and no clock.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::line::{How, Line, Urgent};
use super::pulse::{Pulse, State};
use super::registry::Candidate;
use super::verdict::{Said, Testimony};

/// The kernel's clock of acknowledgements goes in steps of up to 10 ms.
const STEP: Duration = Duration::from_millis(20);
/// So many questions without an answer are silence.
const UNANSWERED_MAX: u32 = 3;

pub struct Round {
    /// Signs of life after this count.
    asked: Instant,
    lines: Vec<Asked>,
}

/// Told of lines that are seen to have ended, and whether by a reset; must call
/// [`Line::set_ended`].
pub type OnEnded<'a> = &'a mut dyn FnMut(&Arc<Line>, bool);

struct Asked {
    urgent: Urgent,
    is_named: bool,
    /// The last sign of life before we asked.
    before: Instant,
    said: Option<Said>,
}

impl Round {
    /// Begins to ask. Not with the registry locked: if a line has just lost its owner, this ends it.
    pub fn new(candidates: Vec<Candidate>, asked: Instant, for_proof: bool) -> Self {
        let ask = |Candidate { line, is_named }| {
            let before = line.pulse().map_or(asked, |pulse| pulse.life);
            Asked { urgent: Urgent::new(line, for_proof), is_named, before, said: None }
        };
        let lines = candidates.into_iter().map(ask).collect();
        Self { asked, lines }
    }

    /// Hears what has been said by now.
    pub fn look(&mut self, ended: OnEnded<'_>) {
        for line in self.lines.iter_mut().filter(|line| line.said.is_none()) {
            line.said = line.hear(self.asked, ended);
        }
    }

    /// Every line has answered.
    pub fn is_over(&self) -> bool {
        self.lines.iter().all(|line| line.said.is_some())
    }

    pub fn hears_life(&self) -> bool {
        self.lines.iter().any(|line| line.said == Some(Said::Acknowledged))
    }

    /// What each line says, as far as it is known.
    pub fn testimonies(&self) -> impl Iterator<Item = Testimony> + '_ {
        self.lines.iter().map(|line| line.testimony())
    }

    /// A kernel that lived already then has answered: nothing else matters.
    pub fn hears_life_since(&self, then: Instant) -> bool {
        let mut lines = self.lines.iter().filter(|line| line.said == Some(Said::Acknowledged));
        lines.any(|line| line.urgent.line().since() <= then)
    }
}

impl Asked {
    fn hear(&self, asked: Instant, ended: OnEnded<'_>) -> Option<Said> {
        let line = self.urgent.line();
        if let Some(end) = line.end() {
            return Some(end.how.into());
        }
        let socket = line.socket()?;
        let Some(pulse) = socket.pulse() else { return Some(Said::Nothing) };
        match pulse.state {
            State::Established => {
                let heard = pulse.life > asked + STEP || pulse.life > self.before + STEP;
                heard.then_some(Said::Acknowledged)
            }
            State::Closing => Some(Said::Nothing),
            State::Closed => {
                // Its own task may be busy elsewhere. If it has taken the error, it will tell.
                ended(line, socket.take_end()?);
                line.end().map(|end| end.how.into())
            }
        }
    }

    fn testimony(&self) -> Testimony {
        let line = self.urgent.line();
        let pulse = line.pulse();
        let life = line.end().map(|end| end.life).or(pulse.map(|pulse| pulse.life));
        let said = self.said.unwrap_or(match pulse {
            Some(Pulse { state: State::Established, unanswered, .. }) => match unanswered {
                0..UNANSWERED_MAX => Said::Unasked,
                _ => Said::Unanswered,
            },
            _ => Said::Nothing,
        });
        let counts = self.is_named && line.testifies_death();
        let said = if counts || said == Said::Acknowledged { said } else { Said::Nothing };
        Testimony { since: line.since(), life: life.unwrap_or(line.opened), said }
    }
}

/// What a line that was reset some time ago has to say.
pub fn testimony_of_reset(line: &Arc<Line>) -> Option<Testimony> {
    let end = line.end()?;
    Some(Testimony { since: line.since(), life: end.life, said: end.how.into() })
}

impl From<How> for Said {
    fn from(how: How) -> Self {
        match how {
            How::ResetWhenAsked => Said::ResetWhenAsked,
            How::Reset => Said::Reset,
            How::Otherwise => Said::Nothing,
        }
    }
}

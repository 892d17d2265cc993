//! `--watch`: the same view again every second, until Ctrl-C. A terminal is drawn over in place;
//! elsewhere one view follows the other.

use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{MissedTickBehavior, interval};

use crate::daemon::Failed;
use crate::terminal;

const EVERY: Duration = Duration::from_secs(1);

/// What a command shows: the data, and a remark about it that is not data.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct View {
    pub text: String,
    pub remark: Option<String>,
}

impl From<String> for View {
    fn from(text: String) -> Self {
        Self { text, remark: None }
    }
}

impl View {
    fn print(&self) -> Result<(), Failed> {
        terminal::print(&self.text)?;
        if let Some(remark) = &self.remark {
            terminal::talk(remark);
        }
        Ok(())
    }
}

/// Shows the view once, or again and again. The first one that cannot be had ends the command; on
/// a terminal, later ones are waited for: the daemon may be starting again.
pub async fn show(
    again: bool,
    mut view: impl AsyncFnMut() -> Result<View, Failed>,
) -> Result<(), Failed> {
    let first = view().await?;
    if !again {
        return first.print();
    }
    let mut end = End::listen()?;
    if !terminal::on_terminal() {
        first.print()?;
        return end
            .or_every_second(async || {
                let next = view().await?;
                terminal::print("\n")?;
                next.print()
            })
            .await;
    }
    let screen = Screen::open()?;
    screen.draw(&first)?;
    let mut shown = first;
    end.or_every_second(async || {
        match view().await {
            Ok(next) => shown = next,
            Err(failed) if failed.may_pass() => {
                shown.remark = Some(format!("{failed}; trying again"));
            }
            Err(failed) => return Err(failed),
        }
        screen.draw(&shown)
    })
    .await
}

/// For documents of which each has its own line.
pub async fn repeat(
    again: bool,
    mut print: impl AsyncFnMut() -> Result<(), Failed>,
) -> Result<(), Failed> {
    print().await?;
    if again { End::listen()?.or_every_second(print).await } else { Ok(()) }
}

/// Ctrl-C and its like, heard from the moment of listening on.
pub struct End {
    interrupt: Signal,
    terminate: Signal,
}

impl End {
    pub fn listen() -> Result<Self, Failed> {
        let listen = |kind| {
            signal(kind).map_err(|error| Failed::Other(format!("cannot hear signals: {error}")))
        };
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
        })
    }

    pub async fn heard(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }

    async fn or_every_second(
        &mut self,
        mut work: impl AsyncFnMut() -> Result<(), Failed>,
    ) -> Result<(), Failed> {
        let mut clock = interval(EVERY);
        clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
        clock.tick().await;
        let forever = async {
            loop {
                clock.tick().await;
                if let Err(failed) = work().await {
                    return failed;
                }
            }
        };
        tokio::select! {
            failed = forever => Err(failed),
            () = self.heard() => Ok(()),
        }
    }
}

/// The terminal's other screen; what was there before comes back when this is dropped.
struct Screen;

impl Screen {
    fn open() -> Result<Self, Failed> {
        terminal::print("\x1b[?1049h\x1b[?25l\x1b[H\x1b[J")?;
        Ok(Self)
    }

    /// Over what is there, line by line and in one write, so that nothing flickers.
    fn draw(&self, view: &View) -> Result<(), Failed> {
        let rows = terminal::size().map_or(24, |(_, rows)| rows);
        terminal::print(&frame(view, rows))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = terminal::print("\x1b[?25h\x1b[?1049l");
    }
}

/// As many lines as fit, the last for the remark.
fn frame(view: &View, rows: usize) -> String {
    let remark = view.remark.as_deref();
    let room = rows.saturating_sub(1 + usize::from(remark.is_some())).max(1);
    let mut text = String::from("\x1b[H");
    for line in view.text.lines().take(room).chain(remark) {
        text += line;
        text += "\x1b[K\r\n";
    }
    text + "\x1b[J"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_never_scrolls_and_clears_only_what_is_left_over() {
        let view = View { text: "1\n2\n3\n4\n".into(), remark: Some("more".into()) };
        assert_eq!(frame(&view, 4), "\x1b[H1\x1b[K\r\n2\x1b[K\r\nmore\x1b[K\r\n\x1b[J");
        assert!(!frame(&view, 4).contains("2J"));
    }
}

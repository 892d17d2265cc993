//! The progress bar; hidden unless stderr is a terminal.

use std::io::IsTerminal as _;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use load::{Operation, Plan, Shape};

/// Rare enough not to affect the measurement.
const REDRAW: Duration = Duration::from_millis(250);

pub(super) struct Progress {
    bar: ProgressBar,
    step: Duration,
}

impl Progress {
    pub(super) fn new(plan: &Plan) -> Self {
        let step = plan.step_time();
        let all = step.as_millis() as u64 * plan.steps().count() as u64;
        let bar = match std::io::stderr().is_terminal() {
            true => ProgressBar::with_draw_target(Some(all), ProgressDrawTarget::stderr()),
            false => ProgressBar::hidden(),
        };
        let style = "{msg:<22} [{bar:30}] {percent:>3} %, {eta} left";
        if let Ok(style) = ProgressStyle::with_template(style) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_message("preparing files");
        bar.tick();
        Self { bar, step }
    }

    /// Shows the progress of one step.
    pub(super) async fn during<T>(
        &self,
        operation: Operation,
        shape: Shape,
        measuring: impl Future<Output = T>,
    ) -> T {
        self.bar.set_message(format!("{operation} {shape}"));
        let from = self.bar.position();
        let begun = tokio::time::Instant::now();
        tokio::pin!(measuring);
        let done = loop {
            tokio::select! {
                done = &mut measuring => break done,
                () = tokio::time::sleep(REDRAW), if !self.bar.is_hidden() => {
                    let so_far = begun.elapsed().min(self.step).as_millis() as u64;
                    self.bar.set_position(from + so_far);
                }
            }
        };
        self.bar.set_position(from + self.step.as_millis() as u64);
        done
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

//! Every bug that the keeper can be told to have, and the first story that shows it. What no story
//! shows is the simulator's to find.
//!
//! `RUSTFLAGS="--cfg planted" cargo test -p lockkeeper-keeper --test planted -- --nocapture`, with a
//! target directory of its own.
#![cfg(planted)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails so")]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "tests may do I/O")]

#[allow(dead_code, reason = "only `stories` writes and compares")]
mod story;

use lockkeeper_keeper::planted::{Bug, plant};

#[test]
fn stories_show_planted_bugs() {
    // A planted bug may make the keeper panic; that is a way of being caught, not news.
    std::panic::set_hook(Box::new(|_| {}));
    let stories = story::all();
    let shown = || {
        let differs = |story: &&story::Story| story.tell().as_ref() != Ok(&story.text);
        stories.iter().find(differs).map(|story| story.name.clone())
    };
    let without = shown();
    let mut table = String::new();
    for bug in Bug::ALL {
        plant(Some(*bug));
        let story = shown().unwrap_or("none".into());
        table += &format!("planted {} story {story}\n", bug.name());
    }
    plant(None);
    print!("{table}");
    let _ = std::panic::take_hook();
    assert_eq!(without, None, "without a bug every story comes out as it is told");
}

//! Stories: text files that show what peers do, how the keeper reacts, and why. Each block is
//! commands, `----`, the outcome. They double as documentation.
//!
//! `REWRITE=1` rewrites the outcomes, to be reviewed as a diff; `STORY=part-of-a-name` runs only
//! those. `story/language.rs` defines the commands.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "tests may do I/O")]

mod story;

#[test]
fn every_story_comes_out_as_it_is_told() {
    let wanted = std::env::var("STORY").unwrap_or_default();
    let rewrite = std::env::var_os("REWRITE").is_some();
    let mut stories = story::all();
    stories.retain(|story| story.name.contains(&wanted));
    assert!(!stories.is_empty(), "no story is called like {wanted:?}");

    let mut failures = String::new();
    for story in stories {
        match story.tell() {
            Ok(told) if told == story.text => {}
            Ok(told) if rewrite => std::fs::write(&story.path, told).unwrap(),
            Ok(told) => {
                let difference = story::difference(&story.text, &told);
                failures += &format!("\n{}\n{difference}", story.name);
            }
            Err(trouble) => failures += &format!("\n{}: {trouble}\n", story.name),
        }
    }
    assert!(failures.is_empty(), "{failures}\n(REWRITE=1 writes the outcomes anew)");
}

//! READ, WRITE, COMMIT and space.

use bytes::Bytes;
use lockkeeper_vfs::{BlockingMode, Error, Stability};

use crate::fixture::*;

on_every_file_system! {
    what_was_written_is_read
    a_read_ends_at_the_end_of_the_file
    a_write_far_away_leaves_a_hole
    an_offset_beyond_all_limits_is_too_large
    data_operations_want_a_regular_file
    durable_writes_are_durable_and_commit_is_quiet
    space_is_reported
    cached_data_is_read_without_blocking
}

fn what_was_written_is_read(fixture: &Fixture) {
    let alice = alice();
    let by = fixture.by(&alice);
    let file = by.create(&fixture.root(), "f", 0o644).unwrap();
    assert_eq!(by.write(&file, 0, b"hello world"), Ok(11));
    assert_eq!(by.write(&file, 6, b"W"), Ok(1));
    assert_eq!(by.read(&file, 0, 100).unwrap(), (b"hello World".to_vec(), true));
    assert_eq!(by.read(&file, 4, 3).unwrap(), (b"o W".to_vec(), false));
    let big: Vec<u8> = (0..300_000_u32).map(|n| (n % 251) as u8).collect();
    assert_eq!(by.write(&file, 5000, &big), Ok(300_000));
    assert_eq!(by.read(&file, 5000, 300_000).unwrap(), (big, true));
}

fn a_read_ends_at_the_end_of_the_file(fixture: &Fixture) {
    let alice = alice();
    let by = fixture.by(&alice);
    let file = by.create(&fixture.root(), "f", 0o644).unwrap();
    assert_eq!(by.read(&file, 0, 10).unwrap(), (vec![], true));
    by.write(&file, 0, b"0123456789").unwrap();
    assert_eq!(by.read(&file, 0, 9).unwrap(), (b"012345678".to_vec(), false));
    assert_eq!(by.read(&file, 0, 10).unwrap(), (b"0123456789".to_vec(), true));
    assert_eq!(by.read(&file, 10, 10).unwrap(), (vec![], true));
    assert_eq!(by.read(&file, u64::MAX, 10).unwrap(), (vec![], true));
    assert_eq!(by.read(&file, 3, 0).unwrap(), (vec![], false));
}

fn a_write_far_away_leaves_a_hole(fixture: &Fixture) {
    let alice = alice();
    let by = fixture.by(&alice);
    let file = by.create(&fixture.root(), "f", 0o644).unwrap();
    let far = (5 << 30) + 17;
    assert_eq!(by.write(&file, far, b"far"), Ok(3));
    let found = by.attributes(&file).unwrap();
    assert_eq!(found.size, far + 3);
    assert!(found.used < 1 << 20, "{}", found.used);
    assert_eq!(by.read(&file, far - 2, 99).unwrap(), (b"\0\0far".to_vec(), true));
    assert_eq!(by.read(&file, 1 << 32, 2).unwrap(), (vec![0, 0], false));
}

fn an_offset_beyond_all_limits_is_too_large(fixture: &Fixture) {
    let alice = alice();
    let by = fixture.by(&alice);
    let file = by.create(&fixture.root(), "f", 0o644).unwrap();
    assert_eq!(by.write(&file, u64::MAX, b"x"), Err(Error::TooLarge));
    assert_eq!(by.write(&file, i64::MAX as u64, b"x"), Err(Error::TooLarge));
}

fn data_operations_want_a_regular_file(fixture: &Fixture) {
    let alice = alice();
    let by = fixture.by(&alice);
    let dir = by.mkdir(&fixture.root(), "d", 0o755).unwrap();
    let link = by.symlink(&fixture.root(), "l", "d").unwrap();
    for (object, error) in [(dir, Error::IsADirectory), (link, Error::Invalid)] {
        assert_eq!(by.read(&object, 0, 1), Err(error));
        assert_eq!(by.write(&object, 0, b"x"), Err(error));
        assert_eq!(by.fs.commit(&by.context(), &object, 0, 0).unwrap_err(), error);
    }
}

fn durable_writes_are_durable_and_commit_is_quiet(fixture: &Fixture) {
    let alice = alice();
    let by = fixture.by(&alice);
    let verifier = by.fs.write_verifier();
    let file = by.create(&fixture.root(), "f", 0o644).unwrap();
    let data = Bytes::from_static(b"data");
    for stability in [Stability::Unstable, Stability::Data, Stability::File] {
        let written = by.fs.write(&by.context(), &file, 0, &data, stability).unwrap();
        assert!(written.stability >= stability);
        assert_eq!(written.count, 4);
    }
    let committed = by.fs.commit(&by.context(), &file, 0, 0).unwrap();
    assert_eq!(committed.after, by.attributes(&file).ok());
    assert_eq!(by.fs.write_verifier(), verifier);
}

fn space_is_reported(fixture: &Fixture) {
    let alice = alice();
    let by = fixture.by(&alice);
    let space = by.fs.space(&by.context(), &fixture.root()).unwrap();
    assert!(space.bytes_total > 0 && space.bytes_total >= space.bytes_free);
    assert!(space.bytes_free >= space.bytes_available);
}

fn cached_data_is_read_without_blocking(fixture: &Fixture) {
    let alice = alice();
    let by = fixture.by(&alice);
    let dir = by.mkdir(&fixture.root(), "d", 0o755).unwrap();
    let file = by.create(&dir, "f", 0o644).unwrap();
    by.write(&file, 0, b"data").unwrap();
    // Access checks are cached only when the change time has settled.
    std::thread::sleep(std::time::Duration::from_millis(100));
    let again = |context: &lockkeeper_vfs::Context<'_>| {
        by.fs.attributes(context, &file)?;
        by.fs.lookup(context, &dir, b"f")?;
        by.fs.access(context, &file)?;
        by.fs.space(context, &dir)?;
        by.fs.read(context, &file, 0, 4)
    };
    again(&by.context()).unwrap();
    match again(&by.nonblocking()) {
        Ok(read) => assert_eq!(read.data, b"data"[..]),
        // Some file systems do not support RWF_NOWAIT, such as tmpfs of some kernels.
        Err(error) => {
            assert_eq!(error, Error::WouldBlock);
            eprintln!("NOT TESTED: this file system does not answer at once");
        }
    }
    assert_eq!(by.nonblocking().blocking, BlockingMode::Nonblocking);
}

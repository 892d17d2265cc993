//! Times with a unit: `250ms`, `90s`, `1h 30m`.

use std::fmt;
use std::time::Duration;

use serde::{Deserializer, de};
use store::postgres::{LEASE_MAX, LEASE_MIN};

/// Never without a unit: whether 90 means seconds or minutes would be a guess.
fn parse_duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|error| match text.trim().parse::<u64>() {
        Ok(number) => without_unit(number),
        Err(_) => format!("`{text}` is not a time such as 250ms, 90s or 15m: {error}"),
    })
}

/// A time that may not be none at all.
pub(crate) fn parse_some_time(text: &str) -> Result<Duration, String> {
    some_time(parse_duration(text)?)
}

fn some_time(time: Duration) -> Result<Duration, String> {
    let none = "a time of 0 leaves none to act in; leave it out for the default";
    if time.is_zero() { Err(none.into()) } else { Ok(time) }
}

pub(super) fn positive<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    duration(from)?.map(some_time).transpose().map_err(de::Error::custom)
}

pub(super) fn duration<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    from.deserialize_any(Time).map(Some)
}

pub(super) fn lease<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    let lease = duration(from)?;
    match lease.filter(|lease| !(LEASE_MIN..=LEASE_MAX).contains(lease)) {
        None => Ok(lease),
        Some(wrong) => Err(de::Error::custom(format!(
            "a lease of {wrong:?} is not between {LEASE_MIN:?} and {LEASE_MAX:?}"
        ))),
    }
}

fn without_unit(number: u64) -> String {
    format!("`{number}` is a time without a unit; did you mean \"{number}s\"?")
}

/// A string, or a number that deserves a better error than one about types.
struct Time;

impl de::Visitor<'_> for Time {
    type Value = Duration;

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("a time such as \"90s\"")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Duration, E> {
        parse_duration(text).map_err(E::custom)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Duration, E> {
        match u64::try_from(number) {
            Ok(number) => Err(E::custom(without_unit(number))),
            Err(_) => Err(E::custom(format!("`{number}` is less than no time"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_carry_units() {
        assert_eq!(parse_duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(parse_duration("2h"), Ok(Duration::from_secs(7200)));
        assert_eq!(parse_duration("1m 30s"), Ok(Duration::from_secs(90)));
        for wrong in ["", "s", "-5s", "5 parsecs", "99999999999999999999s"] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
        let error = parse_duration("5").unwrap_err();
        assert!(error.ends_with("did you mean \"5s\"?"), "{error}");
        assert_eq!(parse_some_time("1ms"), Ok(Duration::from_millis(1)));
        assert!(parse_some_time("0s").unwrap_err().contains("a time of 0"));
    }
}

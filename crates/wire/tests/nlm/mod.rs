//! Independent encoders and dissectors of NLM and NSM.
#![allow(dead_code, reason = "each test binary uses its own part")]

pub(crate) mod dissected;
pub(crate) mod fields;
pub(crate) mod speaker;
pub(crate) mod walk;

//! Keys that outlive the process, such as that of a [`HandleKey`](crate::HandleKey).

pub use vfs::secrets::{Secrets, SecretsInDirectory};

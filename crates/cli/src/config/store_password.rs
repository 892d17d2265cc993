//! The password of the store in the configuration: where it may be, and who can read it.

use anyhow::{Result, bail};

use super::postgres_url::is_readable_by_all;
use super::store_url::StoreUrl;
use super::{File, Store};

impl File {
    /// B5.97
    pub(super) fn exposed_passwords(&self) -> Vec<String> {
        let has_password = self.store.url.as_ref().is_some_and(StoreUrl::has_password);
        let file = self.readable_by_all.as_ref().filter(|_| has_password).map(|path| {
            let path = path.display();
            format!(
                "{path} contains the password of the store, and any user can read it: chmod 640 \
                 {path}, or move the password to a file of its own (password_file)"
            )
        });
        let password_file = self.store.password_file.as_ref();
        let password_file = password_file.filter(|path| is_readable_by_all(path)).map(|path| {
            let path = path.display();
            format!("store.password_file: any user can read {path}: chmod 600 {path}")
        });
        file.into_iter().chain(password_file).collect()
    }
}

impl Store {
    pub(super) fn check(&self) -> Result<()> {
        let Some(path) = &self.password_file else { return Ok(()) };
        if path.is_relative() {
            bail!("store.password_file: path must be absolute");
        }
        if self.url.as_ref().is_some_and(StoreUrl::has_password) {
            bail!("store.password_file: the url has a password as well; remove it there");
        }
        Ok(())
    }
}

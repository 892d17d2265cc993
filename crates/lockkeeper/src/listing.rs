//! Lists of the API, which come in pages: read until the end, or until a limit.

use admin::api::Page;
use clap::Args;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::daemon::{Daemon, Failed, query};
use crate::terminal;

/// The most that the API gives at once.
const PAGE: u64 = 1000;
/// More than people read.
const FOR_PEOPLE: u64 = 1000;

/// How a list is to be shown.
#[derive(Debug, Clone, Args)]
pub struct Shape {
    /// Print the API's JSON, one document
    #[arg(long)]
    pub json: bool,
    /// Show it again every second, until Ctrl-C
    #[arg(long)]
    pub watch: bool,
    /// Show all there are
    #[arg(long, conflicts_with = "limit")]
    pub all: bool,
    /// Show at most so many [default: 1000; with --json all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: Option<u64>,
}

impl Shape {
    fn limit(&self) -> u64 {
        let usual = if self.all || self.json { u64::MAX } else { FOR_PEOPLE };
        self.limit.unwrap_or(usual)
    }
}

/// One list, with what is asked of it.
pub struct Listing<'a> {
    pub daemon: &'a Daemon,
    pub path: &'a str,
    pub filter: Vec<(&'static str, Option<String>)>,
    pub shape: &'a Shape,
}

impl Listing<'_> {
    /// Everything up to the limit, as one page.
    pub async fn read<T: DeserializeOwned>(&self) -> Result<Page<T>, Failed> {
        let mut pages = self.pages();
        let mut whole = Page { items: Vec::new(), next: None, total: 0 };
        while let Some(page) = pages.next::<T>().await? {
            whole.items.extend(page.items);
            (whole.next, whole.total) = (page.next, page.total);
        }
        Ok(whole)
    }

    /// The same as JSON, written while it is read: a million locks need no room.
    pub async fn print_json<T: DeserializeOwned + Serialize>(&self) -> Result<(), Failed> {
        let mut pages = self.pages();
        let (mut next, mut total) = (None, 0);
        let mut before = "{\"items\":[";
        while let Some(page) = pages.next::<T>().await? {
            let mut text = String::new();
            for item in &page.items {
                text += before;
                text += &terminal::json(item)?;
                before = ",";
            }
            terminal::print(&text)?;
            (next, total) = (page.next, page.total);
        }
        let opening = if before == "," { "" } else { before };
        let next = terminal::json(&next)?;
        terminal::print(&format!("{opening}],\"next\":{next},\"total\":{total}}}\n"))
    }

    /// What to say if there is more than was shown.
    pub fn remark<T>(&self, page: &Page<T>) -> Option<String> {
        page.next.as_ref()?;
        let unfiltered = self.filter.iter().all(|(_, value)| value.is_none());
        let of = if unfiltered { format!(" of {}", page.total) } else { String::new() };
        let shown = page.items.len();
        Some(format!("the first {shown}{of}; to see more: --limit N, or --all"))
    }

    fn pages(&self) -> Pages<'_> {
        Pages { listing: self, left: self.shape.limit(), after: None, ended: false }
    }
}

struct Pages<'a> {
    listing: &'a Listing<'a>,
    left: u64,
    after: Option<String>,
    ended: bool,
}

impl Pages<'_> {
    async fn next<T: DeserializeOwned>(&mut self) -> Result<Option<Page<T>>, Failed> {
        if self.ended || self.left == 0 {
            return Ok(None);
        }
        let mut parameters = self.listing.filter.clone();
        parameters.push(("limit", Some(self.left.min(PAGE).to_string())));
        parameters.push(("after", self.after.clone()));
        let page: Page<T> = self.listing.daemon.get(&query(self.listing.path, &parameters)).await?;
        self.left = self.left.saturating_sub(page.items.len() as u64);
        // A page that leads to itself would be read for ever.
        self.ended = page.next.is_none() || page.next == self.after;
        self.after.clone_from(&page.next);
        Ok(Some(page))
    }
}

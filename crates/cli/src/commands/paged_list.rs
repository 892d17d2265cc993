//! Paged lists of the API, read to the end or up to a limit.

use admin::api::Page;
use clap::Args;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::terminal;
use crate::daemon::{CommandError, Daemon, query};

/// Maximum page size of the API.
const PAGE: u64 = 1000;
/// Default limit for tables.
const FOR_PEOPLE: u64 = 1000;

/// Options of commands that print a list.
#[derive(Debug, Clone, Args)]
pub(super) struct ListOptions {
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
    /// Refresh every second until Ctrl-C
    #[arg(long)]
    pub watch: bool,
    /// Show all entries
    #[arg(long, conflicts_with = "limit")]
    pub all: bool,
    /// Maximum number of entries [default: 1000; with --json, all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: Option<u64>,
}

impl ListOptions {
    pub(super) fn limit(&self) -> u64 {
        let usual = if self.all || self.json { u64::MAX } else { FOR_PEOPLE };
        self.limit.unwrap_or(usual)
    }
}

/// A list of the API with its filter.
pub(super) struct PagedList<'a> {
    pub daemon: &'a Daemon,
    pub path: &'a str,
    pub filter: Vec<(&'static str, Option<String>)>,
    pub options: &'a ListOptions,
}

impl PagedList<'_> {
    /// All entries up to the limit, as one page.
    pub(super) async fn read<T: DeserializeOwned>(&self) -> Result<Page<T>, CommandError> {
        let mut pages = self.pages();
        let mut whole = Page { items: Vec::new(), next: None, total: 0, unanswered: Vec::new() };
        while let Some(page) = pages.next::<T>().await? {
            whole.items.extend(page.items);
            (whole.next, whole.total) = (page.next, page.total);
            add_new(&mut whole.unanswered, page.unanswered);
        }
        Ok(whole)
    }

    /// The same as JSON, written page by page so that memory stays bounded.
    pub(super) async fn print_json<T: DeserializeOwned + Serialize>(
        &self,
    ) -> Result<(), CommandError> {
        let mut pages = self.pages();
        let (mut next, mut total, mut unanswered) = (None, 0, Vec::new());
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
            add_new(&mut unanswered, page.unanswered);
        }
        let opening = if before == "," { "" } else { before };
        let next = terminal::json(&next)?;
        let unanswered = match unanswered.is_empty() {
            true => String::new(),
            false => format!(",\"unanswered\":{}", terminal::json(&unanswered)?),
        };
        terminal::print(&format!("{opening}],\"next\":{next},\"total\":{total}{unanswered}}}\n"))
    }

    /// A note if there are, or may be, more entries than were shown.
    pub(super) fn remark<T>(&self, page: &Page<T>) -> Option<String> {
        let notes: Vec<String> =
            self.more(page).into_iter().chain(incomplete(&page.unanswered)).collect();
        (!notes.is_empty()).then(|| notes.join("; "))
    }

    fn more<T>(&self, page: &Page<T>) -> Option<String> {
        page.next.as_ref()?;
        let unfiltered = self.filter.iter().all(|(_, value)| value.is_none());
        let of = if unfiltered { format!(" of {}", page.total) } else { String::new() };
        let shown = page.items.len();
        Some(format!("showing the first {shown}{of}; use --limit N or --all to see more"))
    }

    fn pages(&self) -> Pages<'_> {
        Pages { listing: self, left: self.options.limit(), after: None, ended: false }
    }
}

/// Adds what is not there yet.
fn add_new(all: &mut Vec<String>, more: Vec<String>) {
    for one in more {
        if !all.contains(&one) {
            all.push(one);
        }
    }
}

/// A note that entries may be missing.
fn incomplete(unanswered: &[String]) -> Option<String> {
    let exports = unanswered.iter().map(|export| terminal::clean(export)).collect::<Vec<_>>();
    (!exports.is_empty()).then(|| {
        format!(
            "locks may be missing: the file system of {} does not answer",
            exports.join(" and of ")
        )
    })
}

struct Pages<'a> {
    listing: &'a PagedList<'a>,
    left: u64,
    after: Option<String>,
    ended: bool,
}

impl Pages<'_> {
    async fn next<T: DeserializeOwned>(&mut self) -> Result<Option<Page<T>>, CommandError> {
        if self.ended || self.left == 0 {
            return Ok(None);
        }
        let mut parameters = self.listing.filter.clone();
        parameters.push(("limit", Some(self.left.min(PAGE).to_string())));
        parameters.push(("after", self.after.clone()));
        let page: Page<T> = self.listing.daemon.get(&query(self.listing.path, &parameters)).await?;
        self.left = self.left.saturating_sub(page.items.len() as u64);
        // A page whose cursor points to itself would loop.
        self.ended = page.next.is_none() || page.next == self.after;
        self.after.clone_from(&page.next);
        Ok(Some(page))
    }
}

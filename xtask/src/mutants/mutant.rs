//! A semantic mutant: a file that says which text of which functions to replace, what mistake that
//! makes, and which story, rule of the simulator or unit test must catch it.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use serde::Deserialize;
use syn::spanned::Spanned as _;
use syn::visit::{self, Visit};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Mutant {
    /// The file's name without its extension.
    #[serde(skip)]
    pub name: String,
    /// The mistake.
    pub what: String,
    /// The story that must fail, without `.txt`.
    story: Option<String>,
    /// The rule that the simulator must find broken first.
    judge: Option<String>,
    /// A package, and a part of the names of its unit tests.
    test: Option<String>,
    edit: Vec<Edit>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Edit {
    file: String,
    /// `name`, or `Type::name` where a file has several of that name.
    function: String,
    /// Must occur exactly once in that function.
    from: String,
    to: String,
}

pub(super) enum Judge {
    Story(String),
    Rule(String),
    Test { package: String, part: String },
    Unnamed,
}

impl Mutant {
    /// Every mutant of a directory, by name.
    pub(super) fn all(dir: &str) -> Result<Vec<Self>> {
        let entries = fs::read_dir(dir).with_context(|| format!("cannot read {dir}"))?;
        let mut paths = Vec::new();
        for entry in entries {
            paths.push(entry?.path());
        }
        paths.sort();
        paths.iter().map(|path| Self::read(path)).collect()
    }

    fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path)?;
        let mut mutant: Self = toml::from_str(&text).with_context(|| path.display().to_string())?;
        mutant.name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Ok(mutant)
    }

    pub(super) fn judge(&self) -> Result<Judge> {
        match (&self.story, &self.judge, &self.test) {
            (Some(story), None, None) => Ok(Judge::Story(story.clone())),
            (None, Some(rule), None) => Ok(Judge::Rule(rule.clone())),
            (None, None, Some(test)) => {
                let (package, part) = test.split_once(' ').context("`test` is PACKAGE NAME")?;
                Ok(Judge::Test { package: package.to_owned(), part: part.to_owned() })
            }
            (None, None, None) => Ok(Judge::Unnamed),
            _ => bail!("`story`, `judge` and `test` exclude each other"),
        }
    }

    /// The changed files, by path.
    pub(super) fn files(&self) -> Result<BTreeMap<String, String>> {
        let mut files = BTreeMap::new();
        for edit in &self.edit {
            let text = match files.remove(&edit.file) {
                Some(text) => text,
                None => fs::read_to_string(&edit.file).with_context(|| edit.file.clone())?,
            };
            let edited = edit.apply(&text).with_context(|| edit.file.clone())?;
            files.insert(edit.file.clone(), edited);
        }
        Ok(files)
    }
}

impl Edit {
    fn apply(&self, source: &str) -> Result<String> {
        let function = function_in(source, &self.function)?;
        let text = &source[function.clone()];
        let count = text.matches(&self.from).count();
        ensure!(
            count == 1,
            "`{}` occurs {count} times in {}, not once",
            self.from.trim(),
            self.function
        );
        let edited = text.replacen(&self.from, &self.to, 1);
        Ok([&source[..function.start], &edited, &source[function.end..]].concat())
    }
}

/// The byte range of the only function of that name.
fn function_in(source: &str, name: &str) -> Result<Range<usize>> {
    let mut functions = Functions { name, of: None, found: Vec::new() };
    functions.visit_file(&syn::parse_file(source)?);
    match functions.found.as_slice() {
        [one] => Ok(one.clone()),
        [] => bail!("no function {name}"),
        several => bail!("{} functions {name}; write Type::{name}", several.len()),
    }
}

struct Functions<'a> {
    name: &'a str,
    /// The type whose `impl` is being visited.
    of: Option<String>,
    found: Vec<Range<usize>>,
}

impl Functions<'_> {
    fn check(&mut self, ident: &syn::Ident, span: proc_macro2::Span) {
        let full = self.of.as_ref().map(|of| format!("{of}::{ident}"));
        if ident == self.name || full.as_deref() == Some(self.name) {
            self.found.push(span.byte_range());
        }
    }
}

impl<'ast> Visit<'ast> for Functions<'_> {
    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if let syn::Type::Path(of) = &*item.self_ty {
            self.of = of.path.segments.last().map(|segment| segment.ident.to_string());
        }
        visit::visit_item_impl(self, item);
        self.of = None;
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.check(&item.sig.ident, item.span());
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.check(&item.sig.ident, item.span());
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        self.check(&item.sig.ident, item.span());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "\
fn alone() { let é = 1; go(é); }
impl One { fn new() -> u32 { 1 } }
impl Two<'_> { fn new() -> u32 { 1 + 1 } }
";

    fn edited(function: &str, from: &str, to: &str) -> Result<String> {
        let edit = Edit {
            file: String::new(),
            function: function.to_owned(),
            from: from.to_owned(),
            to: to.to_owned(),
        };
        edit.apply(SOURCE)
    }

    #[test]
    fn only_the_named_function_changes() {
        let found = edited("One::new", "1", "7").unwrap();
        assert_eq!(found, SOURCE.replace("-> u32 { 1 }", "-> u32 { 7 }"));
        let found = edited("alone", "go(é)", "stop()").unwrap();
        assert_eq!(found, SOURCE.replace("go(é)", "stop()"));
    }

    #[test]
    fn text_that_does_not_occur_exactly_once_is_refused() {
        let refused =
            |function: &str, from: &str| edited(function, from, "").unwrap_err().to_string();
        assert_eq!(refused("Two::new", "1"), "`1` occurs 2 times in Two::new, not once");
        assert_eq!(refused("One::new", "7"), "`7` occurs 0 times in One::new, not once");
        assert_eq!(refused("new", "1"), "2 functions new; write Type::new");
        assert_eq!(refused("Two::old", "1"), "no function Two::old");
    }
}

//! The parsed sources of the crates, without their tests.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use syn::{Attribute, Item, Meta, UseTree};

/// Crates by the name that the sources use, parsed when they are first asked for.
#[derive(Default)]
pub(super) struct Sources {
    crates: BTreeMap<String, Vec<Module>>,
}

/// One file.
pub(super) struct Module {
    /// `rpc::limits`; empty for the root.
    pub path: String,
    pub items: Vec<Item>,
    /// Where each imported name comes from.
    pub imports: BTreeMap<String, Vec<String>>,
}

const OURS: &[&str] = &["admin", "client", "keeper", "server", "store", "vfs", "wire"];

pub(super) fn is_ours(name: &str) -> bool {
    OURS.contains(&name)
}

impl Sources {
    pub(super) fn of(&mut self, name: &str) -> Result<&[Module]> {
        if !self.crates.contains_key(name) {
            let root = PathBuf::from(format!("crates/{name}/src"));
            let mut modules = Vec::new();
            read(&root, &root, &mut modules)?;
            self.crates.insert(name.to_owned(), modules);
        }
        Ok(&self.crates[name])
    }
}

fn read(root: &Path, directory: &Path, modules: &mut Vec<Module>) -> Result<()> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(directory).with_context(|| directory.display().to_string())? {
        paths.push(entry?.path());
    }
    paths.sort();
    for path in paths {
        if path.is_dir() {
            read(root, &path, modules)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            modules.push(Module::read(root, &path)?);
        }
    }
    Ok(())
}

impl Module {
    pub(super) fn read(root: &Path, file: &Path) -> Result<Self> {
        let parsed = syn::parse_file(&fs::read_to_string(file)?);
        let parsed = parsed.with_context(|| file.display().to_string())?;
        let below = file.strip_prefix(root)?.with_extension("");
        let parts: Vec<_> = below.iter().map(|part| part.to_string_lossy()).collect();
        let path = if parts == ["lib"] { String::new() } else { parts.join("::") };
        let items: Vec<Item> = parsed.items.into_iter().filter(|item| !is_test(item)).collect();
        let mut imports = BTreeMap::new();
        for item in &items {
            if let Item::Use(item) = item {
                leaves(&item.tree, &mut Vec::new(), &mut |name, path| {
                    imports.insert(name, path);
                });
            }
        }
        Ok(Self { path, items, imports })
    }
}

/// Calls `found` with each imported name and its path.
pub(super) fn leaves(
    tree: &UseTree,
    prefix: &mut Vec<String>,
    found: &mut impl FnMut(String, Vec<String>),
) {
    match tree {
        UseTree::Path(path) => {
            prefix.push(path.ident.to_string());
            leaves(&path.tree, prefix, found);
            prefix.pop();
        }
        UseTree::Name(name) => {
            let name = name.ident.to_string();
            if name == "self" {
                found(prefix.last().cloned().unwrap_or_default(), prefix.clone());
                return;
            }
            let path = prefix.iter().chain([&name]).cloned().collect();
            found(name, path);
        }
        UseTree::Rename(rename) => {
            let original = rename.ident.to_string();
            let path = prefix.iter().chain([&original]).cloned().collect();
            found(rename.rename.to_string(), path);
        }
        UseTree::Group(group) => {
            group.items.iter().for_each(|tree| leaves(tree, prefix, found));
        }
        _ => {}
    }
}

pub(super) fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

fn is_test(item: &Item) -> bool {
    attributes(item).iter().any(|attribute| {
        attribute.path().is_ident("cfg") && super::items::tokens(&attribute.meta).contains("test")
    })
}

/// `#[doc(hidden)]`: not part of the interface.
pub(super) fn is_hidden(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("doc")
            && matches!(&attribute.meta, Meta::List(list) if list.tokens.to_string() == "hidden")
    })
}

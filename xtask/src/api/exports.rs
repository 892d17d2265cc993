//! What the facade exports, and where it is defined.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use syn::{Item, Visibility};

use super::sources::{Module, Sources, attributes, is_ours, leaves};

/// A type by the crate that defines it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TypeName {
    pub path: Vec<String>,
}

impl TypeName {
    /// Whether it is this type, or in this module.
    pub(super) fn is_of(&self, path: &str) -> bool {
        let path: Vec<&str> = path.split("::").collect();
        self.path.len() >= path.len() && self.path.iter().zip(path).all(|(a, b)| a == b)
    }
}

impl fmt::Display for TypeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path.join("::"))
    }
}

/// One exported item.
pub(super) struct Export {
    /// `lockkeeper::store::Token`.
    pub shown: String,
    /// The crate that defines it, the module if that is known, its name there.
    pub origin: String,
    pub module: String,
    pub name: String,
    /// The condition on which it exists.
    pub condition: String,
}

pub(super) struct Exports {
    list: Vec<Export>,
    /// Crate and name.
    names: BTreeSet<(String, String)>,
}

impl Exports {
    pub(super) fn read(root: &str, sources: &mut Sources) -> Result<Self> {
        let mut list = Vec::new();
        let root = Path::new(root);
        let mut files: Vec<_> = fs::read_dir(root)?.collect::<std::io::Result<_>>()?;
        files.sort_by_key(|file| file.path());
        let modules = files.iter().map(|file| Module::read(root, &file.path()));
        let modules: Vec<Module> = modules.collect::<Result<_>>()?;
        let conditions = conditions_of_modules(&modules);
        for module in &modules {
            let condition = conditions.iter().find(|(name, _)| *name == module.path);
            let condition = condition.map_or("", |(_, condition)| condition);
            for item in &module.items {
                let Item::Use(item) = item else { continue };
                if !matches!(item.vis, Visibility::Public(_)) {
                    continue;
                }
                let own = condition_of(&item.attrs);
                let condition = if own.is_empty() { condition } else { &own };
                let mut found = Vec::new();
                leaves(&item.tree, &mut Vec::new(), &mut |name, path| found.push((name, path)));
                for (name, path) in found {
                    list.push(Export::new(&module.path, &name, path, condition, sources)?);
                }
            }
        }
        list.sort_by(|a, b| a.shown.cmp(&b.shown));
        let names = list.iter().map(|it| (it.origin.clone(), it.name.clone())).collect();
        Ok(Self { list, names })
    }

    pub(super) fn all(&self) -> &[Export] {
        &self.list
    }

    pub(super) fn has(&self, name: &TypeName) -> bool {
        let (Some(origin), Some(name)) = (name.path.first(), name.path.last()) else {
            return false;
        };
        self.names.contains(&(origin.clone(), name.clone()))
    }
}

impl Export {
    fn new(
        module: &str,
        shown: &str,
        path: Vec<String>,
        condition: &str,
        sources: &mut Sources,
    ) -> Result<Self> {
        let path = defined_at(path, sources)?;
        let (origin, rest) = path.split_first().context("an empty path")?;
        let (name, module_path) = rest.split_last().context("a whole crate is exported")?;
        let place = if module.is_empty() { String::new() } else { format!("{module}::") };
        Ok(Self {
            shown: format!("lockkeeper::{place}{shown}"),
            origin: origin.clone(),
            module: module_path.join("::"),
            name: name.clone(),
            condition: condition.to_owned(),
        })
    }
}

/// Follows re-exports, of other crates or of modules, to where an item is defined.
pub(super) fn defined_at(path: Vec<String>, sources: &mut Sources) -> Result<Vec<String>> {
    let [origin, modules @ .., name] = path.as_slice() else { return Ok(path) };
    if !is_ours(origin) {
        return Ok(path);
    }
    let module = modules.join("::");
    let home = sources.of(origin)?.iter().find(|home| home.path == module);
    let Some(imported) = home.and_then(|home| home.imports.get(name)) else { return Ok(path) };
    let first = imported.first().map_or("", String::as_str);
    if is_ours(first) && first != origin {
        return Ok(imported.clone());
    }
    // `pub use memory::Memory`
    let outside = if first == "crate" { &[] } else { modules };
    let within = imported.iter().filter(|part| *part != "crate" && *part != "self");
    Ok([origin].into_iter().chain(outside).chain(within).cloned().collect())
}

fn conditions_of_modules(modules: &[Module]) -> Vec<(String, String)> {
    let root = modules.iter().find(|module| module.path.is_empty());
    let items = root.map_or(&[][..], |root| &root.items);
    let declared = items.iter().filter_map(|item| match item {
        Item::Mod(declared) => Some((declared.ident.to_string(), condition_of(attributes(item)))),
        _ => None,
    });
    declared.collect()
}

fn condition_of(attributes: &[syn::Attribute]) -> String {
    let conditions = attributes.iter().filter(|attribute| attribute.path().is_ident("cfg"));
    conditions.map(|attribute| format!(" {}", super::items::tokens(&attribute.meta))).collect()
}

//! One exported item as lines of text, and the types that they name.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use anyhow::{Result, bail};
use quote::ToTokens;
use syn::visit::{self, Visit};
use syn::{
    Attribute, Fields, Generics, ImplItem, Item, ItemImpl, Path, Signature, TraitItem, Type,
    Visibility,
};

use super::exports::{Export, TypeName, defined_at};
use super::sources::{Module, Sources, is_hidden, is_ours};

pub(super) struct Described {
    pub lines: String,
    /// Where a type is named, and the type.
    pub names: Vec<(String, TypeName)>,
}

/// A definition in a crate, with what is implemented for it.
pub(super) fn describe(export: &Export, sources: &mut Sources) -> Result<Described> {
    let Export { shown, origin, name, condition, .. } = export;
    let mut text = Text { lines: format!("{shown}{condition}\n"), uses: Vec::new(), shown, origin };
    if !is_ours(origin) {
        let _ = writeln!(text.lines, "    of {origin}");
        return Ok(Described { lines: text.lines, names: Vec::new() });
    }
    let modules = sources.of(origin)?;
    let defines = |module: &&Module| module.items.iter().any(|item| is_named(item, name));
    let mut defining: Vec<&Module> = modules.iter().filter(defines).collect();
    let is_unique = defining.len() == 1;
    if !is_unique {
        defining.retain(|module| module.path == export.module);
    }
    let Some(home) = defining.first() else {
        if let Some(made_by) = macro_that_makes(modules, name) {
            let _ = writeln!(text.lines, "    {made_by}");
            return Ok(Described { lines: text.lines, names: Vec::new() });
        }
        if modules.iter().any(|module| module.path == *name) {
            let _ = writeln!(text.lines, "    mod {origin}::{name}");
            return Ok(Described { lines: text.lines, names: Vec::new() });
        }
        bail!("{shown} is not defined in the crate {origin}");
    };
    for item in home.items.iter().filter(|item| is_named(item, name)) {
        text.item(item, home);
    }
    for module in modules.iter().filter(|module| is_unique || std::ptr::eq(*module, *home)) {
        let impls = module.items.iter().filter_map(|item| match item {
            Item::Impl(item) if is_for(item, name) && !is_hidden(&item.attrs) => Some(item),
            _ => None,
        });
        impls.for_each(|item| text.implementation(item, module));
    }
    let Text { lines, uses, .. } = text;
    let uses: BTreeSet<(String, Vec<String>)> = uses.into_iter().collect();
    let mut names = Vec::new();
    for (used_in, path) in uses {
        let path = defined_at(within_crate(path, origin, sources.of(origin)?), sources)?;
        let is_std = matches!(path.first().map_or("", String::as_str), "std" | "core" | "alloc");
        // A name that is neither imported nor of this crate is one of the prelude.
        let known = match path.as_slice() {
            [krate, last] if krate == origin => {
                sources
                    .of(krate)?
                    .iter()
                    .any(|module| module.items.iter().any(|item| is_named(item, last)))
                    || macro_that_makes(sources.of(krate)?, last).is_some()
            }
            _ => true,
        };
        if known && !is_std {
            names.push((used_in, TypeName { path }));
        }
    }
    Ok(Described { lines, names })
}

struct Text<'a> {
    lines: String,
    /// Where a type is named, and its path with the crate first.
    uses: Vec<(String, Vec<String>)>,
    shown: &'a str,
    /// The crate.
    origin: &'a str,
}

impl Text<'_> {
    fn line(&mut self, line: &str) {
        let _ = writeln!(self.lines, "    {line}");
    }

    fn item(&mut self, item: &Item, module: &Module) {
        match item {
            Item::Struct(item) => {
                self.attributes(&item.attrs);
                let generics = tokens(&item.generics);
                self.line(&format!("struct{generics}"));
                self.fields(&item.fields, "", true, &item.generics, module);
            }
            Item::Enum(item) => {
                self.attributes(&item.attrs);
                self.line("enum");
                for variant in &item.variants {
                    let name = &variant.ident;
                    if matches!(variant.fields, Fields::Unit) {
                        self.line(&format!("{name}"));
                    }
                    self.fields(
                        &variant.fields,
                        &format!("{name}."),
                        false,
                        &item.generics,
                        module,
                    );
                }
            }
            Item::Trait(item) => {
                self.attributes(&item.attrs);
                self.line(&format!("trait: {}", tokens(&item.supertraits)));
                for member in &item.items {
                    if let TraitItem::Fn(method) = member
                        && !is_hidden(&method.attrs)
                    {
                        let provided = if method.default.is_some() { "provided " } else { "" };
                        self.line(&format!("{provided}{}", tokens(&method.sig)));
                        self.signature(&method.sig, &item.generics, module);
                    }
                }
            }
            Item::Fn(item) => {
                self.line(&tokens(&item.sig));
                self.signature(&item.sig, &Generics::default(), module);
            }
            Item::Type(item) => {
                self.line(&format!("type = {}", tokens(&item.ty)));
                self.types(&item.ty, &item.generics, module);
            }
            Item::Const(item) => {
                self.line(&format!("const: {}", tokens(&item.ty)));
                self.types(&item.ty, &Generics::default(), module);
            }
            _ => {}
        }
    }

    fn attributes(&mut self, attributes: &[Attribute]) {
        for attribute in attributes {
            let path = attribute.path();
            if ["derive", "non_exhaustive", "must_use"].iter().any(|it| path.is_ident(it)) {
                let text = tokens(&attribute.meta);
                self.line(text.split(" = ").next().unwrap_or_default());
            }
        }
    }

    fn fields(
        &mut self,
        fields: &Fields,
        prefix: &str,
        only_public: bool,
        generics: &Generics,
        module: &Module,
    ) {
        for (at, field) in fields.iter().enumerate() {
            let is_public = !only_public || matches!(field.vis, Visibility::Public(_));
            if !is_public || is_hidden(&field.attrs) {
                continue;
            }
            let name = field.ident.as_ref().map_or_else(|| at.to_string(), ToString::to_string);
            self.line(&format!("{prefix}{name}: {}", tokens(&field.ty)));
            self.types(&field.ty, generics, module);
        }
    }

    fn implementation(&mut self, item: &ItemImpl, module: &Module) {
        if let Some((path, _)) = &item.trait_ {
            let (generics, of) = (tokens(&item.generics), tokens(path));
            self.line(&format!("impl{generics} {of}"));
            return;
        }
        for member in &item.items {
            match member {
                ImplItem::Fn(method)
                    if matches!(method.vis, Visibility::Public(_)) && !is_hidden(&method.attrs) =>
                {
                    self.line(&tokens(&method.sig));
                    self.signature(&method.sig, &item.generics, module);
                }
                ImplItem::Const(constant) if matches!(constant.vis, Visibility::Public(_)) => {
                    self.line(&format!("const {}: {}", constant.ident, tokens(&constant.ty)));
                    self.types(&constant.ty, &item.generics, module);
                }
                _ => {}
            }
        }
    }

    fn signature(&mut self, signature: &Signature, outer: &Generics, module: &Module) {
        let mut names = Names::new(outer);
        names.generics(&signature.generics);
        names.visit_signature(signature);
        self.keep(names, module);
    }

    fn types(&mut self, ty: &Type, generics: &Generics, module: &Module) {
        let mut names = Names::new(generics);
        names.visit_type(ty);
        self.keep(names, module);
    }

    fn keep(&mut self, names: Names, module: &Module) {
        for path in names.found {
            self.uses.push((self.shown.to_owned(), full_path(path, self.origin, module)));
        }
    }
}

/// The paths of types in a signature, without type parameters.
struct Names {
    parameters: Vec<String>,
    found: Vec<Vec<String>>,
}

impl Names {
    fn new(generics: &Generics) -> Self {
        let mut names = Self { parameters: vec!["Self".into()], found: Vec::new() };
        names.generics(generics);
        names
    }

    fn generics(&mut self, generics: &Generics) {
        self.parameters.extend(generics.type_params().map(|it| it.ident.to_string()));
    }
}

impl Visit<'_> for Names {
    fn visit_path(&mut self, path: &Path) {
        let parts: Vec<String> = path.segments.iter().map(|it| it.ident.to_string()).collect();
        if parts.first().is_some_and(|first| !self.parameters.contains(first)) {
            self.found.push(parts);
        }
        visit::visit_path(self, path);
    }
}

/// With the crate first.
fn full_path(path: Vec<String>, origin: &str, module: &Module) -> Vec<String> {
    let (first, last) = (path[0].clone(), path[path.len() - 1].clone());
    let path = match module.imports.get(&first) {
        Some(imported) => imported.iter().chain(&path[1..]).cloned().collect(),
        None if path.len() == 1 => return vec![origin.to_owned(), last],
        None => path,
    };
    match path[0].as_str() {
        "crate" | "self" | "super" => vec![origin.to_owned(), last],
        _ => path,
    }
}

/// A path that begins with a module of the crate belongs to the crate.
fn within_crate(path: Vec<String>, origin: &str, modules: &[Module]) -> Vec<String> {
    let first = path.first().map_or("", String::as_str);
    let is_module = modules.iter().any(|module| module.path.split("::").any(|it| it == first));
    match path.last() {
        Some(last) if path.len() > 1 && is_module && first != origin => {
            vec![origin.to_owned(), last.clone()]
        }
        _ => path,
    }
}

fn is_named(item: &Item, name: &str) -> bool {
    let (visibility, ident) = match item {
        Item::Const(item) => (&item.vis, &item.ident),
        Item::Enum(item) => (&item.vis, &item.ident),
        Item::Fn(item) => (&item.vis, &item.sig.ident),
        Item::Struct(item) => (&item.vis, &item.ident),
        Item::Trait(item) => (&item.vis, &item.ident),
        Item::Type(item) => (&item.vis, &item.ident),
        _ => return false,
    };
    ident == name && matches!(visibility, Visibility::Public(_))
}

fn is_for(item: &ItemImpl, name: &str) -> bool {
    match &*item.self_ty {
        Type::Path(path) => path.path.segments.last().is_some_and(|last| last.ident == name),
        _ => false,
    }
}

/// The call of a macro that has the name among its tokens.
fn macro_that_makes(modules: &[Module], name: &str) -> Option<String> {
    // Types of the language are among the tokens of macros too.
    if name.starts_with(char::is_lowercase) {
        return None;
    }
    let items = modules.iter().flat_map(|module| &module.items);
    items.into_iter().find_map(|item| {
        let Item::Macro(item) = item else { return None };
        let text = tokens(&item.mac.tokens);
        let is_call = item.ident.is_none();
        let names_it = text.split([' ', '{', '}', '(', ')', ',', ';']).any(|word| word == name);
        (is_call && names_it).then(|| format!("made by {}!", tokens(&item.mac.path)))
    })
}

/// Tokens as source text is usually written.
pub(super) fn tokens(of: &impl ToTokens) -> String {
    let mut text = of.to_token_stream().to_string().replace('\n', " ");
    for (from, to) in [
        (" :: ", "::"),
        (":: ", "::"),
        (" < ", "<"),
        (" <", "<"),
        ("< ", "<"),
        (" >", ">"),
        (" ,", ","),
        (" :", ":"),
        ("& ", "&"),
        (" (", "("),
        ("( ", "("),
        (",)", ")"),
        (" )", ")"),
        (" ;", ";"),
        ("[ ", "["),
        (" ]", "]"),
        ("->(", "-> ("),
        (":(", ": ("),
    ] {
        text = text.replace(from, to);
    }
    text
}

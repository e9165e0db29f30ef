//! Checks which files of each crate import which: no file may import itself by way of others, and none may import from
//! a floor above its own. `make lint` runs it.
//!
//! A file imports what its paths name, in `use` and elsewhere, from `crate`, `super` or `self`. Code for tests and
//! models does not count. Nor does what a folder's own file takes from the folder's other files, to show it or to put
//! it together.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use underpass_tests::library::workspace;

/// Crates with floors: the names of their outermost modules, the highest first.
const FLOORS: &[(&str, &[&[&str]])] = &[
    ("checksum", &[&["batch"], &["gpu"], &["algorithm"], &["both", "fletcher", "internet", "variant", "vector"]]),
    (
        "segment",
        &[
            &["watch"],
            &["family", "meeting", "switch"],
            &["directory", "end", "far", "line"],
            &["channel", "tap"],
            &["ring"],
            &["company", "lock", "parted", "stats", "vector", "wait"],
            &["clock", "dial", "kernel", "sysv"],
            &["config", "io_uring", "layout", "local", "raw", "reason", "sync", "words"],
        ],
    ),
    (
        "daemon",
        &[
            &["server"],
            &["abilities", "carriage", "exchange", "lanes"],
            &[
                "carrier", "closer", "evidence", "limits", "lines", "listener", "memory", "packet", "policy",
                "process", "record", "routes",
            ],
            &["facts"],
            &["sys"],
        ],
    ),
    ("policy", &[&["file"], &["text"], &["error", "names", "rules"], &["process"], &["namespace"], &["groups"]]),
    ("preload", &[&["calls"], &["lifecycle"], &["watch"], &["connection"], &["guest"]]),
];

fn main() -> Result<ExitCode> {
    let mut faults = Vec::new();
    for folder in folders(&workspace().join("crates"))? {
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let arrows = Crate::read(&folder.join("src"))?.arrows();
        faults.extend(circle(&arrows).map(|files| format!("{name}: a circle: {}", files.join(" imports "))));
        let floors = FLOORS.iter().find(|(it, _)| *it == name).map_or(&[][..], |(_, floors)| floors);
        faults.extend(
            upward(&arrows, floors).iter().map(|(from, to)| format!("{name}: {from} imports from above: {to}")),
        );
    }
    faults.iter().for_each(|fault| eprintln!("{fault}"));
    Ok(if faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn folders(parent: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(parent).with_context(|| format!("read {}", parent.display()))?;
    let mut folders: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    folders.sort();
    Ok(folders)
}

/// The path of a module within its crate; that of the crate itself is empty.
type Module = Vec<String>;

/// What stands in a module's place where a file imports all that the root shows.
const EVERYTHING: &str = "*";

/// Which module imports which.
type Arrows = BTreeMap<Module, BTreeSet<Module>>;

/// The files of a crate, by module.
struct Crate(BTreeMap<Module, syn::File>);

impl Crate {
    fn read(source: &Path) -> Result<Crate> {
        let mut files = BTreeMap::new();
        let mut left = vec![source.to_path_buf()];
        while let Some(folder) = left.pop() {
            for entry in fs::read_dir(&folder).with_context(|| format!("read {}", folder.display()))? {
                let path = entry?.path();
                if path.is_dir() {
                    left.push(path);
                } else if path.extension().is_some_and(|it| it == "rs") {
                    let text = fs::read_to_string(&path)?;
                    let file = syn::parse_file(&text).with_context(|| format!("parse {}", path.display()))?;
                    files.insert(module_of(path.strip_prefix(source)?), file);
                }
            }
        }
        Ok(Crate(files))
    }

    fn arrows(&self) -> Arrows {
        let mut arrows = Arrows::new();
        for (module, file) in &self.0 {
            let mut imports = Imports { module: module.clone(), paths: Vec::new() };
            imports.visit_file(file);
            let owners = imports.paths.iter().map(|path| self.owner(path)).filter(|owner| !owner.starts_with(module));
            arrows.insert(module.clone(), owners.collect());
        }
        let tests: Vec<Module> =
            self.0.values().zip(self.0.keys()).flat_map(|(file, module)| tests(file, module)).collect();
        arrows.retain(|module, _| !tests.iter().any(|test| module.starts_with(test)));
        arrows
    }

    /// The file in which an item of this path lies; [`EVERYTHING`] for the path of the root, which shows all.
    fn owner(&self, path: &[String]) -> Module {
        let Some(first) = path.first() else { return vec![EVERYTHING.to_string()] };
        let lengths = (1..=path.len()).rev();
        let owner = lengths.map(|len| path[..len].to_vec()).find(|it| self.0.contains_key(it));
        owner.or_else(|| Some(self.owner(&self.shown_at_root(first)?))).unwrap_or_default()
    }

    /// The path of what the root shows by this name, if that lies elsewhere.
    fn shown_at_root(&self, name: &str) -> Option<Module> {
        let mut shown = BTreeMap::new();
        for item in &self.0.get(&Module::new())?.items {
            if let syn::Item::Use(it) = item {
                each_name(&[], &it.tree, &mut |name, path| drop(name.and_then(|name| shown.insert(name, path))));
            }
        }
        let path = shown.remove(name)?;
        let path: Module = path.into_iter().skip_while(|it| matches!(it.as_str(), "crate" | "self")).collect();
        path.first().is_some_and(|first| first != name && self.0.contains_key(&vec![first.clone()])).then_some(path)
    }
}

/// Calls `what` with each name that this tree brings into a file, and its path; for `*` with no name, and the path of
/// what shows all.
fn each_name(before: &[String], tree: &syn::UseTree, what: &mut dyn FnMut(Option<String>, Module)) {
    let with = |name: &syn::Ident| [before, &[name.to_string()]].concat();
    match tree {
        syn::UseTree::Path(it) => each_name(&with(&it.ident), &it.tree, what),
        syn::UseTree::Name(it) if it.ident == "self" => what(before.last().cloned(), before.to_vec()),
        syn::UseTree::Name(it) => what(Some(it.ident.to_string()), with(&it.ident)),
        syn::UseTree::Rename(it) => what(Some(it.rename.to_string()), with(&it.ident)),
        syn::UseTree::Glob(_) => what(None, before.to_vec()),
        syn::UseTree::Group(it) => it.items.iter().for_each(|tree| each_name(before, tree, what)),
    }
}

fn module_of(path: &Path) -> Module {
    let mut parts: Module = path.with_extension("").iter().map(|part| part.to_string_lossy().into_owned()).collect();
    if matches!(parts.last().map(String::as_str), Some("mod" | "lib" | "main")) {
        parts.pop();
    }
    parts
}

/// The modules that `file` declares for tests and models alone.
fn tests(file: &syn::File, module: &Module) -> Vec<Module> {
    let of = |item: &syn::Item| match item {
        syn::Item::Mod(it) if is_for_tests(&it.attrs) => Some([&module[..], &[it.ident.to_string()]].concat()),
        _ => None,
    };
    file.items.iter().filter_map(of).collect()
}

fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    let is_it = |attribute: &syn::Attribute| match &attribute.meta {
        syn::Meta::List(list) if list.path.is_ident("cfg") => {
            let condition = list.tokens.to_string();
            !condition.contains("not") && (condition.contains("test") || condition.contains("loom"))
        }
        syn::Meta::Path(path) => path.is_ident("test"),
        _ => false,
    };
    attributes.iter().any(is_it)
}

/// Collects what a file imports, as paths from the crate's root.
struct Imports {
    module: Module,
    paths: Vec<Module>,
}

impl Imports {
    fn add(&mut self, path: &[String]) {
        let Some(first) = path.first() else { return };
        let resolved = match first.as_str() {
            "crate" => path[1..].to_vec(),
            "self" | "super" => {
                let path = path.strip_prefix(&["self".to_string()]).unwrap_or(path);
                let supers = path.iter().take_while(|it| *it == "super").count();
                [&self.module[..self.module.len().saturating_sub(supers)], &path[supers..]].concat()
            }
            _ => return,
        };
        self.paths.push(resolved);
    }

    /// Paths that begin with `crate`, `super` or `self` in what a macro is given, which is not parsed.
    fn add_tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Punct(it) if it.as_char() == ':' && !path.is_empty() => colons += 1,
                TokenTree::Ident(it) if !path.is_empty() && colons == 2 => {
                    path.push(it.to_string());
                    colons = 0;
                }
                other => {
                    self.add_if_longer(&path);
                    (path, colons) = (Vec::new(), 0);
                    match other {
                        TokenTree::Ident(it) if it == "crate" || it == "super" || it == "self" => {
                            path = vec![it.to_string()]
                        }
                        TokenTree::Group(it) => self.add_tokens(it.stream()),
                        _ => {}
                    }
                }
            }
        }
        self.add_if_longer(&path);
    }

    /// `self` alone is a value.
    fn add_if_longer(&mut self, path: &[String]) {
        if path.len() > 1 {
            self.add(path);
        }
    }
}

impl<'a> Visit<'a> for Imports {
    fn visit_item(&mut self, item: &'a syn::Item) {
        let attributes = match item {
            syn::Item::Fn(it) => &it.attrs,
            syn::Item::Impl(it) => &it.attrs,
            syn::Item::Mod(it) => &it.attrs,
            syn::Item::Use(it) => &it.attrs,
            syn::Item::Static(it) => &it.attrs,
            _ => return visit::visit_item(self, item),
        };
        if !is_for_tests(attributes) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'a syn::ItemUse) {
        each_name(&[], &item.tree, &mut |_, path| self.add(&path));
    }

    fn visit_item_mod(&mut self, item: &'a syn::ItemMod) {
        if item.content.is_some() {
            self.module.push(item.ident.to_string());
            visit::visit_item_mod(self, item);
            self.module.pop();
        }
    }

    /// `pub(crate)` imports nothing.
    fn visit_vis_restricted(&mut self, _: &'a syn::VisRestricted) {}

    fn visit_path(&mut self, path: &'a syn::Path) {
        let names: Vec<String> = path.segments.iter().map(|it| it.ident.to_string()).collect();
        self.add(&names);
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, it: &'a syn::Macro) {
        self.add_tokens(it.tokens.clone());
        visit::visit_macro(self, it);
    }
}

fn name(module: &Module) -> String {
    if module.is_empty() { "the crate's root".to_string() } else { module.join("::") }
}

/// A shortest way from a file back to it, the file at both ends.
fn circle(arrows: &Arrows) -> Option<Vec<String>> {
    let ways = arrows.keys().filter_map(|start| {
        let mut before: BTreeMap<&Module, &Module> = BTreeMap::new();
        let mut next = vec![start];
        while !next.is_empty() {
            let mut after = Vec::new();
            for from in next {
                for to in arrows.get(from).into_iter().flatten() {
                    if to == start {
                        let mut way = vec![name(start)];
                        let mut at = from;
                        while at != start {
                            way.insert(0, name(at));
                            at = before[at];
                        }
                        way.insert(0, name(start));
                        return Some(way);
                    }
                    if !before.contains_key(to) {
                        before.insert(to, from);
                        after.push(to);
                    }
                }
            }
            next = after;
        }
        None
    });
    ways.min_by_key(Vec::len)
}

/// Imports from a higher floor, and from or to what is on none.
fn upward(arrows: &Arrows, floors: &[&[&str]]) -> Vec<(String, String)> {
    let floor =
        |module: &Module| floors.iter().position(|it| module.first().is_some_and(|first| it.contains(&first.as_str())));
    let mut found = Vec::new();
    for (from, to) in arrows.iter().flat_map(|(from, all)| all.iter().map(move |to| (from, to))) {
        let is_upward = match (floor(from), floor(to)) {
            (Some(from), Some(to)) => to < from,
            (None, _) | (_, None) => !floors.is_empty() && !from.is_empty() && !to.is_empty(),
        };
        if is_upward {
            found.push((name(from), name(to)));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrows(files: &[(&str, &str)]) -> Arrows {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        Crate::read(folder.path()).unwrap().arrows()
    }

    #[test]
    fn a_circle_is_found_and_told_from_file_to_file() {
        let arrows = arrows(&[
            ("lib.rs", "mod a; mod b; mod c;"),
            ("a.rs", "use crate::b::B;"),
            ("b.rs", "fn b() { super::c::c(); }"),
            ("c.rs", "fn c() { println!(\"{}\", crate::a::A); }"),
        ]);
        assert_eq!(circle(&arrows).unwrap(), ["a", "b", "c", "a"]);
    }

    #[test]
    fn tests_and_a_folders_own_file_are_no_part_of_one() {
        let arrows = arrows(&[
            ("lib.rs", "mod a; mod b; #[cfg(all(test, loom))] mod models;"),
            ("a/mod.rs", "mod inner; pub use inner::Inner; #[cfg(test)] mod tests { use crate::b::B; }"),
            ("a/inner.rs", "use super::A;"),
            ("b.rs", "use crate::a::{self, A};"),
            ("models.rs", "use crate::a::A; use crate::b::B;"),
        ]);
        assert_eq!(circle(&arrows), None);
        assert!(!arrows.contains_key(&vec!["models".to_string()]));
    }

    #[test]
    fn an_import_from_above_is_told_and_so_is_a_module_on_no_floor() {
        let arrows = arrows(&[
            ("lib.rs", "mod calls; mod table; mod stray;"),
            ("calls/mod.rs", "use crate::table::T;"),
            ("calls/send.rs", ""),
            ("table.rs", "use crate::calls::send::S;"),
            ("stray.rs", "use crate::table::T;"),
        ]);
        let pairs = [("stray", "table"), ("table", "calls::send")].map(|(a, b)| (a.to_string(), b.to_string()));
        assert_eq!(upward(&arrows, &[&["calls"], &["table"]]), pairs);
    }

    #[test]
    fn no_import_is_hidden_by_a_macro_or_the_root() {
        let root = "mod calls; mod table; pub use calls::C;";
        for hidden in [
            "fn f() { assert!(super::calls::C); }",
            "fn f() { println!(\"{}\", [self::super::calls::f(1)]); }",
            "fn f() { println!(\"{:?} {:?}\", self.x, crate::calls::C); }",
            "use crate::C;",
            "use crate::*; fn f() { calls::C }",
            "use crate as whole; fn f() { whole::calls::C }",
        ] {
            let arrows = arrows(&[("lib.rs", root), ("calls.rs", ""), ("table.rs", hidden)]);
            assert_eq!(upward(&arrows, &[&["calls"], &["table"]]).len(), 1, "{hidden}");
        }
    }
}

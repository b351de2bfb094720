//! The graph of files by their imports: it has no circles, and the methods of a type are in one file.
//!
//! A file stands for its module. Paths are followed through `use` and `pub use` to the file that defines the name, so a
//! re-export hides no circle. An import between a file and its own parent is no edge, because a parent wires its parts.

use std::collections::{BTreeMap, BTreeSet};

use crate::tidy::{code_of, members};

/// The segments of a module path, as written or absolute. An absolute path begins with the name of a crate.
type Path = Vec<String>;

/// The crate whose files are named without the crate's name in front.
const PRODUCT: &str = "slotfront";

/// The files of all crates by their modules, with the data that the graph needs.
struct Sources(BTreeMap<Path, Source>);

#[derive(Default)]
struct Source {
    tokens: Vec<String>,
    /// The imported paths, each with its name in this file.
    uses: Vec<(Path, String)>,
    /// The paths outside of imports that begin with `crate`, `self` or `super`.
    paths: Vec<Path>,
}

impl Sources {
    /// Parses files, each given as its crate's name, its path inside `src`, and its code. Modules for tests
    /// are left out.
    fn read(files: impl IntoIterator<Item = (String, String, String)>) -> Self {
        let files: BTreeMap<Path, Source> = files
            .into_iter()
            .filter(|(_, name, _)| name != "main.rs")
            .map(|(krate, name, code)| (module_of(&krate, &name), Source::read(&code)))
            .collect();
        let tests: Vec<Path> =
            files.iter().flat_map(|(module, source)| source.test_modules(module)).collect();
        Self(
            files
                .into_iter()
                .filter(|(module, _)| !tests.iter().any(|test| module.starts_with(test)))
                .collect(),
        )
    }

    /// Converts a path that is written in `module` to an absolute path, which begins with the name of a crate.
    /// `None` if it leads out of the workspace.
    fn absolute(&self, module: &[String], path: &[String]) -> Option<Path> {
        let join = |module: &[String], rest: &[String]| Some([module, rest].concat());
        match path.first()?.as_str() {
            "crate" => join(&module[..1], &path[1..]),
            "self" => join(module, &path[1..]),
            "super" => {
                let ups = path.iter().take_while(|segment| *segment == "super").count();
                join(module.get(..module.len().checked_sub(ups)?)?, &path[ups..])
            }
            child if self.0.contains_key(&join(module, &[child.to_owned()])?) => join(module, path),
            // A path into another crate.
            _ => self.0.contains_key(&path[..1]).then(|| path.to_vec()),
        }
    }

    /// Returns the module that defines the item of an absolute path, and the item's path in it. Imported
    /// names are followed to their origin, except names behind a `*`.
    fn definition(&self, path: &[String]) -> Option<(Path, Path)> {
        self.follow(path, &mut BTreeSet::new())
    }

    fn follow(&self, path: &[String], seen: &mut BTreeSet<Path>) -> Option<(Path, Path)> {
        let depth = (0..=path.len()).rev().find(|depth| self.0.contains_key(&path[..*depth]))?;
        let (module, rest) = path.split_at(depth);
        if let Some(name) = rest.first()
            && seen.insert(path[..=depth].to_vec())
            && let Some((import, _)) = self.0[module].uses.iter().find(|(_, alias)| alias == name)
        {
            let import = self.absolute(module, import)?;
            return self.follow(&[&import, &rest[1..]].concat(), seen);
        }
        Some((module.to_vec(), rest.to_vec()))
    }

    /// Returns the files that a file imports from, except its parent and its children.
    fn imports(&self, module: &Path) -> BTreeSet<&Path> {
        let source = &self.0[module];
        let paths = source.uses.iter().map(|(path, _)| path).chain(&source.paths);
        paths
            .filter_map(|path| Some(self.definition(&self.absolute(module, path)?)?.0))
            .filter(|other| other != module && !is_child(other, module) && !is_child(module, other))
            .filter_map(|other| self.0.get_key_value(&other).map(|(module, _)| module))
            .collect()
    }

    /// Returns the circles: the files of each, and the imports between them as text.
    fn circles(&self) -> BTreeMap<Vec<String>, Vec<String>> {
        let edges: BTreeMap<&Path, BTreeSet<&Path>> =
            self.0.keys().map(|module| (module, self.imports(module))).collect();
        let reached = |from: &Path| {
            let (mut reached, mut next) = (BTreeSet::new(), edges[from].iter().copied().collect::<Vec<_>>());
            while let Some(module) = next.pop() {
                if reached.insert(module) {
                    next.extend(&edges[module]);
                }
            }
            reached
        };
        let reach: BTreeMap<&Path, BTreeSet<&Path>> =
            self.0.keys().map(|module| (module, reached(module))).collect();
        let mut circles = BTreeMap::new();
        for (module, reached) in reach.iter().filter(|(module, reached)| reached.contains(*module)) {
            let circle: BTreeSet<&Path> =
                reached.iter().copied().filter(|other| reach[other].contains(module)).collect();
            let between = |from: &&Path| {
                let to: Vec<_> =
                    edges[*from].intersection(&circle).map(|module| file_of(module.as_slice())).collect();
                format!("{} imports {}", file_of(from), to.join(", "))
            };
            let files = circle.iter().map(|module| file_of(module)).collect();
            circles.insert(files, circle.iter().map(between).collect());
        }
        circles
    }

    /// Returns the types whose inherent methods are in several files: the file and name of each type, and the
    /// files with its methods.
    fn spread(&self) -> BTreeMap<String, Vec<String>> {
        let mut types: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (module, source) in &self.0 {
            for path in source.inherent_impls() {
                let path = match path.as_slice() {
                    // The type is imported or defined here.
                    [name] => [module.as_slice(), std::slice::from_ref(name)].concat(),
                    path => self.absolute(module, path).unwrap_or_else(|| path.to_vec()),
                };
                let (module_of_type, name) = self.definition(&path).unwrap_or((Path::new(), path));
                let name = format!("{}: {}", file_of(&module_of_type), name.join("::"));
                types.entry(name).or_default().insert(file_of(module));
            }
        }
        let spread = types.into_iter().filter(|(_, files)| files.len() > 1);
        spread.map(|(name, files)| (name, files.into_iter().collect())).collect()
    }
}

impl Source {
    fn read(code: &str) -> Self {
        let tokens = tokens(code);
        let mut source = Self::default();
        let mut at = 0;
        while let Some(token) = tokens.get(at) {
            let before = |tokens_back: usize| at.checked_sub(tokens_back).map(|at| tokens[at].as_str());
            // The `in crate::a` of `pub(in crate::a)` imports nothing.
            let is_visibility = before(1) == Some("in") && before(2) == Some("(");
            match token.as_str() {
                // `use<'a>` names the lifetimes that a type captures.
                "use" if tokens.get(at + 1).is_some_and(|next| next != "<") => {
                    at = read_tree(&tokens, at + 1, &[], &mut source.uses);
                    continue;
                }
                "crate" | "self" | "super" if !is_visibility => {
                    let mut path = vec![token.clone()];
                    while tokens.get(at + 1).is_some_and(|next| next == "::")
                        && let Some(next) = tokens.get(at + 2).filter(|next| is_word(next))
                    {
                        path.push(next.clone());
                        at += 2;
                    }
                    if path.len() > 1 {
                        source.paths.push(path);
                    }
                }
                _ => {}
            }
            at += 1;
        }
        Self { tokens, ..source }
    }

    /// Returns the child modules that are compiled for tests only.
    fn test_modules<'a>(&'a self, module: &'a Path) -> impl Iterator<Item = Path> + 'a {
        let declared = |at: usize| {
            let after = self.tokens.get(at + 7..at + 14)?;
            let mut after = after.iter().skip_while(|token| *token != "mod").skip(1);
            let name = after.next()?;
            (after.next()? == ";").then(|| [module.as_slice(), std::slice::from_ref(name)].concat())
        };
        let attribute = ["#", "[", "cfg", "(", "test", ")", "]"];
        let attributes = (0..self.tokens.len())
            .filter(move |at| self.tokens.get(*at..at + 7).is_some_and(|tokens| tokens.iter().eq(attribute)));
        attributes.filter_map(declared)
    }

    /// Returns the types of the inherent impls, as they are written.
    fn inherent_impls(&self) -> Vec<Path> {
        let begins = |at: usize| {
            let before = at.checked_sub(1).map(|before| self.tokens[before].as_str());
            self.tokens[at] == "impl" && matches!(before, None | Some("}" | ";" | "]" | "{" | "unsafe"))
        };
        (0..self.tokens.len()).filter(|at| begins(*at)).filter_map(|at| self.inherent_impl(at + 1)).collect()
    }

    fn inherent_impl(&self, at: usize) -> Option<Path> {
        let (mut depth, mut path) = (0, Path::new());
        for token in &self.tokens[at..] {
            match token.as_str() {
                "<" => depth += 1,
                // The `>` of an arrow is not a separate token.
                ">" => depth -= 1,
                _ if depth > 0 => {}
                "{" | "where" => return Some(path).filter(|path| !path.is_empty()),
                "for" => return None,
                "::" => {}
                word if is_word(word) => path.push(word.to_owned()),
                // A reference, a tuple, or a macro variable.
                _ => return None,
            }
        }
        None
    }
}

/// Adds the paths of one tree of a `use` item to `found`, and returns the position after the tree.
fn read_tree(tokens: &[String], mut at: usize, base: &[String], found: &mut Vec<(Path, String)>) -> usize {
    let mut path = base.to_vec();
    while let Some(token) = tokens.get(at) {
        match token.as_str() {
            "{" => {
                at += 1;
                while tokens.get(at).is_some_and(|token| token != "}") {
                    at = read_tree(tokens, at, &path, found);
                    at += usize::from(tokens.get(at).is_some_and(|token| token == ","));
                }
                return at + 1;
            }
            "*" => {
                found.push((path, "*".to_owned()));
                return at + 1;
            }
            "::" => at += 1,
            "as" => {
                found.push((path, tokens[at + 1].clone()));
                return at + 2;
            }
            word if is_word(word) => {
                // In a group, `self` is the module before the group.
                if word != "self" || path.is_empty() {
                    path.push(word.to_owned());
                }
                at += 1;
                if tokens.get(at).is_none_or(|next| next != "::" && next != "as") {
                    let name = path.last().cloned().unwrap_or_default();
                    found.push((path, name));
                    return at;
                }
            }
            _ => return at + 1,
        }
    }
    at
}

/// Returns the words, `::`, `->`, `=>`, and all other characters except space. Strings, characters, comments
/// and the quotes of lifetimes are left out.
fn tokens(code: &str) -> Vec<String> {
    let (mut tokens, mut rest) = (Vec::new(), code.trim_start());
    while let Some(first) = rest.chars().next() {
        let left_out = match first {
            _ if rest.starts_with("//") => Some(rest.find('\n').unwrap_or(rest.len())),
            '"' => Some(string(rest)),
            '\'' => Some(character(rest)),
            _ => prefixed_string(rest),
        };
        let length = left_out.unwrap_or_else(|| match first {
            _ if is_word(rest) => rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len()),
            _ if ["::", "->", "=>"].iter().any(|pair| rest.starts_with(pair)) => 2,
            _ => first.len_utf8(),
        });
        let (token, after) = rest.split_at(length);
        if left_out.is_none() {
            tokens.push(token.to_owned());
        }
        rest = after.trim_start();
    }
    tokens
}

/// Returns the length of a string literal.
fn string(text: &str) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            '"' if !escaped => return at + 1,
            _ => escaped = c == '\\' && !escaped,
        }
    }
    text.len()
}

/// Returns the length of a raw or byte string literal, if the text begins with one.
fn prefixed_string(text: &str) -> Option<usize> {
    let prefix = ["br", "r", "b"].into_iter().find(|prefix| {
        text.strip_prefix(prefix).is_some_and(|rest| rest.trim_start_matches('#').starts_with('"'))
    })?;
    let rest = &text[prefix.len()..];
    let hashes = rest.len() - rest.trim_start_matches('#').len();
    if prefix == "b" {
        return (hashes == 0).then(|| 1 + string(rest));
    }
    let end = format!("\"{}", "#".repeat(hashes));
    let body = hashes + 1;
    Some(prefix.len() + body + rest[body..].find(&end)? + end.len())
}

/// Returns the length of a character literal or of a lifetime.
fn character(text: &str) -> usize {
    let inside = &text[1..];
    if let Some(escape) = inside.strip_prefix('\\') {
        return 3 + escape.char_indices().skip(1).find(|(_, c)| *c == '\'').map_or(0, |(at, _)| at);
    }
    let first = inside.chars().next().map_or(0, char::len_utf8);
    if inside[first..].starts_with('\'') { first + 2 } else { 1 }
}

fn is_word(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphanumeric() || c == '_')
}

fn is_child(module: &[String], parent: &[String]) -> bool {
    module.split_last().is_some_and(|(_, before)| before == parent)
}

/// Returns the absolute path of a file's module, which begins with the name of the crate.
fn module_of(krate: &str, name: &str) -> Path {
    let name = name.trim_end_matches(".rs");
    let inside = name.split('/').filter(|segment| *segment != "lib");
    std::iter::once(krate).chain(inside).map(ToOwned::to_owned).collect()
}

fn file_of(module: &[String]) -> String {
    let Some((krate, inside)) = module.split_first() else { return String::new() };
    let file = if inside.is_empty() { "lib.rs".to_owned() } else { format!("{}.rs", inside.join("/")) };
    if krate == PRODUCT { file } else { format!("{krate}: {file}") }
}

fn of_workspace() -> Sources {
    let files = members().into_iter().flat_map(|member| {
        let files = code_of(&member);
        files.into_iter().map(move |(name, code)| (member.name.clone(), name, code))
    });
    Sources::read(files)
}

#[test]
fn files_import_each_other_in_no_circle() {
    let found = of_workspace().circles();
    let circles: Vec<_> = found.into_values().map(|imports| imports.join("\n  ")).collect();
    assert!(circles.is_empty(), "circles of imports:\n  {}", circles.join("\n\n  "));
}

#[test]
fn methods_of_a_type_are_in_one_file() {
    let found = of_workspace().spread();
    assert!(found.is_empty(), "types whose methods are in several files: {found:#?}");
}

fn sources(files: &[(&str, &str)]) -> Sources {
    let owned = |(name, code): &(&str, &str)| {
        // A file of another crate has its crate's name before its path.
        let (krate, name) = name.split_once(": ").unwrap_or((PRODUCT, name));
        (krate.to_owned(), name.to_owned(), (*code).to_owned())
    };
    Sources::read(files.iter().map(owned))
}

#[test]
fn a_circle_is_found_however_it_is_imported() {
    let lib = ("lib.rs", "mod a; mod b; mod c;");
    for (a, b, c, expected) in [
        ("use crate::b::B;", "use crate::c;", "use super::a::{self, A};", true),
        ("use crate::{c, b::{B, C as D}};", "fn f() { crate::c::g(); }", "pub(crate) use super::a::A;", true),
        // The parent `lib.rs` exports `B` and `C`, and only imports `A`.
        ("use crate::B;", "use super::{A, C};", "", true),
        ("use crate::b::B;", "use crate::c::C;", "fn f() {}", false),
        (
            "use crate::b::B;",
            "// use crate::a::A;\nfn f() { \"crate::a::A\"; r#\"crate::a\"#; '\"'; }",
            "",
            false,
        ),
        ("use crate::b::B;", "fn f<'a>(s: &'a str) -> impl Fn() + use<'a> {}", "", false),
    ] {
        let lib = (lib.0, "mod a; mod b; mod c; use a::A; pub use b::B; pub use c::C;");
        let circles = sources(&[lib, ("a.rs", a), ("b.rs", b), ("c.rs", c)]).circles();
        assert_eq!(!circles.is_empty(), expected, "{a} | {b} | {c}: {circles:?}");
    }
    let parent = [("a.rs", "mod b; use b::B;"), ("a/b.rs", "use super::A;"), lib];
    assert!(sources(&parent).circles().is_empty(), "a parent and its child are no circle");
    let crates = [
        ("lib.rs", "mod a; mod b; pub use other::c;"),
        ("other: lib.rs", "pub mod c; pub mod d;"),
        ("a.rs", "use crate::c::C;"),
        ("other: c.rs", "use crate::d::D;"),
        ("other: d.rs", "use super::c::C;"),
    ];
    let found: Vec<_> = sources(&crates).circles().into_keys().collect();
    assert_eq!(found, [["other: c.rs", "other: d.rs"]], "a circle in another crate");
    let tests =
        [lib, ("a.rs", "use crate::b::B;"), ("b.rs", "#[cfg(test)]\nmod m;"), ("b/m.rs", "use crate::a::A;")];
    assert!(sources(&tests).circles().is_empty());
}

#[test]
fn types_in_two_files_are_found() {
    let lib = ("lib.rs", "mod a; mod b;");
    for (b, expected) in [
        ("use crate::a::A; impl A { fn f() {} }", true),
        ("use super::a::A as B; impl<'x, T: Into<X>> B<'x, T> where T: Copy {}", true),
        ("impl crate::a::A {}", true),
        ("use crate::a::A; impl Clone for A {} impl<T> From<T> for A {}", false),
        ("struct A; impl A {}", false),
        ("use crate::a::A; fn f() -> impl Iterator<Item = A> { g() }", false),
    ] {
        let spread = sources(&[lib, ("a.rs", "pub struct A; impl A {}"), ("b.rs", b)]).spread();
        assert_eq!(!spread.is_empty(), expected, "{b}: {spread:?}");
    }
}

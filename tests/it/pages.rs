//! The Markdown pages: links, paths, settings, commands and requests in them are valid.
//!
//! `tests/real/guides_test.py` runs the guides as written. `promises.rs` checks the names of tests.

pub(crate) mod markdown;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use slotfront::config::{self, Secret};
use slotfront_testkit::TestGateway;

use markdown::{Page, SUBSTITUTION};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// The folders of the repository. Pages name the files in them by paths from the repository's root.
const FOLDERS: [&str; 9] =
    ["config", "crates", "dashboards", "deploy", "docs", "fuzz", "lab", "src", "tests"];

/// Adds the files below a folder of the repository to `found`, by their paths from the root. Build output, fuzz
/// corpora and installed packages are left out.
fn files_in(folder: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(Path::new(ROOT).join(folder)).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() && !["target", "corpus", "node_modules", "__pycache__"].contains(&name) {
            files_in(path.strip_prefix(ROOT).unwrap().to_str().unwrap(), found);
        } else if path.is_file() {
            found.push(path.strip_prefix(ROOT).unwrap().to_owned());
        }
    }
}

/// Returns the files of the repository that people write.
fn files() -> Vec<PathBuf> {
    let mut found = Vec::new();
    for folder in FOLDERS {
        files_in(folder, &mut found);
    }
    let top = fs::read_dir(ROOT).unwrap().map(|entry| entry.unwrap().path());
    found.extend(top.filter(|path| path.is_file()).map(|path| path.strip_prefix(ROOT).unwrap().to_owned()));
    found.sort();
    found
}

/// Returns all Markdown pages by their paths from the root.
fn pages() -> BTreeMap<PathBuf, Page> {
    let files = files().into_iter().filter(|file| file.extension().is_some_and(|end| end == "md"));
    let pages: BTreeMap<_, _> = files
        .map(|file| {
            let text = fs::read_to_string(Path::new(ROOT).join(&file)).unwrap();
            (file, Page::parse(&text))
        })
        .collect();
    assert!(pages.len() >= 25, "{} pages", pages.len());
    pages
}

/// Joins a relative path to a folder, without `..` in the result.
fn join(folder: &Path, relative: &str) -> PathBuf {
    let mut path = folder.to_owned();
    for part in Path::new(relative).components() {
        match part {
            std::path::Component::ParentDir => drop(path.pop()),
            std::path::Component::CurDir => {}
            part => path.push(part),
        }
    }
    path
}

/// Returns true if a link of the page `from` leads to a file of the repository and, if it names a heading, to
/// that heading. Links to other hosts count as valid.
fn leads_somewhere(pages: &BTreeMap<PathBuf, Page>, from: &Path, link: &str) -> bool {
    if ["http://", "https://", "mailto:"].iter().any(|scheme| link.starts_with(scheme)) {
        return true;
    }
    let (path, anchor) = link.split_once('#').map_or((link, None), |(path, anchor)| (path, Some(anchor)));
    let file = if path.is_empty() { from.to_owned() } else { join(from.parent().unwrap(), path) };
    match anchor {
        None => Path::new(ROOT).join(file).exists(),
        Some(anchor) => pages.get(&file).is_some_and(|page| page.anchors.iter().any(|known| known == anchor)),
    }
}

#[test]
fn links_and_anchors_lead_somewhere() {
    let pages = pages();
    let mut dead = Vec::new();
    for (file, page) in &pages {
        let links = page.links.iter().filter(|link| !leads_somewhere(&pages, file, link));
        dead.extend(links.map(|link| format!("{}: {link}", file.display())));
    }
    assert!(dead.is_empty(), "{dead:#?}");
}

#[test]
fn dead_links_are_found() {
    let pages = pages();
    for (link, expected) in [
        ("caching.md", true),
        ("caching.md#bounds", true),
        ("../README.md#quick-start", true),
        ("https://example.org/nowhere", true),
        ("nowhere.md", false),
        ("caching.md#nowhere", false),
        ("#nowhere", false),
        ("decisions/nowhere", false),
    ] {
        assert_eq!(leads_somewhere(&pages, Path::new("docs/errors.md"), link), expected, "{link}");
    }
}

/// Returns false if inline code is a path in the repository, and nothing exists there. A line number or arguments
/// may follow the path.
fn is_no_dead_path(code: &str) -> bool {
    let path = code.split([' ', ':']).next().unwrap_or_default();
    let in_folder =
        FOLDERS.iter().any(|folder| path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/')));
    let is_pattern = path.contains(['*', '<', '{', '…']);
    !in_folder || is_pattern || Path::new(ROOT).join(path).exists()
}

#[test]
fn paths_in_pages_exist() {
    assert!(!is_no_dead_path("src/nowhere.rs") && !is_no_dead_path("lab/nowhere --seconds 2"));
    let mut dead = Vec::new();
    for (file, page) in pages() {
        let paths = page.code.iter().filter(|code| !is_no_dead_path(code));
        dead.extend(paths.map(|path| format!("{}: {path}", file.display())));
    }
    assert!(dead.is_empty(), "{dead:#?}");
}

/// Checks that the types named in ARCHITECTURE.md are declared.
#[test]
fn types_in_the_architecture_exist() {
    let sources = files().into_iter().filter(|file| file.starts_with("src") || file.starts_with("crates"));
    let sources = sources.filter(|file| file.extension().is_some_and(|end| end == "rs"));
    let code: String = sources.map(|file| fs::read_to_string(Path::new(ROOT).join(file)).unwrap()).collect();
    let is_declared = |name: &str| {
        let kinds = ["struct", "enum", "trait"];
        kinds.iter().any(|kind| {
            code.split(&format!("{kind} {name}")).skip(1).any(|rest| !rest.starts_with(char::is_alphanumeric))
        })
    };
    let is_type =
        |code: &&String| code.starts_with(char::is_uppercase) && code.chars().all(char::is_alphanumeric);
    let pages = pages();
    let types: Vec<_> = pages[Path::new("ARCHITECTURE.md")].code.iter().filter(is_type).collect();
    let gone: Vec<_> = types.iter().filter(|name| !is_declared(name)).collect();
    assert!(gone.is_empty() && types.len() >= 6, "{gone:?} of {types:?}");
}

/// Checks that no comment or message points at a page that is not in the repository.
#[test]
fn pages_that_other_files_name_exist() {
    let files = files();
    let ends = ["rs", "py", "toml", "yml", "yaml", "conf", "txt", "service", "lua", "js", "html"];
    let is_text =
        |file: &&PathBuf| file.extension().is_some_and(|end| ends.iter().any(|known| end == *known));
    let mut dead = Vec::new();
    for file in files.iter().filter(is_text).filter(|file| !file.ends_with("pages.rs")) {
        let text = fs::read_to_string(Path::new(ROOT).join(file)).unwrap();
        let is_path = |c: char| c.is_ascii_alphanumeric() || ['_', '-', '.', '/'].contains(&c);
        for word in text.split(|c| !is_path(c)).map(|word| word.trim_start_matches('/').trim_end_matches('.'))
        {
            let named = word.strip_suffix(".md").is_some_and(|stem| !stem.is_empty());
            let beside = join(file.parent().unwrap(), word);
            let exists = || files.iter().any(|known| known.ends_with(word) || *known == beside);
            if named && !exists() {
                dead.push(format!("{}: {word}", file.display()));
            }
        }
    }
    assert!(dead.is_empty(), "{dead:#?}");
}

/// Returns the problems of a configuration on a page, or `None` if the configuration is valid. A configuration
/// without an upstream gets one before the check.
fn problems(text: &str, base: &Path) -> Option<String> {
    let has_upstream = text.contains("[[upstream]]");
    let upstream = if has_upstream { "" } else { "[[upstream]]\nurl = \"http://node.example\"\n" };
    let env = [
        ("SLOTFRONT_SHARED_URL", "redis://127.0.0.1:6379"),
        ("SLOTFRONT_SHARED_SECRET", "0123456789abcdef0123456789abcdef"),
    ];
    // An environment variable that no setting refers to would itself be a problem of the configuration.
    let env = env.into_iter().filter(|(name, _)| text.contains(&format!("env:{name}")));
    let env = env.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let config = config::from_text(&format!("{text}\n{upstream}"), &env, base);
    config.err().map(|problems| problems.to_string())
}

#[test]
fn configurations_in_pages_are_valid() {
    let dir = tempfile::tempdir().unwrap();
    for file in ["admin.token", "cert.pem", "key.pem"] {
        fs::write(dir.path().join(file), "0123456789abcdef0123456789abcdef").unwrap();
    }
    assert!(problems("[server]\nmax_bach = 1\n", dir.path()).is_some());
    let (mut checked, mut wrong) = (0, Vec::new());
    for (file, page) in pages() {
        let snippets =
            page.blocks.iter().filter(|(language, _)| language == "toml").map(|(_, text)| text.clone());
        let documents = page
            .documents()
            .into_iter()
            .filter(|(name, _)| Path::new(name).extension().is_some_and(|end| end == "toml"));
        for text in snippets.chain(documents.map(|(_, text)| text)) {
            checked += 1;
            wrong.extend(problems(&text, dir.path()).map(|found| format!("{}: {found}", file.display())));
        }
    }
    assert!(wrong.is_empty() && checked >= 6, "{checked} checked: {wrong:#?}");
}

/// Returns the arguments of a command that runs `slotfront` directly or through cargo. `None` for other commands.
#[cfg(feature = "dev")]
fn arguments(command: &[String]) -> Option<Vec<String>> {
    match command.split_first()? {
        (program, arguments) if program == "slotfront" => Some(arguments.to_owned()),
        (program, arguments) if program == "cargo" && arguments.first()? == "run" => {
            Some(arguments.split(|word| word == "--").nth(1)?.to_owned())
        }
        _ => None,
    }
}

/// Returns a message if inline code is a `slotfront` command with an unknown subcommand or option. Required
/// arguments may be missing.
#[cfg(feature = "dev")]
fn unknown_in(code: &str) -> Option<String> {
    let mut words = code.split_whitespace().peekable();
    if words.next() != Some("slotfront") {
        return None;
    }
    let mut command = slotfront::cli::arguments();
    command.build();
    while let Some(found) = words.peek().and_then(|word| command.find_subcommand(word)) {
        command = found.clone();
        words.next();
    }
    let (options, others): (Vec<_>, Vec<_>) = words.partition(|word| word.starts_with("--"));
    if command.has_subcommands() && !others.is_empty() {
        return Some(format!("{code}: no such command"));
    }
    let is_known = |option: &str| command.get_arguments().any(|known| known.get_long() == Some(&option[2..]));
    options.into_iter().find(|option| !is_known(option)).map(|option| format!("{code}: {option} is unknown"))
}

#[cfg(feature = "dev")]
#[test]
fn commands_in_pages_can_be_parsed() {
    assert!(unknown_in("slotfront sreve").is_some() && unknown_in("slotfront check --prob").is_some());
    let (mut checked, mut wrong) = (0, Vec::new());
    for (file, page) in pages() {
        wrong.extend(page.code.iter().filter_map(|code| unknown_in(code)));
        for arguments in page.commands().iter().filter_map(|command| arguments(command)) {
            checked += 1;
            let words = std::iter::once("slotfront".to_owned()).chain(arguments);
            if let Err(error) = slotfront::cli::arguments().try_get_matches_from(words) {
                wrong.push(format!("{}: {error}", file.display()));
            }
        }
    }
    assert!(wrong.is_empty() && checked >= 15, "{checked} checked: {wrong:#?}");
}

/// A request to slotfront that a page shows.
#[derive(Debug, Default)]
struct ShownRequest {
    verb: Option<String>,
    url: String,
    headers: Vec<String>,
    body: Option<String>,
}

impl ShownRequest {
    /// Reads a `curl` command. `None` for other commands.
    fn of_curl(command: &[String]) -> Option<Self> {
        let (program, arguments) = command.split_first()?;
        let mut request = (program == "curl").then(Self::default)?;
        let mut arguments = arguments.iter().cloned();
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "-X" => request.verb = arguments.next(),
                "-H" => request.headers.extend(arguments.next()),
                "-d" => request.body = arguments.next(),
                "-o" | "-w" => drop(arguments.next()),
                url if url.starts_with("http://") => url.clone_into(&mut request.url),
                option => assert!(option.starts_with('-'), "{option} in {command:?}"),
            }
        }
        Some(request)
    }

    /// Reads inline code such as `GET /livez`. `None` for other code.
    fn of_code(code: &str) -> Option<Self> {
        let (verb, path) = code.split_once(' ')?;
        let is_request = ["GET", "POST", "PUT"].contains(&verb) && path.starts_with('/');
        is_request.then(|| Self { verb: Some(verb.to_owned()), url: path.to_owned(), ..Self::default() })
    }

    /// Returns the URL at `gateway`, with placeholders filled in. `None` if the request is for another program.
    fn at(&self, gateway: &TestGateway) -> Option<String> {
        let (host, path) = match self.url.strip_prefix("http://") {
            None => ("", self.url.as_str()),
            Some(rest) => rest.split_at(rest.find('/')?),
        };
        let path = path.split('?').next()?.replace("<API_KEY>", "dev").replace(SUBSTITUTION, "dev");
        let path = path.replace("<id>", "shop").replace("<name>", "node-0");
        let is_public = ["/v3/", "/health", "/openrpc.json"].iter().any(|begin| path.starts_with(begin));
        let public = gateway.url.strip_suffix("/v3/dev")?;
        match host {
            _ if host.ends_with(":9090") => None,
            "" if is_public => Some(format!("{public}{path}")),
            "" => Some(format!("{}{path}", gateway.admin)),
            _ if host == "$ADMIN" || host.ends_with(":9899") => Some(format!("{}{path}", gateway.admin)),
            _ => Some(format!("{public}{path}")),
        }
    }

    /// Sends the request, and returns the HTTP status and the body.
    async fn send(&self, gateway: &TestGateway, url: &str) -> (u16, String) {
        let verb = self.verb.as_deref().unwrap_or(if self.body.is_some() { "POST" } else { "GET" });
        let mut request = gateway.client.request(verb.parse().unwrap(), url);
        for (name, value) in self.headers.iter().filter_map(|header| header.split_once(": ")) {
            request = request.header(name, value);
        }
        let reply = gateway.send(request.body(self.body.clone().unwrap_or_default())).await;
        (reply.status, reply.text)
    }
}

/// Starts a gateway with the token and the plans that requests on pages use.
async fn documented_gateway(dir: &Path) -> TestGateway {
    TestGateway::builder()
        .nodes(1)
        .config(|config| {
            config.auth.admin_token = Some(Secret::new(SUBSTITUTION));
            config.auth.keys_file = Some(dir.join("keys.toml"));
            let plan = config.plans["standard"].clone();
            config.plans.insert("free".to_owned(), plan);
        })
        .start()
        .await
}

#[tokio::test]
async fn curl_lines_in_pages_succeed() {
    let dir = tempfile::tempdir().unwrap();
    let gateway = documented_gateway(dir.path()).await;
    let (mut checked, mut wrong) = (0, Vec::new());
    for (file, page) in pages() {
        for request in page.commands().iter().filter_map(|command| ShownRequest::of_curl(command)) {
            let Some(url) = request.at(&gateway) else { continue };
            checked += 1;
            let (status, text) = request.send(&gateway, &url).await;
            let refused = serde_json::from_str::<Value>(&text).is_ok_and(|json| json.get("error").is_some());
            if status != 200 || refused {
                wrong.push(format!("{}: {request:?}: {status} {text}", file.display()));
            }
        }
    }
    assert!(wrong.is_empty() && checked >= 8, "{checked} checked: {wrong:#?}");
}

#[tokio::test]
async fn routes_in_pages_exist() {
    let dir = tempfile::tempdir().unwrap();
    let gateway = documented_gateway(dir.path()).await;
    let (mut checked, mut wrong) = (0, Vec::new());
    for (file, page) in pages() {
        for request in page.code.iter().filter_map(|code| ShownRequest::of_code(code)) {
            let url = request.at(&gateway).unwrap();
            checked += 1;
            let (status, _) = request.send(&gateway, &url).await;
            if [404, 405].contains(&status) {
                wrong.push(format!("{}: {request:?}: {status}", file.display()));
            }
        }
    }
    assert!(wrong.is_empty() && checked >= 15, "{checked} checked: {wrong:#?}");
}

//! The parts of Markdown pages that the tests check: links, headings, code, shell commands.

use std::iter::Peekable;
use std::str::Chars;

use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};

/// The text that replaces a shell substitution such as `$(cat readers.key)`.
pub(super) const SUBSTITUTION: &str = "substituted";

/// The word that ends a here-document on a page.
const DOCUMENT_END: &str = "END";

/// The parts of a Markdown page that the tests check.
#[derive(Debug, Default)]
pub(crate) struct Page {
    /// The targets of links and images, in order.
    pub(super) links: Vec<String>,
    /// The anchors of the headings.
    pub(super) anchors: Vec<String>,
    /// The inline code.
    pub(crate) code: Vec<String>,
    /// The fenced blocks with their languages.
    pub(super) blocks: Vec<(String, String)>,
}

impl Page {
    pub(crate) fn parse(text: &str) -> Self {
        let mut page = Self::default();
        let (mut heading, mut block) = (None::<String>, None::<(String, String)>);
        for (event, place) in Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter() {
            match event {
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => page.add_anchor(&heading.take().unwrap_or_default()),
                Event::Start(Tag::CodeBlock(kind)) => {
                    let CodeBlockKind::Fenced(language) = kind else { panic!("no fence: {}", &text[place]) };
                    assert!(text[place].trim_end().ends_with("```"), "a block has no end");
                    block = Some((language.into_string(), String::new()));
                }
                Event::End(TagEnd::CodeBlock) => page.blocks.extend(block.take()),
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    page.links.push(dest_url.into_string());
                }
                Event::Text(text) => {
                    if let Some(part) = block.as_mut().map(|(_, code)| code).or(heading.as_mut()) {
                        part.push_str(&text);
                    }
                }
                Event::Code(code) => {
                    if let Some(heading) = &mut heading {
                        heading.push_str(&code);
                    }
                    page.code.push(code.into_string());
                }
                Event::Html(html) | Event::InlineHtml(html) => {
                    for attribute in ["src=\"", "srcset=\""] {
                        let targets = html.split(attribute).skip(1).filter_map(|rest| rest.split('"').next());
                        page.links.extend(targets.map(str::to_owned));
                    }
                }
                _ => {}
            }
        }
        page
    }

    /// Adds the anchor that GitHub gives to a heading.
    fn add_anchor(&mut self, heading: &str) {
        let is_kept = |c: &char| c.is_alphanumeric() || [' ', '-', '_'].contains(c);
        let anchor: String = heading.to_lowercase().chars().filter(is_kept).collect();
        let anchor = anchor.replace(' ', "-");
        let before = self.anchors.iter().filter(|other| **other == anchor).count();
        self.anchors.push(if before == 0 { anchor } else { format!("{anchor}-{before}") });
    }

    /// Returns the text of the shell blocks. In a console block only the lines with a prompt count.
    fn shell(&self) -> impl Iterator<Item = String> {
        self.blocks.iter().filter_map(|(language, code)| match language.as_str() {
            "sh" => Some(code.clone()),
            "console" => {
                let typed = code.split_inclusive('\n').filter_map(|line| line.strip_prefix("$ "));
                Some(typed.collect())
            }
            _ => None,
        })
    }

    /// Returns the words of all commands in shell blocks. Each command begins with its program.
    pub(super) fn commands(&self) -> Vec<Vec<String>> {
        self.shell().flat_map(|shell| commands(&without_documents(&shell).0)).collect()
    }

    /// Returns the files that shell blocks write as here-documents (`cat > FILE <<'END'`), with their text.
    pub(super) fn documents(&self) -> Vec<(String, String)> {
        self.shell().flat_map(|shell| without_documents(&shell).1).collect()
    }
}

/// Splits shell text into two parts: the commands, and the files that it writes as here-documents, with their
/// text.
fn without_documents(shell: &str) -> (String, Vec<(String, String)>) {
    let (mut commands, mut documents) = (String::new(), Vec::new());
    let mut lines = shell.split_inclusive('\n');
    while let Some(line) = lines.next() {
        let Some((command, _)) = line.split_once(&format!("<<'{DOCUMENT_END}'")) else {
            commands.push_str(line);
            continue;
        };
        let file = command.rsplit('>').next().unwrap_or_default().trim().to_owned();
        documents.push((file, lines.by_ref().take_while(|line| line.trim_end() != DOCUMENT_END).collect()));
    }
    (commands, documents)
}

/// Returns the words of every command in shell text, without redirections, assignments and keywords.
fn commands(shell: &str) -> Vec<Vec<String>> {
    let mut reader = ShellReader { commands: vec![Vec::new()], word: None, drop_next: false };
    let mut chars = shell.chars().peekable();
    while let Some(next) = chars.next() {
        reader.read(next, &mut chars);
    }
    reader.end_word();
    let is_program = |word: &String| {
        let is_assignment = word.split_once('=').is_some_and(|(name, _)| name.chars().all(is_name_char));
        !is_assignment && !["do", "until", "while", "if", "then", "!"].contains(&word.as_str())
    };
    let words = |command: Vec<String>| command.into_iter().skip_while(|word| !is_program(word)).collect();
    let commands: Vec<Vec<String>> = reader.commands.into_iter().map(words).collect();
    commands.into_iter().filter(|command| !command.is_empty()).collect()
}

fn is_name_char(c: char) -> bool {
    c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_'
}

/// A reader of shell text, with the commands that it has read so far.
struct ShellReader {
    commands: Vec<Vec<String>>,
    /// The word that is being read. `None` between words.
    word: Option<String>,
    /// True if the next word is the file of a redirection. That word is left out.
    drop_next: bool,
}

impl ShellReader {
    fn read(&mut self, next: char, rest: &mut Peekable<Chars<'_>>) {
        match next {
            '\'' => self.word().extend(rest.by_ref().take_while(|c| *c != '\'')),
            '"' => {
                self.word();
                while let Some(c) = rest.next().filter(|c| *c != '"') {
                    self.read_substituted(c, rest);
                }
            }
            '\\' => match rest.next() {
                Some('\n') | None => {}
                Some(c) => self.word().push(c),
            },
            '#' if self.word.is_none() => while rest.next_if(|c| *c != '\n').is_some() {},
            '\n' | '|' | ';' | '&' => {
                self.end_word();
                self.commands.push(Vec::new());
            }
            '>' | '<' => {
                self.end_word();
                self.drop_next = true;
            }
            c if c.is_whitespace() => self.end_word(),
            c => self.read_substituted(c, rest),
        }
    }

    /// Reads a character of a word, or replaces a whole `$(…)` by [`SUBSTITUTION`].
    fn read_substituted(&mut self, next: char, rest: &mut Peekable<Chars<'_>>) {
        if next == '$' && rest.next_if_eq(&'(').is_some() {
            rest.by_ref().take_while(|c| *c != ')').for_each(drop);
            self.word().push_str(SUBSTITUTION);
        } else {
            self.word().push(next);
        }
    }

    fn word(&mut self) -> &mut String {
        self.word.get_or_insert_default()
    }

    fn end_word(&mut self) {
        let Some(word) = self.word.take() else { return };
        if !std::mem::take(&mut self.drop_next) {
            self.commands.last_mut().unwrap().push(word);
        }
    }
}

#[test]
fn parts_of_a_page() {
    let page = Page::parse(
        "# One `code`: two\n# Same\n# Same\nA [link](a/b.txt#c) of [`code`](d) in `src/x.rs`.\n\
         <img src=\"e.png\">\n```sh\n[no](link)\n```\n",
    );
    assert_eq!(page.anchors, ["one-code-two", "same", "same-1"]);
    assert_eq!(page.links, ["a/b.txt#c", "d", "e.png"]);
    assert_eq!(page.code, ["code", "code", "src/x.rs"]);
    assert_eq!(page.blocks, [("sh".to_owned(), "[no](link)\n".to_owned())]);
}

#[test]
fn shell_commands_are_read_in_words() {
    let shell = "A=1 run 'a b' \\\n  --key \"$(cat x.key)/y\" > out # comment\nuntil curl -d '{\"a\":1}' | grep -q x; do\n";
    let (text, documents) = without_documents(&format!("cat > f.toml <<'END'\n[a]\nEND\n{shell}"));
    assert_eq!(documents, [("f.toml".to_owned(), "[a]\n".to_owned())]);
    let substituted = format!("{SUBSTITUTION}/y");
    let expected: [&[&str]; 3] =
        [&["run", "a b", "--key", &substituted], &["curl", "-d", r#"{"a":1}"#], &["grep", "-q", "x"]];
    assert_eq!(commands(&text), expected);
}

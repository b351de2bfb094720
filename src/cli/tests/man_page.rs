//! The man page, made from the definition of the command line. With the variable `WRITE` set, the test writes it.

use std::path::Path;

use clap::Command;
use clap_mangen::Man;

use super::*;

const FILE: &str = "deploy/slotfront.1";

#[test]
fn man_page_equals_the_definition() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(FILE);
    let new = page();
    if std::env::var_os("WRITE").is_some() {
        std::fs::write(&path, &new).unwrap();
    }
    let old = std::fs::read_to_string(path).unwrap_or_default();
    assert!(old == new, "{FILE} is not as defined. Write it: WRITE=1 cargo test --lib man_page");
}

/// Returns one page about all commands, because nobody looks for a page of each.
fn page() -> String {
    let mut all = Cli::command();
    all.build();
    let man = Man::new(all.clone());
    let mut page = text(|out| man.render_name_section(out));
    // What the head defines is defined once.
    let at = page.find(".SH NAME").unwrap();
    page.insert_str(at, concat!(".TH SLOTFRONT 1 \"\" \"slotfront ", env!("CARGO_PKG_VERSION"), "\"\n"));
    page += ".SH SYNOPSIS\n";
    page += body(&text(|out| man.render_synopsis_section(out)));
    page += ".SH DESCRIPTION\n";
    page += body(&text(|out| man.render_description_section(out)));
    page += ".SH COMMANDS\n";
    for command in all.get_subcommands() {
        page += &about(command);
    }
    page += &after(&all);
    page.lines().map(|line| line.trim_end().to_owned() + "\n").collect::<String>()
        + ".SH SEE ALSO\nhttps://github.com/slotfront/slotfront\n"
}

/// Returns what is said of a command and of those inside it.
fn about(command: &Command) -> String {
    if command.get_name() == "help" {
        return String::new();
    }
    let man = Man::new(command.clone());
    let name = command.get_bin_name().unwrap_or(command.get_name());
    let mut page = format!(".SS {name}\n");
    page += body(&text(|out| man.render_description_section(out)));
    page += ".PP\n";
    page += body(&text(|out| man.render_synopsis_section(out)));
    page += body(&text(|out| man.render_options_section(out)));
    page += &after(command);
    page + &command.get_subcommands().map(about).collect::<String>()
}

/// Returns a section without its heading and the definitions before that.
fn body(section: &str) -> &str {
    section.split_once("\n.SH ").map_or("", |(_, rest)| rest.split_once('\n').map_or("", |(_, body)| body))
}

/// Returns the text after a command's options, line by line as it is.
fn after(command: &Command) -> String {
    let Some(after) = command.get_after_help() else { return String::new() };
    let line = |line: &str| format!("\\&{}\n", line.replace('\\', "\\e").replace('-', "\\-"));
    format!(".PP\n.nf\n{}.fi\n", after.to_string().lines().map(line).collect::<String>())
}

fn text(render: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> String {
    let mut text = Vec::new();
    render(&mut text).unwrap();
    String::from_utf8(text).unwrap()
}

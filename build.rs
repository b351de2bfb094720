//! Gives the build the git revision of its source, for `--version` and the metric `build_info`. Never fails: if no
//! revision can be found, the build has the revision `unknown`.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-env-changed=SLOTFRONT_REVISION");
    println!("cargo::rerun-if-changed=build.rs");
    let told = std::env::var("SLOTFRONT_REVISION").ok().filter(|told| !told.is_empty());
    let revision = told.or_else(found).unwrap_or_else(|| "unknown".to_owned());
    println!("cargo::rustc-env=SLOTFRONT_REVISION={}", revision.trim());
}

/// Returns the git revision of the checkout, or the revision that `cargo package` recorded in the package. A debug
/// build gets `debug`.
fn found() -> Option<String> {
    let root = std::env::var("CARGO_MANIFEST_DIR").ok()?;
    if std::env::var("PROFILE").is_ok_and(|profile| profile == "debug") {
        // A debug build is not repeated after each commit, so a revision in it could be outdated.
        return Some("debug".to_owned());
    }
    if Path::new(&root).join(".git").exists() {
        let git = |arguments: &[&str]| {
            let out = Command::new("git").args(["-C", &root]).args(arguments).output().ok()?;
            out.status.success().then(|| String::from_utf8_lossy(&out.stdout).trim().to_owned())
        };
        // Git appends to this log at each commit and each checkout. Cargo then runs this script again.
        if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]) {
            println!("cargo::rerun-if-changed={}", Path::new(&root).join(log).display());
        }
        return git(&["rev-parse", "--short=12", "HEAD"]);
    }
    let packaged = std::fs::read_to_string(Path::new(&root).join(".cargo_vcs_info.json")).ok()?;
    let (_, after) = packaged.split_once("\"sha1\": \"")?;
    after.get(..12).map(str::to_owned)
}

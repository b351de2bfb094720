//! The workspace as a whole: each member uses the workspace's lints, and the container image copies all files that
//! cargo needs.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::tidy::members;

/// Returns the packages of the workspace, as cargo reads them.
fn packages() -> Vec<Value> {
    let root = env!("CARGO_MANIFEST_DIR");
    let arguments = ["metadata", "--format-version", "1", "--no-deps", "--offline", "--locked"];
    let output = Command::new(env!("CARGO")).args(arguments).current_dir(root).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    serde_json::from_value(metadata["packages"].take()).unwrap()
}

/// Returns the folders and files that the container image copies out of the repository.
fn copied() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let dockerfile = std::fs::read_to_string(root.join("deploy/Dockerfile")).unwrap();
    let lines = dockerfile.lines().filter_map(|line| line.strip_prefix("COPY "));
    let sources = lines.filter(|line| !line.starts_with("--from")).flat_map(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        words[..words.len() - 1].iter().map(|source| root.join(source)).collect::<Vec<_>>()
    });
    sources.collect()
}

#[test]
fn the_image_copies_every_member_and_target() {
    let copied = copied();
    for source in &copied {
        assert!(source.exists(), "deploy/Dockerfile copies {source:?}, which is not there");
    }
    let packages = packages();
    assert_eq!(packages.len(), members().len());
    for package in packages {
        let targets = package["targets"].as_array().unwrap().iter().map(|target| &target["src_path"]);
        for file in targets.chain([&package["manifest_path"]]) {
            let file = file.as_str().unwrap();
            let is_copied = copied.iter().any(|source| Path::new(file).starts_with(source));
            assert!(is_copied, "deploy/Dockerfile does not copy {file}, which cargo needs");
        }
    }
}

#[test]
fn every_member_has_the_lints_of_the_workspace() {
    for member in members() {
        let manifest = std::fs::read_to_string(member.folder.join("Cargo.toml")).unwrap();
        let manifest: toml::Table = toml::from_str(&manifest).unwrap();
        let lints = manifest.get("lints").and_then(|lints| lints.get("workspace"));
        assert_eq!(lints.and_then(toml::Value::as_bool), Some(true), "{}", member.name);
    }
}

/// The fuzz targets and the oracle are projects of their own, which no build of the workspace locks again.
#[test]
fn lock_files_beside_the_workspace_have_every_dependency() {
    let read = |path: &str| {
        let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap();
        text.parse::<toml::Table>().unwrap()
    };
    let is_needed = |(_, how): &(&String, &toml::Value)| how.get("optional").is_none();
    let manifest = read("Cargo.toml");
    let needed: Vec<_> = manifest["dependencies"].as_table().unwrap().iter().filter(is_needed).collect();
    assert!(needed.len() > 30);
    for path in ["fuzz/Cargo.lock", "tests/real/oracle/Cargo.lock"] {
        let lock = read(path);
        let packages = lock["package"].as_array().unwrap();
        let own = packages.iter().find(|package| package["name"].as_str() == Some("slotfront")).unwrap();
        // A name may have a version behind it.
        let names = own["dependencies"].as_array().unwrap().iter().filter_map(toml::Value::as_str);
        let locked: Vec<_> = names.filter_map(|name| name.split(' ').next()).collect();
        for (name, _) in &needed {
            assert!(
                locked.contains(&name.as_str()),
                "{path} lacks {name}: update it as docs/testing.md says"
            );
        }
    }
}

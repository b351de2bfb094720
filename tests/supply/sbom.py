#!/usr/bin/env python3
"""Writes a software bill of materials of the program, as a CycloneDX 1.5 document.

The document has every crate of a normal build with its version, licence, checksum and dependencies. The only sources are
Cargo.toml and Cargo.lock.

usage: tests/supply/sbom.py [--check] [FILE]      writes to standard output without FILE; --check only validates the document
"""

import argparse
import json
import re
import subprocess
import sys
import tomllib
import uuid
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def metadata():
    rustc = subprocess.run(["rustc", "--version", "--verbose"], check=True, capture_output=True, text=True).stdout
    platform = re.search(r"^host: (\S+)$", rustc, re.M).group(1)
    command = ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", platform]
    return json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout)


def built(graph):
    """Returns the packages of the program with their dependencies, without those for tests and benches only."""
    nodes, found, next_ones = {node["id"]: node for node in graph["resolve"]["nodes"]}, {}, [graph["resolve"]["root"]]
    while next_ones:
        package = next_ones.pop()
        if package not in found:
            found[package] = [dependency["pkg"] for dependency in nodes[package]["deps"]
                              if any(kind["kind"] != "dev" for kind in dependency["dep_kinds"])]
            next_ones += found[package]
    return found


def document(graph):
    packages = {package["id"]: package for package in graph["packages"]}
    locked = tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]
    sums = {(package["name"], package["version"]): package.get("checksum") for package in locked}
    purl = lambda id: f"pkg:cargo/{packages[id]['name']}@{packages[id]['version']}"

    def component(id, kind):
        package = packages[id]
        licence = (package["license"] or "").replace("/", " OR ")
        made = {"type": kind, "bom-ref": purl(id), "name": package["name"], "version": package["version"], "purl": purl(id),
                "licenses": [{"expression": licence}]}
        if checksum := sums[package["name"], package["version"]]:
            made["hashes"] = [{"alg": "SHA-256", "content": checksum}]
        if package["repository"]:
            made["externalReferences"] = [{"type": "vcs", "url": package["repository"]}]
        return made

    tree, root = built(graph), graph["resolve"]["root"]
    others = sorted((id for id in tree if id != root), key=purl)
    # The serial number is a hash of the contents, so equal dependencies give equal documents.
    number = uuid.uuid5(uuid.NAMESPACE_URL, "\n".join(map(purl, others)) + purl(root))
    return {
        "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1, "serialNumber": f"urn:uuid:{number}",
        "metadata": {"component": component(root, "application")},
        "components": [component(id, "library") for id in others],
        "dependencies": [{"ref": purl(id), "dependsOn": sorted(map(purl, tree[id]))} for id in [root, *others]],
    }


def problems(sbom, own):
    """Yields the violations of CycloneDX 1.5 and of its readers' rules. Crates of this workspace have no checksum."""
    parts = [sbom["metadata"]["component"], *sbom["components"]]
    refs = [part["bom-ref"] for part in parts]
    if len(set(refs)) != len(refs):
        yield "a bom-ref occurs twice"
    if not re.fullmatch(r"urn:uuid:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", sbom["serialNumber"]):
        yield f"serialNumber {sbom['serialNumber']}"
    for part in parts:
        if not re.fullmatch(r"pkg:cargo/[\w-]+@\d+\.\d+\.\d+[\w.+-]*", part["purl"]):
            yield f"{part['name']}: purl {part['purl']}"
        if not part["licenses"][0]["expression"]:
            yield f"{part['name']}: no licence"
        if part["name"] not in own and not re.fullmatch(r"[0-9a-f]{64}", part.get("hashes", [{}])[0].get("content", "")):
            yield f"{part['name']}: no checksum"
    for entry in sbom["dependencies"]:
        for ref in [entry["ref"], *entry["dependsOn"]]:
            if ref not in refs:
                yield f"the dependency {ref} is not a component"
    if not 50 < len(parts) < 400:
        yield f"{len(parts)} components"


def main():
    parser = argparse.ArgumentParser(description="Writes a CycloneDX document of the program's dependencies.")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("file", nargs="?")
    options = parser.parse_args()
    graph = metadata()
    sbom = document(graph)
    wrong = list(problems(sbom, {package["name"] for package in graph["packages"] if not package["source"]}))
    if wrong:
        sys.exit("\n".join(wrong))
    text = json.dumps(sbom, indent=2) + "\n"
    if options.check:
        print(f"{len(sbom['components'])} crates, each with a licence and a checksum")
    elif options.file:
        Path(options.file).write_text(text)
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main()

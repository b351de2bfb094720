#!/usr/bin/env python3
"""Prints `version=X.Y.Z` if a tag and every file that names the version agree, and otherwise what does not.

usage: tests/supply/version.py [vX.Y.Z]      without a tag, only the files are compared
"""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Where else the version stands, and how.
ELSEWHERE = {
    "deploy/Dockerfile": r'image\.version="([^"]+)"',
    "deploy/compose/compose.yaml": r"image: slotfront:(\S+)",
    "deploy/helm/slotfront/Chart.yaml": r'^appVersion: "?([^"\s]+)"?$',
    "deploy/slotfront.1": r'^\.TH SLOTFRONT 1 "" "slotfront ([^"]+)"$',
    "CHANGELOG.md": r"^## (\S+)$",
}


def main():
    workspace = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]
    version = workspace["package"]["version"]
    named = {f"Cargo.toml: {name}": crate["version"] for name, crate in workspace["dependencies"].items()
             if isinstance(crate, dict) and "path" in crate and "version" in crate}
    for file, pattern in ELSEWHERE.items():
        found = re.search(pattern, (ROOT / file).read_text(), re.M)
        named[file] = found.group(1) if found else None
    if len(sys.argv) > 1:
        named["the tag"] = sys.argv[1].removeprefix("v")
    wrong = [f"{place} says {other}, and the crates are of {version}" for place, other in named.items() if other != version]
    if wrong:
        sys.exit("\n".join(wrong))
    print(f"version={version}")


if __name__ == "__main__":
    main()

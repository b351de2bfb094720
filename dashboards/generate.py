#!/usr/bin/env python3
"""Writes the dashboards of `panels.py` as Grafana's JSON beside this file. With --check it only compares.

usage: dashboards/generate.py [--check]
"""

import json
import sys
from pathlib import Path

from panels import DASHBOARDS

HERE = Path(__file__).resolve().parent


def generated():
    """Every dashboard's file and text."""
    return {HERE / f"{name}.json": json.dumps(content, indent=2) + "\n" for name, content in DASHBOARDS}


def outdated():
    """Files that differ from what is generated, or that nothing generates."""
    texts = generated()
    strangers = set(HERE.glob("*.json")) - set(texts)
    return sorted(strangers | {file for file, text in texts.items() if not file.exists() or file.read_text() != text})


def main(arguments):
    if arguments not in ([], ["--check"]):
        sys.exit(__doc__)
    if arguments:
        sys.exit("".join(f"{file.name} is not what generate.py writes\n" for file in outdated()) or None)
    for file, text in generated().items():
        file.write_text(text)


if __name__ == "__main__":
    main(sys.argv[1:])

#!/usr/bin/env python3
"""Writes the dashboards of `panels.py` as Grafana's JSON beside this file. With --check it only compares.

usage: dashboards/generate.py [--check], by a Python that has the packages of requirements.txt:

python3 -m venv target/dashboards/venv && target/dashboards/venv/bin/pip install --requirement dashboards/requirements.txt
target/dashboards/venv/bin/python dashboards/generate.py
"""

import json
import sys
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from panels import DASHBOARDS

HERE = Path(__file__).resolve().parent


def generated():
    """Every dashboard's file and text."""
    text = lambda content: json.dumps(content, cls=JSONEncoder, sort_keys=True, indent=2) + "\n"
    return {HERE / f"{name}.json": text(content) for name, content in DASHBOARDS}


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

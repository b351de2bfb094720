"""Lists every place of a node's source that stores an account, and compares it with the checked list.

usage: python3 lab/store_sites VERSION|FOLDER ... [--list]

VERSION is one of the solana-runtime crate. Cargo downloads it from crates.io. FOLDER is an unpacked crate, for versions
that are not there. sites.toml, beside this file, names the rule that covers each place. --list
prints the places with their rules.

A place is a call of a function that stores, by the name of the function around it, the function that it calls and the
account that it names. Functions that store an account which their caller names are such functions, too. Code that is
compiled for tests only is left out.

Exits with 1 if a place is not in sites.toml. Its rule must then be found, or the version must not be followed: see
docs/following.md. The places of sites.toml that a version does not have are only counted.
"""

import argparse
import collections
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import tomllib

from rust_source import functions, product_code

HERE = pathlib.Path(__file__).resolve().parent
CRATE = "solana-runtime"
# The names of the functions that store an account: those of the accounts database, and those of the bank through which
# everything else stores.
STORES = re.compile(r"store_\w*accounts?(_\w+)?|store_(cached|uncached|frozen|unfrozen)\w*|update_sysvar_account")


def download(version):
    """Returns the folder of a version's source."""
    with tempfile.TemporaryDirectory() as folder:
        # Outside of a workspace, whose lock file would choose the version.
        done = subprocess.run(["cargo", "info", "--verbose", f"{CRATE}@{version}"], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"cargo does not find {CRATE} {version}: {done.stderr.strip()}")
    home = pathlib.Path(os.environ.get("CARGO_HOME", pathlib.Path.home() / ".cargo"))
    found = list(home.glob(f"registry/src/*/{CRATE}-{version}"))
    return found[0] if found else sys.exit(f"cargo has not unpacked {CRATE} {version} in {home}")


def places(folder):
    """Returns the places of a crate that store an account: (function, call) with the files that have them."""
    root, bodies, for_tests = folder / "src", [], {"tests"}
    files = {path.relative_to(root): product_code(path.read_text()) for path in sorted(root.rglob("*.rs"))}
    if not files:
        sys.exit(f"{folder} has no source files")
    for _, modules in files.values():
        for_tests |= modules
    for file, (text, _) in files.items():
        if not for_tests.intersection(file.with_suffix("").parts):
            bodies += [(str(file), function) for function in functions(text)]
    # The position of the account among the arguments of each function that stores.
    stores = {}
    while True:
        before, found = len(stores), collections.defaultdict(set)
        for file, function in bodies:
            for call in function.calls(STORES, stores):
                found[(function.name, call.text)].add(file)
                position = call.position_among(function.params)
                if position is not None:
                    stores.setdefault(function.name, position)
        if len(stores) == before:
            return found


def read_rules():
    """Returns the rule of each place, and what each rule says."""
    listed = tomllib.loads((HERE / "sites.toml").read_text())
    rules = {}
    for name, sites in listed["sites"].items():
        if name not in listed["rules"]:
            sys.exit(f"sites.toml: the rule {name} is not described")
        for site in sites:
            function, call = site.split(": ", 1)
            if (function, call) in rules:
                sys.exit(f"sites.toml: {site} has two rules")
            rules[(function, call)] = name
    return rules


def main():
    args = argparse.ArgumentParser(prog="store_sites", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("sources", metavar="VERSION|FOLDER", nargs="+")
    args.add_argument("--list", action="store_true", help="print the places with their rules")
    args = args.parse_args()
    rules, unknown = read_rules(), 0
    for source in args.sources:
        folder = pathlib.Path(source)
        found = places(folder if folder.is_dir() else download(source))
        new = {place: files for place, files in found.items() if place not in rules}
        unknown += len(new)
        absent = len(rules.keys() - found.keys())
        print(f"{source}: {len(found)} places, {len(new)} of them not in sites.toml, {absent} listed places are not there")
        for place, files in sorted((found if args.list else new).items()):
            print(f"  {rules.get(place, 'NO RULE')}: {place[0]}: {place[1]} ({', '.join(sorted(files))})")
    sys.exit(1 if unknown else 0)


if __name__ == "__main__":
    main()

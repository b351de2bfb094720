#!/usr/bin/env python3
"""Lists the files under src whose functions run for each hit, and for each miss.

The program is built with LLVM's coverage counters and started three times in front of a simulated node: for hits, for
misses, and for no calls at all. A file counts if one of its functions has run about once more for each call than in
the process without calls, so start, background tasks and what runs now and then do not count. Needs `rustup`, because the
counters are read with its component llvm-tools.

usage: lab/files.py [--list]
"""

import http.client
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
TARGET = ROOT / "target" / "files"
CALLS = 1000
# The part of the calls for which a function must have run. Some calls for hits come just after a new slot, and miss.
MOST = 0.9
ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"

if len(sys.argv) > 1 and sys.argv[1].endswith("rustc"):
    # Cargo runs this script in place of the compiler for the crates of the workspace.
    os.execv(sys.argv[1], [*sys.argv[1:], "-C", "instrument-coverage"])

if sys.argv[1:] not in ([], ["--list"]):
    sys.exit(__doc__)

os.environ["CARGO_TARGET_DIR"] = str(TARGET)
sys.path.append(str(ROOT / "tests" / "real"))
from gateway import BINARY, Nodes, Serve, free_port, keys, upstreams  # noqa: E402


def tools():
    """Returns the folder of LLVM's tools for the compiler in use."""
    subprocess.run(["rustup", "component", "add", "llvm-tools"], cwd=ROOT, check=True, stderr=subprocess.DEVNULL)
    root = subprocess.run(["rustc", "--print", "sysroot"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
    return next(pathlib.Path(root).glob("lib/rustlib/*/bin/llvm-cov")).parent


def build():
    # The dependencies come from the usual build folder. Only the crates of the workspace are compiled again.
    env = os.environ | {"RUSTC_WORKSPACE_WRAPPER": str(ROOT / "lab" / "files.py"), "CARGO_BUILD_BUILD_DIR": str(ROOT / "target")}
    # The build script of the workspace is instrumented, too.
    env["LLVM_PROFILE_FILE"] = "/dev/null"
    subprocess.run(["cargo", "build", "--locked", "--bin", "slotfront"], cwd=ROOT, env=env, check=True)


def account():
    """Returns the address of an account that does not exist."""
    number, text = random.getrandbits(256) | 1 << 255, ""
    while number:
        number, digit = divmod(number, 58)
        text = ALPHABET[digit] + text
    return text


def counts(folder, name, node, addresses, llvm):
    """Starts the program, asks for these accounts, and returns how often each function ran, by its file and line."""
    config, port, profile = folder / f"{name}.toml", free_port(), folder / f"{name}.profraw"
    config.write_text(
        f'[server]\nlisten = "127.0.0.1:{port}"\nadmin_listen = "127.0.0.1:0"\n[auth]\nkeys_file = "{folder}/keys.toml"\n'
        f'[plans.standard]\nrps = 1000000\nburst = 1000000\n{upstreams([node])}'
    )
    os.environ["LLVM_PROFILE_FILE"] = str(profile)
    with Serve(config) as serve:
        os.environ["LLVM_PROFILE_FILE"] = "/dev/null"
        serve.ready()
        connection = http.client.HTTPConnection("127.0.0.1", port)
        for address in addresses:
            call = {"jsonrpc": "2.0", "id": 1, "method": "getAccountInfo", "params": [address, {"encoding": "base64"}]}
            connection.request("POST", f"/v3/{KEY}", json.dumps(call), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            if answer.status != 200 or b'"result"' not in answer.read():
                sys.exit(f"a call got {answer.status}")
        connection.close()
        serve.stop()
    merged = profile.with_suffix(".profdata")
    subprocess.run([llvm / "llvm-profdata", "merge", "-sparse", profile, "-o", merged], check=True)
    export = [llvm / "llvm-cov", "export", "-format=text", "-skip-expansions", BINARY, f"-instr-profile={merged}"]
    functions = json.loads(subprocess.run(export, check=True, capture_output=True).stdout)["data"][0]["functions"]
    ran = {}
    for function in functions:
        place = (function["filenames"][0], *function["regions"][0][:2])
        # Each instance of a generic function has its own counter.
        ran[place] = ran.get(place, 0) + function["count"]
    return ran


def files(ran, idle):
    """Returns the files with a function that ran for each call."""
    each = {place[0] for place, count in ran.items() if count - idle.get(place, 0) >= MOST * CALLS}
    source = ROOT / "src"
    return sorted(str(pathlib.Path(file).relative_to(ROOT)) for file in each if pathlib.Path(file).is_relative_to(source))


if __name__ == "__main__":
    LLVM = tools()
    build()
    with tempfile.TemporaryDirectory() as made, Nodes() as node:
        folder = pathlib.Path(made)
        KEY = keys(folder / "keys.toml", "create", "--name", "a")
        loads = {"hit": [account()] * CALLS, "miss": [account() for _ in range(CALLS)]}
        idle = counts(folder, "idle", node.port, [], LLVM)
        for name, addresses in loads.items():
            found = files(counts(folder, name, node.port, addresses, LLVM), idle)
            print(f"{name}: {len(found)} files")
            if "--list" in sys.argv:
                print("".join(f"  {file}\n" for file in found), end="")

#!/usr/bin/env python3
"""Injects the same node faults behind slotfront, nginx and HAProxy, and prints the results of the calls as a Markdown table.

    lab/faults.py [--seconds S] [--only GATEWAY ...] [--follow] [--slotfront PATH] [--target FOLDER]

The gateways are tested one after the other, each in front of three simulated nodes. Sixteen callers request about a
hundred accounts at processed. One node has a fault for some seconds, and recovers. The next fault begins once the
gateway uses the node again. The first fault is there when the gateway starts. In some phases another caller makes calls
of its own, and these have a row of their own. The settings of the gateways are in lab/gateways. With --follow, only
slotfront is tested: it follows the chain, and the callers request all three commitments in turn.

A call succeeds if its answer is an account of the right shape with the value of the chain at its slot. Any other result
is a failure. A call of a method that all nodes refuse succeeds if it gets an error, with `Retry-After` if the nodes send
that. A call with `minContextSlot` succeeds if its answer is not older than that, or if it is refused with -32016.
The gateway has one core, and nodes and callers have another.

Installs nginx and HAProxy (Debian packages) if they are missing. All traffic stays on the loopback interface.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

sys.dont_write_bytecode = True
import lab

GATEWAYS = "slotfront", "nginx", "HAProxy"
NODES = 3
# No gateway can answer while no node does.
HOPELESS = "HTTP 503 from all"


class Fault:
    """The counts of the calls through one gateway during one fault."""

    def __init__(self, line):
        self.name, *counts = line.split("\t")
        self.calls, self.failed, self.old, self.p50, self.p99, self.node_requests, *self.behind = map(int, counts)

    def columns(self):
        milliseconds = [f"{micros / 1000:.1f}" for micros in (self.p50, self.p99)]
        return [f"{self.failed:,} of {self.calls:,}", f"{self.old:,}", " / ".join(milliseconds)]


def settings(servers, file, **fields):
    """Copies a file of lab/gateways to the servers' folder and fills in its fields. Returns the path of the copy."""
    text = (lab.ROOT / "lab" / "gateways" / file).read_text()
    for name, value in fields.items():
        text = text.replace(f"@{name.upper()}@", str(value))
    filled = servers.folder / file
    filled.write_text(text)
    return filled


def prepare(name, servers, slotfront, nodes, follow, nginx_cache=""):
    """Returns the command that starts a gateway, its URL, and the URL that tells whether it is ready."""
    port, admin = lab.free_port(), lab.free_port()
    url = ready = f"http://127.0.0.1:{port}/"
    fields = {"port": port, "folder": servers.folder} | {f"node_{i}": node for i, node in enumerate(nodes)}
    if name == "slotfront":
        file = settings(servers, "slotfront.toml", admin=admin, follow="on" if follow else "off", **fields)
        url += f"v3/{lab.make_key(slotfront, servers.folder / 'keys.toml')}"
        ready = f"http://127.0.0.1:{admin}/readyz"
        command = [slotfront, "serve", "--config", file]
    elif name == "nginx":
        user = "user root;" if os.geteuid() == 0 else ""
        command = ["nginx", "-p", servers.folder, "-c", settings(servers, "nginx.conf", user=user, cache=nginx_cache, **fields)]
    else:
        command = ["haproxy", "-db", "-f", settings(servers, "haproxy.cfg", **fields)]
    return command, url, ready


def await_ready(url, process):
    """Waits until a URL answers with a status below 500. The proxies pass on a node's 405."""
    while process.poll() is None:
        try:
            urllib.request.urlopen(url).close()
            return
        except urllib.error.HTTPError as refused:
            if refused.code < 500:
                return
        except OSError:
            pass
        time.sleep(0.02)
    sys.exit(f"a gateway ended with {process.returncode}")


def play(name, program, slotfront, seconds, follow):
    """Injects every fault behind one gateway and returns the counts of each."""
    with tempfile.TemporaryDirectory() as folder, lab.Servers(folder) as servers:
        nodes = [lab.free_port() for _ in range(NODES)]
        gateway, url, ready = prepare(name, servers, slotfront, nodes, follow)
        command = ["taskset", "-c", lab.LOAD_CORE, program, url, "--nodes", ",".join(map(str, nodes))]
        command += ["--seconds", seconds, *(["--commitments", "processed,confirmed,finalized"] if follow else [])]
        pipes = {name: subprocess.PIPE for name in ("stdin", "stdout", "stderr")} | {"text": True}
        with subprocess.Popen([str(word) for word in command], **pipes) as player:
            # The first line says that the nodes serve.
            player.stdout.readline()
            await_ready(ready, servers.start(lab.SERVER_CORE, gateway))
            out, err = player.communicate("\n")
    if player.returncode:
        sys.exit(f"{name}: {err[:1000]}")
    lines = out.removesuffix("\n").split("\n")
    for remark in (line for line in lines if line.startswith("#")):
        print(f"{name}: {remark[2:]}", file=sys.stderr)
    return [Fault(line) for line in lines if not line.startswith("#")]


def summary(name, faults):
    """Returns a line with the sums over all faults except HOPELESS."""
    counted = [fault for fault in faults if fault.name != HOPELESS]
    calls, failed, old = (sum(getattr(fault, field) for fault in counted) for field in ("calls", "failed", "old"))
    return f"- {name}: {failed:,} of {calls:,} calls failed, and {old:,} answers were more than 60 slots old."


def version(command):
    """Returns the version number from the first line of a command's output."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True)
    words = done.stdout.splitlines()[0].removeprefix("nginx version: ").split()
    return next(word for word in words if any(c.isdigit() for c in word)).removeprefix("nginx/")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=4, help="the duration of each fault")
    parser.add_argument("--only", nargs="*", metavar="GATEWAY", help=f"measure only these: {', '.join(GATEWAYS)}")
    parser.add_argument("--follow", action="store_true", help="measure only slotfront, with following on and callers of all commitments")
    parser.add_argument("--slotfront", type=pathlib.Path, metavar="PATH", help="the slotfront program (default: the one in the target folder)")
    parser.add_argument("--target", type=pathlib.Path, help="a folder with the built programs (default: build them)")
    options = parser.parse_args()
    wanted = [word.lower() for word in options.only or (["slotfront"] if options.follow else GATEWAYS)]
    names = [name for name in GATEWAYS if name.lower() in wanted]
    if len(names) != len(set(wanted)):
        parser.error(f"--only takes names from: {', '.join(GATEWAYS)}")
    if options.follow and wanted != ["slotfront"]:
        parser.error("--follow measures only slotfront")
    lab.require_two_cores()
    lab.install("nginx", "nginx-light")
    lab.install("haproxy", "haproxy")
    target = lab.programs(options.target, "faults", slotfront=not options.slotfront)
    program = target / "examples" / "faults"
    slotfront = (options.slotfront or target / "slotfront").resolve()
    results = {name: play(name, program, slotfront, options.seconds, options.follow) for name in names}
    versions = {"nginx": version(["nginx", "-v"]), "HAProxy": version(["haproxy", "-v"])}
    print(f"{lab.machine()}; each fault {options.seconds:g} s; " + ", ".join(f"{name} {versions[name]}" for name in versions) + "\n")
    head = [column for name in names for column in (f"{name}: failed", "old", "p50 / p99, ms")]
    print(f"| fault | {' | '.join(head)} |")
    print("| --- |" + " --- |" * len(head))
    for row in zip(*results.values()):
        columns = [column for fault in row for column in fault.columns()]
        print(f"| {row[0].name} | {' | '.join(columns)} |")
    print(f"\nWithout the row of {HOPELESS}:\n")
    for name in names:
        print(summary(name, results[name]))


if __name__ == "__main__":
    main()

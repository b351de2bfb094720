#!/usr/bin/env python3
"""Pays through slotfront, nginx and a node alone while nodes fail, and prints what the wallet was told as a Markdown table.

    lab/confirm.py [--payments N] [--at-once N] [--only GATEWAY ...] [--target FOLDER]
    lab/confirm.py --adversary [--payments N] [--at-once N] [--target FOLDER]

Each gateway stands in front of three simulated nodes with slots of 100 ms. A program with @solana/web3.js, unmodified,
sends signed transfers and waits for each with confirmTransaction at confirmed, as wallets do. It gets one address, and
each of its wallets has a connection of its own. A quarter of the payments is made while all nodes are well, a quarter while
one is killed, a quarter while one hangs, and a quarter while one is 100 slots behind. The fault comes once the wallets pay.
"A node alone" is the first node, which is the one with the faults.

A false expiry is a payment that the library reports as expired although it landed. A lost confirmation landed, too, but
the library says nothing within 25 seconds, reports another error, or takes all memory of its process. What is true,
another node says.

With `--adversary`, the payments go through slotfront alone while its nodes are well: first without another client, then
while another key joins and leaves the watch of each signature, floods accounts, searches the history and is refused again
and again. The wallets subscribe to each signature themselves and ask for the height all the while: a height above that of
a payment's block that arrives before its notification is a false expiry. The command fails if there is one, if a payment
is lost, or if the p99 of the notifications is more than twice that without the adversary.

Installs nginx (a Debian package) and the library (from npm) if they are missing. All traffic stays on the loopback
interface.
"""

import argparse
import collections
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request

sys.dont_write_bytecode = True
import lab
from faults import await_ready, settings

JAVASCRIPT = lab.ROOT / "tests" / "real" / "clients" / "javascript"
GATEWAYS = "slotfront", "nginx", "a node alone"
FAULTS = "all nodes well", "one killed", "one hung", "one 100 slots behind"
COMMANDS = {"one killed": "kill 0", "one hung": "hang 0", "one 100 slots behind": "behind 0 100"}
NODES = 3
COUNTS = "confirmed", "falseExpiries", "lost", "expired", "refused"
# A blockhash is valid for 150 blocks, which are 15 seconds here.
PATIENCE_MS = 25_000


class Cluster:
    """The simulated nodes, which take commands."""

    def __init__(self, servers, target, ports):
        command = ["taskset", "-c", lab.LOAD_CORE, target / "examples" / "confirm", "--nodes", ",".join(map(str, ports))]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
        self.process = subprocess.Popen([str(word) for word in command], **pipes)
        servers.running.append(self.process)
        self.process.stdout.readline()

    def tell(self, line):
        print(line, file=self.process.stdin, flush=True)
        return self.process.stdout.readline().strip()


def start(name, servers, slotfront, nodes):
    """Starts a gateway, and returns the address to pay through, with that of its socket."""
    port = free_pair()
    if name == "a node alone":
        return f"http://127.0.0.1:{nodes[0]}/", f"ws://127.0.0.1:{nodes[0]}/"
    fields = {"port": port, "ws_port": port + 1, "folder": servers.folder} | {f"node_{i}": node for i, node in enumerate(nodes)}
    if name == "slotfront":
        admin = lab.free_port()
        file = settings(servers, "wallets.toml", admin=admin, **fields)
        key = lab.make_key(slotfront, servers.folder / "keys.toml")
        process = servers.start(lab.SERVER_CORE, [slotfront, "serve", "--config", file])
        await_ready(f"http://127.0.0.1:{admin}/readyz", process)
        # The library finds the socket by itself: it adds one to the port.
        return f"http://127.0.0.1:{port}/v3/{key}", None
    user = "user root;" if os.geteuid() == 0 else ""
    process = servers.start(lab.SERVER_CORE, ["nginx", "-p", servers.folder, "-c", settings(servers, "wallets.conf", user=user, **fields)])
    await_ready(f"http://127.0.0.1:{port}/", process)
    return f"http://127.0.0.1:{port}/", None


def free_pair():
    """Returns a free port whose next one is free, too."""
    while True:
        port = lab.free_port()
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", port + 1))
                return port
            except OSError:
                continue


def play(name, target, payments, at_once):
    """Makes the payments through one gateway, and returns the counts of each fault."""
    results = {}
    with tempfile.TemporaryDirectory() as folder, lab.Servers(folder) as servers:
        nodes = [lab.free_port() for _ in range(NODES)]
        cluster = Cluster(servers, target, nodes)
        url, ws = start(name, servers, target / "slotfront", nodes)
        for fault in FAULTS:
            pay = {"url": url, "truth": f"http://127.0.0.1:{nodes[-1]}", "payments": payments, "atOnce": at_once, "patience": PATIENCE_MS}
            pay |= {"ws": ws} if ws else {}
            pipes = {name: subprocess.PIPE for name in ("stdin", "stdout", "stderr")} | {"text": True}
            with subprocess.Popen(["node", JAVASCRIPT / "pay.mjs"], env={**os.environ, "PAY": json.dumps(pay)}, **pipes) as payer:
                # The fault meets wallets that are connected and paying.
                payer.stdout.readline()
                cluster.tell(COMMANDS.get(fault, "heal 0"))
                out, err = payer.communicate("\n")
            if payer.returncode:
                # Behind a gateway that answers its handshakes with errors, the library repeats them without a pause until
                # it has no memory left.
                print(f"{name}, {fault}: the wallets' process ended with {payer.returncode}", file=sys.stderr)
                out = json.dumps(dict.fromkeys(COUNTS, 0) | {"lost": payments, "errors": {}, "p50": None, "p99": None})
            results[fault] = json.loads(out.splitlines()[-1])
            for text, count in results[fault]["errors"].items():
                print(f"{name}, {fault}: {count} times {text}", file=sys.stderr)
            cluster.tell("heal 0")
    return results


def play_beside(target, payments, at_once, adversary):
    """Makes the payments through slotfront, if wanted beside the adversary. Returns the counts, and what he did."""
    with tempfile.TemporaryDirectory() as folder, lab.Servers(folder) as servers:
        nodes = [lab.free_port() for _ in range(NODES)]
        Cluster(servers, target, nodes)
        url, _ = start("slotfront", servers, target / "slotfront", nodes)
        pay = {"url": url, "ws": url.replace("http", "ws"), "truth": f"http://127.0.0.1:{nodes[-1]}", "payments": payments,
               "atOnce": at_once, "patience": PATIENCE_MS}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        stranger = None
        if adversary:
            address = urllib.parse.urlsplit(url)
            key = lab.make_key(target / "slotfront", servers.folder / "keys.toml", "adversary")
            path = address.path.rsplit("/", 1)[0] + "/" + key
            await_key(f"http://{address.netloc}{path}")
            command = ["taskset", "-c", str(lab.LOAD_CORE), target / "examples" / "adversary", str(address.port), path]
            stranger = subprocess.Popen(command, **pipes)
            servers.running.append(stranger)
        command = ["taskset", "-c", str(lab.LOAD_CORE), "node", JAVASCRIPT / "watch.mjs"]
        with subprocess.Popen(command, env={**os.environ, "PAY": json.dumps(pay)}, stdout=subprocess.PIPE, text=True) as wallets:
            for line in wallets.stdout:
                if line.startswith("{"):
                    counts = json.loads(line)
                elif stranger:
                    print(line, end="", file=stranger.stdin, flush=True)
        if wallets.returncode:
            sys.exit(f"the wallets' process ended with {wallets.returncode}")
        return counts, stranger.communicate()[0].strip() if stranger else ""


def await_key(url):
    """Waits until slotfront has read the key file, which it does once a second."""
    call = b'{"jsonrpc":"2.0","id":1,"method":"getSlot"}'
    for _ in range(100):
        try:
            urllib.request.urlopen(urllib.request.Request(url, call, {"content-type": "application/json"})).close()
            return
        except urllib.error.HTTPError:
            time.sleep(0.1)
    sys.exit("slotfront has not read the key of the adversary")


def beside_an_adversary(target, payments, at_once):
    """Prints the table, and returns what is wrong with it."""
    alone, _ = play_beside(target, payments, at_once, adversary=False)
    beside, deeds = play_beside(target, payments, at_once, adversary=True)
    print(f"{lab.machine()}; {payments} payments each, {at_once} wallets; the adversary: {deeds}\n")
    print("| | payments | confirmed | false expiries | lost or refused | heights | time to notification, p50 / p99, ms |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name, counts in (("without an adversary", alone), ("beside one", beside)):
        for text, count in counts["errors"].items():
            print(f"{name}: {count} times {text}", file=sys.stderr)
        figures = counts["confirmed"], counts["falseExpiries"], counts["lost"] + counts["refused"], counts["heights"]
        times = f"{counts['p50'] or 0:.0f} / {counts['p99'] or 0:.0f}"
        print(f"| {name} | {payments:,} | " + " | ".join(f"{figure:,}" for figure in figures) + f" | {times} |")
    wrong = [f"{name}: {counts['confirmed']} of {payments} confirmed, {counts['falseExpiries']} false expiries"
             for name, counts in (("alone", alone), ("beside the adversary", beside))
             if counts["confirmed"] != payments or counts["falseExpiries"]]
    if not wrong and beside["p99"] > 2 * alone["p99"]:
        wrong.append(f"the p99 is {beside['p99'] / alone['p99']:.1f} times that without the adversary")
    return wrong


def total(results):
    """Returns the sums of the counts over all faults."""
    sums = collections.Counter()
    for counts in results.values():
        sums.update({name: counts[name] for name in COUNTS})
    return sums


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--payments", type=int, help="the number of payments through each gateway (default: 1000, beside the adversary 200)")
    parser.add_argument("--at-once", type=int, default=25, help="the number of wallets, each with a connection of its own at once")
    parser.add_argument("--only", nargs="*", metavar="GATEWAY", help=f"measure only these: {', '.join(GATEWAYS)}")
    parser.add_argument("--adversary", action="store_true", help="pay beside another client who does all that might delay notifications")
    parser.add_argument("--target", type=pathlib.Path, help="a folder with the built programs (default: build them)")
    options = parser.parse_args()
    names = [name for name in GATEWAYS if not options.only or name in options.only]
    if options.only and len(names) != len(set(options.only)):
        parser.error(f"--only takes names from: {', '.join(GATEWAYS)}")
    lab.require_two_cores()
    if not (JAVASCRIPT / "node_modules").exists():
        subprocess.run(["npm", "ci", "--prefix", JAVASCRIPT, "--ignore-scripts", "--no-fund", "--no-audit"], check=True)
    if options.adversary:
        target = lab.programs(options.target, "confirm", "adversary")
        wrong = beside_an_adversary(target, options.payments or 200, min(options.at_once, 10))
        sys.exit("\n".join(wrong) or 0)
    lab.install("nginx", "nginx-light")
    target = lab.programs(options.target, "confirm")
    options.payments = options.payments or 1000
    results = {name: play(name, target, options.payments // len(FAULTS), options.at_once) for name in names}
    print(f"{lab.machine()}; {options.payments} payments each, {options.at_once} wallets\n")
    print("| through | payments | confirmed | false expiries | lost confirmations | refused or truly expired |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name in names:
        sums = total(results[name])
        counts = sums["confirmed"], sums["falseExpiries"], sums["lost"], sums["refused"] + sums["expired"]
        print(f"| {name} | {sum(sums.values()):,} | " + " | ".join(f"{count:,}" for count in counts) + " |")
    print(f"\n| time to confirmation, p50 / p99, ms | {' | '.join(names)} |")
    print("| --- |" + " --- |" * len(names))
    for fault in FAULTS:
        times = [results[name][fault] for name in names]
        print(f"| {fault} | " + " | ".join(f"{t['p50'] or 0:.0f} / {t['p99'] or 0:.0f}" for t in times) + " |")


if __name__ == "__main__":
    main()

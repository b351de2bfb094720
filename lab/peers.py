#!/usr/bin/env python3
"""Puts any JSON-RPC proxies beside slotfront, nginx and HAProxy, in front of the same simulated nodes. Prints one Markdown table.

    lab/peers.py [--peer NAME=URL[,METRICS]]... [--nodes PORT,PORT,PORT] [--seconds S] [--only NAME ...] [--target FOLDER]

A peer is a proxy that you have started. Its nodes are the three ports of --nodes on 127.0.0.1, which serve only while it
is its turn, so give it health checks that find a node again within a minute. URL takes POST requests. METRICS is the URL of
its Prometheus metrics, from which its processor time and memory are read (process_cpu_seconds_total and
process_resident_memory_bytes); without it these columns are empty, unless this script has started the proxy.

    lab/peers.py --peer mine=http://127.0.0.1:8080/,http://127.0.0.1:9090/metrics

Sixteen callers request about a hundred accounts, at each commitment in turn. After a while with all nodes well, one node
accepts calls and never answers. At last, wrk repeats the calls of one commitment as fast as it can. Each answer is compared
with the state of the cluster at the slot that it names. All calls have the id 1, because many caches are keyed on the body.

nginx and HAProxy are installed (Debian packages) if they are missing. All traffic stays on the loopback interface.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import urllib.request

sys.dont_write_bytecode = True
import faults
import lab

# A second is two and a half slots, the shortest time for which nginx can keep an answer.
NGINX_CACHE = (
    "proxy_cache_path @FOLDER@/cache keys_zone=calls:16m max_size=256m; proxy_cache calls; proxy_cache_methods POST; "
    'proxy_cache_key "$request_body"; proxy_cache_valid 200 1s; proxy_cache_lock on;'
)
WELL, HANGS = "all nodes well", "hangs"


class Started:
    """A proxy that this script has started."""

    def __init__(self, process):
        self.process = process

    def family(self):
        """Returns the ids of the process and its descendants."""
        children = {}
        for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
            try:
                pid, rest = stat.read_text().split(" ", 1)
            except OSError:
                continue
            children.setdefault(int(rest.rpartition(")")[2].split()[1]), []).append(int(pid))
        family = [self.process.pid]
        for pid in family:
            family += children.get(pid, [])
        return family

    def used(self):
        """Returns the used processor time in seconds, and the resident memory in bytes."""
        seconds = memory = 0
        for pid in self.family():
            fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            seconds += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            memory += int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
        return seconds, memory


class Running:
    """A proxy that somebody else has started."""

    def __init__(self, metrics):
        self.metrics = metrics

    def used(self):
        """Returns the used processor time in seconds, and the resident memory in bytes, each None if unknown."""
        text = urllib.request.urlopen(self.metrics).read().decode() if self.metrics else ""
        found = (re.search(rf"^{name}(?:\{{.*\}})? (\S+)$", text, re.M) for name in ("process_cpu_seconds_total", "process_resident_memory_bytes"))
        return [float(match.group(1)) if match else None for match in found]


class Turn:
    """The figures of one proxy."""

    def __init__(self, lines, rate, seconds, before, after):
        rows = {row.name: row for row in (faults.Fault(line) for line in lines)}
        self.well, self.hangs, self.memory = rows[WELL], rows[HANGS], after[1]
        processor = after[0] - before[0] if after[0] is not None and before[0] is not None else None
        # What is left of a second of wrk is idle time of the proxy, because wrk and the nodes have the other core.
        self.rate = rate * seconds / processor if processor else None

    def columns(self):
        well, hangs = self.well, self.hangs
        wrong = f"{well.failed + well.old:,} of {well.calls:,}"
        hung = f"{hangs.failed + hangs.old:,} of {hangs.calls:,}"
        return [
            f"{max(0, 1 - well.node_requests / well.calls):.0%}", f"{self.rate:,.0f}" if self.rate else "–",
            *(f"{micros / 1000:.1f}" for micros in (well.p50, well.p99)), " / ".join(map(str, well.behind)),
            wrong, hung, f"{hangs.p99 / 1000:,.1f}", f"{self.memory / 1e6:,.0f}" if self.memory else "–",
        ]


HEAD = "calls saved", "calls a second of processor time", "p50, ms", "p99, ms", "slots behind, p50 / p99", "wrong or failed", "one node hangs: wrong or failed", "p99, ms", "resident MB"


def play(name, peer, nodes, options, target):
    """Plays all phases with one proxy, and returns its turn."""
    with tempfile.TemporaryDirectory() as folder, lab.Servers(folder) as servers:
        if peer:
            url, metrics = peer
            command = None
        else:
            cache = NGINX_CACHE.replace("@FOLDER@", folder)
            command, url, ready = faults.prepare(name, servers, target / "slotfront", nodes, False, cache)
        player = ["taskset", "-c", lab.LOAD_CORE, target / "examples" / "faults", url, "--peers", "--nodes", ",".join(map(str, nodes))]
        player += ["--seconds", options.seconds, "--commitments", "processed,confirmed,finalized"]
        with subprocess.Popen([str(word) for word in player], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as player:
            if player.stdout.readline() != "serving\n":
                sys.exit(f"the nodes did not start; are the ports {nodes} free?")
            if peer:
                proxy = Running(metrics)
            else:
                proxy = Started(servers.start(lab.SERVER_CORE, command))
                faults.await_ready(ready, proxy.process)
            player.stdin.write("\n")
            player.stdin.flush()
            lines = []
            while not (line := player.stdout.readline().rstrip("\n")).startswith("addresses\t"):
                if not line and player.poll() is not None:
                    sys.exit(f"{name}: the callers ended with {player.returncode}")
                lines.append(line)
            for remark in (line for line in lines if line.startswith("#")):
                print(f"{name}: {remark[2:]}", file=sys.stderr)
            calls = [call(address) for address in line.split("\t")[1:]]
            lab.hits(servers.folder, url, 1, 64, calls)
            before = proxy.used()
            rate, _ = lab.hits(servers.folder, url, options.seconds, 64, calls)
            return Turn([line for line in lines if not line.startswith("#")], rate, options.seconds, before, proxy.used())


def call(address):
    config = {"encoding": "base64", "commitment": "finalized"}
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": "getAccountInfo", "params": [address, config]})


def read_peer(text):
    name, equals, urls = text.partition("=")
    url, _, metrics = urls.partition(",")
    if not (name and equals and url.startswith("http://")):
        raise argparse.ArgumentTypeError("expected NAME=http://HOST:PORT/PATH, and optionally a comma and the URL of the metrics")
    return name, (url, metrics)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer", type=read_peer, action="append", default=[], metavar="NAME=URL[,METRICS]", help="a proxy that runs and has the nodes of --nodes")
    parser.add_argument("--nodes", default="9401,9402,9403", help="the ports of the three nodes (default: 9401,9402,9403)")
    parser.add_argument("--seconds", type=int, default=10, help="the duration of each phase")
    parser.add_argument("--only", nargs="*", metavar="NAME", help=f"of {', '.join(faults.GATEWAYS)}, start only these")
    parser.add_argument("--target", type=pathlib.Path, help="a folder with the built programs (default: build them)")
    options = parser.parse_args()
    names = [name for name in faults.GATEWAYS if options.only is None or name.lower() in map(str.lower, options.only)]
    lab.require_two_cores()
    lab.install("wrk", "wrk")
    lab.install("nginx", "nginx-light")
    lab.install("haproxy", "haproxy")
    target = lab.programs(options.target, "faults")
    nodes = [int(port) for port in options.nodes.split(",")]
    turns = {name: play(name, peer, nodes, options, target) for name, peer in [*((name, None) for name in names), *options.peer]}
    print(f"{lab.machine()}; each phase {options.seconds} s\n")
    print(f"| | {' | '.join(HEAD)} |")
    print("| --- |" + " --- |" * len(HEAD))
    for name, turn in turns.items():
        print(f"| {name} | {' | '.join(turn.columns())} |")


if __name__ == "__main__":
    main()

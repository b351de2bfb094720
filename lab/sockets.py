#!/usr/bin/env python3
"""Measures slotfront's subscriptions: memory of idle connections, one account for many clients, many accounts for more clients.

    lab/sockets.py [--idle N] [--watchers N] [--clients N] [--accounts N] [--seconds S] [--target FOLDER]

slotfront follows a simulated cluster of three nodes with slots of 400 ms.

1. Connections that do nothing: the resident memory with them, less that before.
2. Clients that watch one account, which each block writes: the calls for accounts at the nodes a slot, the processor time,
   and the time from the node's answer to the last client. A server that only fans out the same text with the same
   WebSocket library to as many clients stands beside it.
3. Clients that watch different accounts, which each block writes, while one client reads nothing: the time from the
   confirmation of a slot to its notifications, processor time and memory.

slotfront and the bare server have one core, nodes and clients another. All traffic stays on the loopback interface.
"""

import argparse
import pathlib
import resource
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
import faults
import lab
from peers import Started

NODES = 3
# All clients have one key and one address.
SERVER = "max_connections = 15000"
PLAN = "connections = 20000\nsubscriptions = 20000"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--idle", type=int, default=10_000, help="connections that do nothing")
    parser.add_argument("--watchers", type=int, default=1_000, help="clients that watch one account")
    parser.add_argument("--clients", type=int, default=10_000, help="clients that watch different accounts")
    parser.add_argument("--accounts", type=int, default=1_000, help="accounts that each block writes")
    parser.add_argument("--seconds", type=int, default=20, help="the duration of each stage")
    parser.add_argument("--target", type=pathlib.Path, help="a folder with the built programs (default: build them)")
    options = parser.parse_args()
    lab.require_two_cores()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if max(options.idle, options.clients) + 1_000 > most:
        sys.exit(f"{most} open files are allowed, which is too few; see `ulimit -Hn`")
    target = lab.programs(options.target, "sockets", "yardsticks")
    with tempfile.TemporaryDirectory() as folder, lab.Servers(folder) as servers:
        nodes = [lab.free_port() for _ in range(NODES)]
        gateway = lab.Gateway(servers, target, "gateway", nodes, '[follow]\nmode = "on"', plan=PLAN, server=SERVER)
        bare = lab.free_port()
        servers.start(lab.SERVER_CORE, [target / "examples" / "yardsticks", "fanout", bare])
        lab.await_port(bare)
        command = ["taskset", "-c", lab.LOAD_CORE, target / "examples" / "sockets", gateway.port, f"/v3/{gateway.key}"]
        command += ["--bare", bare, "--nodes", ",".join(map(str, nodes))]
        for name in ("idle", "watchers", "clients", "accounts", "seconds"):
            command += [f"--{name}", getattr(options, name)]
        with subprocess.Popen([str(word) for word in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as clients:
            rows = measure(options, clients, Started(gateway.process), gateway)
    print(f"{lab.machine()}; each stage {options.seconds} s\n")
    print("| | |\n| --- | --- |")
    for name, value in rows:
        print(f"| {name} | {value} |")


class Talk:
    """The lines of the clients, and the figures among them."""

    def __init__(self, process):
        self.process, self.figures = process, {}

    def until(self, word):
        for line in self.process.stdout:
            line = line.rstrip("\n")
            if line == word:
                return
            if line.startswith("#"):
                print(line, file=sys.stderr)
            else:
                name, value = line.split()
                self.figures[name] = int(value)
        sys.exit(f"the clients ended before {word!r}: {self.process.wait()}")

    def go(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()


def measure(options, clients, gateway, program):
    talk, rows = Talk(clients), []

    def stage():
        """Plays a stage with clients that watch accounts. Returns its share of a core, and its memory in bytes."""
        talk.until("watching")
        before, _ = gateway.used()
        talk.until("watched")
        after, memory = gateway.used()
        talk.go()
        return f"{(after - before) / options.seconds:.1%} of a core", memory

    def milliseconds(name):
        return " / ".join(f"{talk.figures[f'{name}-p{part}'] / 1000:.1f}" for part in (50, 99))

    def calls_a_slot():
        return f"{talk.figures['calls'] / talk.figures['slots']:.2f}"

    talk.until("serving")
    faults.await_ready(f"http://127.0.0.1:{program.admin}/readyz", program.process)
    _, empty = gateway.used()
    talk.go()
    talk.until("opened")
    _, full = gateway.used()
    talk.go()
    rows.append((f"memory of {options.idle:,} idle connections", f"{(full - empty) / 2**20:.0f} MiB more than the {empty / 2**20:.0f} before"))
    share, _ = stage()
    talk.until("bare")
    one = f"one account for {options.watchers:,} clients"
    rows.append((f"{one}: calls for accounts a slot", calls_a_slot()))
    rows.append((f"{one}: processor", share))
    rows.append((f"{one}: from the node's answer to the last client, p50 / p99", f"{milliseconds('last-client')} ms"))
    share, memory = stage()
    rows.append(("the bare fan-out of the same text, p50 / p99", f"{milliseconds('bare-last-client')} ms"))
    talk.until("done")
    many = f"{options.accounts:,} accounts for {options.clients:,} clients"
    rows.append((f"{many}: calls for accounts a slot", calls_a_slot()))
    rows.append((f"{many}: processor", share))
    rows.append((f"{many}: from a slot's confirmation to its notifications, p50 / p99", f"{milliseconds('notification')} ms"))
    rows.append((f"{many}: resident memory", f"{memory / 2**20:.0f} MiB"))
    rows.append(("complete slots of the stages", f"{talk.figures['complete-slots']}"))
    return rows


if __name__ == "__main__":
    main()

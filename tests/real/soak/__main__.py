"""A soak: mixed load through every kind of trouble at once, each answer held to the chain's own truth at its slot.

usage: python3 tests/real/soak [--minutes N] [--seed S] [--callers N]

It starts three simulated nodes with a proxy before each, a fourth that falls behind, and the built slotfront before all
of them. For so many minutes callers ask for everything, some going away in the middle, while nodes reset, hang, trickle,
lie about ids, refuse and fall behind, the configuration is changed for better and for worse, upstreams come and go, and
keys are made and taken back. At the end stands one table; it exits with 1 if anything in it is not as it must be.

The seed decides what is drawn, not how the machine's clock interleaves it. Needs only Python.

truth.py knows what is right, faults.py makes trouble, load.py calls and judges, wire.py speaks HTTP.
"""

import argparse
import asyncio
import os
import random
import re
import socket
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from running import PATIENCE_S, Running, free_port, get, ready  # noqa: E402

from faults import Director, Keys, Proxy  # noqa: E402
from load import Caller, Tally  # noqa: E402
from truth import Truth  # noqa: E402
from wire import Connection  # noqa: E402

TOKEN = "a-soak-token"
# Connections to nodes that idle are dropped after 50 s, and looked for every 50 s.
QUIET_S = 120
# What probes and idle connections to nodes hold more at one moment than at another, each a descriptor and a task. What
# leaked with each call, or with each thousandth, would be more by far.
KEPT_CONNECTIONS = 4 * 8
# What the allocator may keep more than after the first third, on top of a tenth.
MORE_BYTES = 24 << 20


def free_ports(count):
    """The first of so many that follow each other."""
    while True:
        first = free_port()
        try:
            for port in range(first, first + count):
                socket.create_server(("127.0.0.1", port)).close()
            return first
        except OSError:
            continue


class Gateway:
    """The running slotfront, and its files."""

    def __init__(self, folder, nodes, laggard):
        self.config, self.nodes, self.laggard = Path(folder, "slotfront.toml"), nodes, laggard
        self.ports = free_port(), free_port()
        self.configure()
        self.process = None

    def configure(self, rps=100_000, retries=3, laggard=True):
        public, admin = self.ports
        text = (f'[server]\nlisten = "127.0.0.1:{public}"\nadmin_listen = "127.0.0.1:{admin}"\n'
                f'[auth]\nadmin_token = "{TOKEN}"\n[plans.standard]\nrps = {rps}\nburst = {rps}\n'
                # A hang is found out within three seconds; one node is well, and all others may be asked before; the cache is full soon.
                f'[pool]\nretries = {retries}\nattempt_timeout = {{ default = "3s" }}\n[cache]\ncapacity = "8MiB"\nmax_entry = "1MiB"\n')
        upstreams = [*enumerate(self.nodes), *([(len(self.nodes), self.laggard)] if laggard else [])]
        for i, port in upstreams:
            text += f'[[upstream]]\nname = "node-{i}"\nurl = "http://127.0.0.1:{port}"\n'
        beside = self.config.with_suffix(".new")
        beside.write_text(text)
        beside.rename(self.config)

    def signal(self, which):
        self.process.process.send_signal(which)

    async def admin(self, path):
        connection = Connection("127.0.0.1", self.ports[1])
        status, _, text = await connection.post(path, "", f"Authorization: Bearer {TOKEN}\r\n")
        assert status == 200, text
        await connection.close()

    async def metric(self, name):
        _, page = await asyncio.to_thread(get, f"http://127.0.0.1:{self.ports[1]}/metrics")
        return sum(float(value) for value in re.findall(rf"^slotfront_{name}(?:{{[^}}]*}})? (\S+)$", page, re.M))

    def held(self):
        """Descriptors and bytes of memory."""
        proc = Path("/proc", str(self.process.process.pid))
        pages = int((proc / "statm").read_text().split()[1])
        return len(os.listdir(proc / "fd")), pages * os.sysconf("SC_PAGE_SIZE")


async def soak(options, folder):
    rng, tally, first = random.Random(options.seed), Tally(), free_ports(3)
    with Running("sim", "--listen", "127.0.0.1:0", "--nodes", "3", "--seed", str(options.seed)) as sim, \
            Running("sim", "--listen", f"127.0.0.1:{first}", "--nodes", "3", "--seed", str(options.seed)) as laggard:
        sim.wait_for(r"node 2: http\S+")
        laggard.wait_for(r"node 0: http\S+")
        ports = [int(port) for port in re.findall(r"node \d: http://127\.0\.0\.1:(\d+)", sim.printed())]
        proxies = [Proxy(port) for port in ports]
        for proxy in proxies:
            await proxy.start()
        chain = Truth(ports)
        await chain.find_what_there_is()
        gateway = Gateway(folder, [proxy.port for proxy in proxies], first)
        keys = Keys(str(Path(folder, "keys.toml")), gateway.ports[0])
        keys.live = [(f"first-{i}", await keys.change("create", "--name", f"first-{i}")) for i in range(3)]
        with Running("serve", "--config", str(gateway.config)) as gateway.process:
            gateway.process.wait_for("slotfront is running")
            await asyncio.to_thread(ready, f"http://127.0.0.1:{gateway.ports[1]}/")
            following = asyncio.create_task(chain.follow())
            beating = asyncio.create_task(tally.beat())
            # As it stands with nothing to do.
            await asyncio.sleep(5)
            idle = {"descriptors": gateway.held()[0], "tasks": await gateway.metric("tasks")}
            loop = asyncio.get_running_loop()
            until, third = loop.time() + 60 * options.minutes, 20 * options.minutes
            director = Director(rng, proxies, laggard.process, gateway, keys)
            callers = [Caller(random.Random(f"{options.seed} {i}"), chain, gateway.ports[0], keys, tally)
                       for i in range(options.callers)]
            playing = asyncio.gather(director.direct(until), *(caller.call(until) for caller in callers))
            await asyncio.wait([playing, following], timeout=third, return_when=asyncio.FIRST_COMPLETED)
            early = gateway.held()[1]
            await asyncio.wait([playing, following], return_when=asyncio.FIRST_COMPLETED)
            for task in (playing, following):
                if task.done():
                    task.result()
            print(f"seed {options.seed}: {tally.calls} calls, {tally.hits} hits, {tally.checked} held to the truth, "
                  f"{tally.gone} clients went away, {tally.not_yet} blocks were not there yet, {tally.late} calls timed out while the machine stood still; {director.counted}")
            may = {name: int(count) + KEPT_CONNECTIONS for name, count in idle.items()}
            left = await settle(gateway, may)
            following.cancel()
            beating.cancel()
            problems = table(tally, may, left, early, gateway.held()[1])
            stopped = gateway.process.stop()
            printed = gateway.process.printed()
    panics = [line for line in printed.splitlines() if "panicked" in line]
    if tally.not_yet > tally.calls / 2000:
        problems.append(f"{tally.not_yet} blocks were called not there yet")
    if stopped != 0 or panics or tally.checked < tally.calls / 4:
        problems.append(f"exit code {stopped}, {len(panics)} panics, {tally.checked} of {tally.calls} checked: {panics[:3]}")
    return problems


async def settle(gateway, may):
    """What is still held once everybody has gone, as soon as it is no more than it may be."""
    deadline = time.monotonic() + QUIET_S
    while True:
        left = {"descriptors": gateway.held()[0], "tasks": await gateway.metric("tasks")}
        left["requests"] = await gateway.metric("requests_in_flight") + await gateway.metric("connections")
        if time.monotonic() > deadline or (left["requests"] == 0 and all(left[name] <= may[name] for name in may)):
            return left
        await asyncio.sleep(1)


def table(tally, may, left, early, late):
    """Prints it; returns what is not as it must be."""
    mib = lambda count: f"{count / (1 << 20):.1f} MiB"
    rows = [
        ("failed answers", len(tally.failed), "0", not tally.failed),
        ("wrong answers", len(tally.wrong), "0", not tally.wrong),
        ("requests and connections left", int(left["requests"]), "0", left["requests"] == 0),
        ("tasks left", int(left["tasks"]), f"at most {may['tasks']}", left["tasks"] <= may["tasks"]),
        ("descriptors left", left["descriptors"], f"at most {may['descriptors']}", left["descriptors"] <= may["descriptors"]),
        ("memory, against a third of the way", f"{mib(late)}, {mib(early)}", f"at most {mib(early * 1.1 + MORE_BYTES)}",
         late <= early * 1.1 + MORE_BYTES),
    ]
    for name, found, must, well in rows:
        print(f"{name:36} {found!s:24} {must:24} {'ok' if well else 'NOT OK'}")
    for what in [*tally.failed[:10], *tally.wrong[:10]]:
        print("  ", what)
    return [name for name, _, _, well in rows if not well]


def main():
    parser = argparse.ArgumentParser(description="A soak of the built slotfront.")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--callers", type=int, default=24)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        problems = asyncio.run(soak(options, folder))
    print("problems: " + "; ".join(problems) if problems else "all well")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

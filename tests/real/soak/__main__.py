"""A soak: mixed load through every kind of trouble at once, each answer held to the chain's own truth at its slot.

usage: python3 tests/real/soak [--minutes N] [--seed S] [--callers N] [--logs FOLDER]

It starts three simulated nodes with a proxy before each, a fourth that falls behind, and before all of them the built
slotfront, twice, with a store in common. For so many minutes callers ask both for everything, some going away in the
middle, while nodes reset, hang, trickle, lie about ids, refuse and fall behind, the store stops, dies, is slow, full,
emptied and full of rubbish, the configuration is changed for better and for worse, upstreams come and go, and keys are
made and taken back. At the end stands one table; it exits with 1 if anything in it is not as it must be.

The seed decides what is drawn, not how the machine's clock interleaves it. Needs Python and redis-server.

truth.py knows what is right, faults.py makes trouble, load.py calls and judges, wire.py speaks HTTP.
"""

import argparse
import asyncio
import contextlib
import os
import random
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from gateway import Nodes, Serve, free_port, get, replace, upstreams  # noqa: E402

from faults import Director, Keys, Proxy, Store  # noqa: E402
from load import Caller, Tally  # noqa: E402
from truth import Truth  # noqa: E402
from wire import Connection  # noqa: E402

TOKEN = "a-soak-token"
# They share a store, and the load.
GATEWAYS = 2
# Connections to nodes that idle are dropped after 50 s, and looked for every 50 s.
QUIET_S = 120
# What probes and idle connections to nodes hold more at one moment than at another, each a descriptor and a task. What
# leaked with each call, or with each thousandth, would be more by far.
KEPT_CONNECTIONS = GATEWAYS * 4 * 8
# What all may hold more in the last third of the calls than in the middle one: caches fill, and the allocator keeps some.
# In an hour, with half a million calls in each third, that is what would leak by 24 bytes a call.
MORE_BYTES = GATEWAYS * (6 << 20)


class Gateway:
    """A running slotfront, and its files."""

    def __init__(self, folder, number, nodes, laggard, store):
        self.config, self.nodes, self.laggard, self.store = Path(folder, f"{number}.toml"), nodes, laggard, store
        self.ports, self.leaving = (free_port(), free_port()), False
        self.configure()
        self.process = None

    def configure(self, rps=100_000, retries=3, laggard=True):
        public, admin = self.ports
        text = (f'[server]\nlisten = "127.0.0.1:{public}"\nadmin_listen = "127.0.0.1:{admin}"\n'
                f'[auth]\nadmin_token = "{TOKEN}"\nusage_file = "{self.config.stem}-usage.json"\n'
                f'[plans.standard]\nrps = {rps}\nburst = {rps}\n'
                # A hang is found out within three seconds; one node is well, and all others may be asked before; the cache is full soon.
                f'[pool]\nretries = {retries}\nattempt_timeout = {{ default = "3s" }}\n[cache]\ncapacity = "8MiB"\nmax_entry = "1MiB"\n'
                # A machine that is busy with other things answers nobody in 20 ms.
                f'[shared]\nurl = "redis://127.0.0.1:{self.store.port}"\ntimeout = "250ms"\n')
        replace(self.config, text + upstreams([*self.nodes, *([self.laggard] if laggard else [])]))

    def start(self):
        self.process = Serve(self.config)
        self.process.wait_for("the shared store is connected")
        return self.process.ready()

    def keep_log(self, folder):
        Path(folder, f"gateway-{self.config.stem}.log").write_text(self.process.printed())

    def signal(self, which):
        self.process.send(which)

    async def admin(self, path):
        """Whether it was done."""
        connection = Connection("127.0.0.1", self.ports[1])
        status, _, _ = await connection.post(path, "", f"Authorization: Bearer {TOKEN}\r\n")
        await connection.close()
        return status == 200

    async def metric(self, name):
        """The sum of a name's series, or of those that have these labels."""
        _, page = await asyncio.to_thread(get, f"http://127.0.0.1:{self.ports[1]}/metrics")
        name, _, labels = name.partition("{")
        return sum(float(value) for value in re.findall(rf"^slotfront_{name}(?:{{{labels}[^}}]*}})? (\S+)$", page, re.M))

    def held(self):
        """Descriptors and bytes of memory."""
        proc = Path("/proc", str(self.process.pid))
        pages = int((proc / "statm").read_text().split()[1])
        return len(os.listdir(proc / "fd")), pages * os.sysconf("SC_PAGE_SIZE")


async def soak(options, folder):
    rng = random.Random(options.seed)
    with Nodes(3, seed=options.seed) as sim, Nodes(3, seed=options.seed) as laggard:
        proxies = [Proxy(port) for port in sim.ports]
        for proxy in proxies:
            await proxy.start()
        chain = Truth(sim.ports)
        await chain.find_what_there_is()
        with Store(folder) as store:
            gateways = [Gateway(folder, i, [proxy.port for proxy in proxies], laggard.port, store) for i in range(GATEWAYS)]
            keys = Keys(str(Path(folder, "keys.toml")), [gateway.ports[0] for gateway in gateways])
            keys.live = [(f"first-{i}", await keys.change("create", "--name", f"first-{i}")) for i in range(3)]
            with contextlib.ExitStack() as running:
                for gateway in gateways:
                    running.enter_context(await asyncio.to_thread(gateway.start))
                    if options.logs:
                        running.callback(gateway.keep_log, options.logs)
                director = Director(rng, proxies, laggard, store, gateways, keys)
                problems = await play(options, chain, gateways, director)
                for gateway in gateways:
                    stopped = gateway.process.stop()
                    panics = [line for line in gateway.process.printed().splitlines() if "panicked" in line]
                    if stopped != 0 or panics:
                        problems.append(f"exit code {stopped}, {len(panics)} panics: {panics[:3]}")
    return problems


async def play(options, chain, gateways, director):
    """The callers and the director play; returns what is not as it must be afterwards."""
    tally, memory = Tally(director.trouble), []
    beside = [asyncio.create_task(endless) for endless in (chain.follow(), tally.beat(), weigh(gateways, tally, memory))]
    # As it stands with nothing to do.
    await asyncio.sleep(5)
    idle = await held_by(gateways)
    may = {name: int(idle[name]) + KEPT_CONNECTIONS for name in ("descriptors", "tasks")} | {"requests_in_flight": 0, "connections": 0}
    until = tally.beats + 600 * options.minutes
    over = lambda: tally.beats >= until
    callers = [Caller(random.Random(f"{options.seed} {i}"), chain, director.keys, tally) for i in range(options.callers)]
    playing = asyncio.gather(director.direct(over), *(caller.call(over) for caller in callers))
    # What never ends ends with a mistake of its own only.
    done, _ = await asyncio.wait([playing, *beside], return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()
    shared = sum([await gateway.metric('shared_requests_total{operation="get",result="hit"') for gateway in gateways])
    print(f"seed {options.seed}: {tally.calls} calls, {tally.hits} hits, {shared:.0f} from the shared store, "
          f"{tally.checked} held to the truth, {tally.gone} clients went away, {len(tally.not_yet)} blocks were not there yet, "
          f"{tally.late} answers were late or behind because the machine stood still; {director.counted}")
    left = await settle(gateways, may)
    for task in beside:
        task.cancel()
    problems = table(tally, may, left, memory)
    if len(tally.not_yet) > tally.calls / 2000:
        problems.append(f"{len(tally.not_yet)} blocks were called not there yet: {tally.not_yet[:3]}")
    # A machine that is busy with other things misses slots; what is asked of the chain is less then, and no less right.
    if tally.checked < tally.calls / 10 or shared < tally.calls / 5000:
        problems.append(f"of {tally.calls} calls {tally.checked} checked, {shared} from the shared store")
    return problems


async def weigh(gateways, tally, memory):
    """Notes how much memory all hold together, after each hundred calls: the machine may stand still. Never ends."""
    while True:
        if tally.calls >= 100 * len(memory):
            memory.append(sum(gateway.held()[1] for gateway in gateways))
        await asyncio.sleep(0.05)


async def held_by(gateways):
    """What all hold together, that should be given back."""
    held = {"descriptors": sum(gateway.held()[0] for gateway in gateways)}
    for name in ("tasks", "requests_in_flight", "connections"):
        held[name] = sum([await gateway.metric(name) for gateway in gateways])
    return held


async def settle(gateways, may):
    """What is still held once everybody has gone, as soon as it is no more than it may be."""
    deadline = time.monotonic() + QUIET_S
    while True:
        left = await held_by(gateways)
        if time.monotonic() > deadline or all(left[name] <= may[name] for name in may):
            return left
        await asyncio.sleep(1)


def table(tally, may, left, memory):
    """Prints it; returns what is not as it must be."""
    mib = lambda count: f"{count / (1 << 20):.1f} MiB"
    third = len(memory) // 3
    middle, last = (statistics.median(part) for part in (memory[third:2 * third], memory[2 * third:]))
    rows = [
        ("failed answers", len(tally.failed), "0", not tally.failed),
        ("wrong answers", len(tally.wrong), "0", not tally.wrong),
        *((f"{name.replace('_', ' ')} left", int(left[name]), f"at most {may[name]}", left[name] <= may[name]) for name in may),
        ("memory in the last third", mib(last), f"at most {mib(middle + MORE_BYTES)}", last <= middle + MORE_BYTES),
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
    parser.add_argument("--logs", help="a folder to keep the gateways' logs in")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        problems = asyncio.run(soak(options, folder))
    print("problems: " + "; ".join(problems) if problems else "all well")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

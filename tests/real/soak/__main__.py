"""A soak test: mixed load under many faults at once. Each answer is compared with the state of the chain at its slot.

usage: python3 tests/real/soak [--minutes N] [--seed S] [--callers N] [--logs FOLDER]

The test starts three simulated nodes with a proxy in front of each, and a fourth node that falls behind. Two instances of
the built slotfront use these nodes and one shared store. Callers send all methods to both instances, and some disconnect
early. Meanwhile these faults happen:

- nodes reset connections, hang, answer slowly, answer with wrong ids, refuse calls and fall behind
- the store stops, dies, is slow, is full, loses its data and contains corrupt values
- the configuration is reloaded, with and without mistakes
- upstreams and keys are added and removed

The test prints a table at the end. Its exit code is 1 if a row misses its goal.

The seed determines the random choices, but not their timing. Needs Python and redis-server.

Files: reference.py (the state of the chain), faults.py (the faults), load.py (the callers and their checks),
connection.py (an HTTP client).
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

from connection import Connection  # noqa: E402
from faults import FaultInjector, Keys, Proxy, Store  # noqa: E402
from load import Caller, Tally  # noqa: E402
from reference import Reference  # noqa: E402

TOKEN = "an-admin-token-of-the-soak"
# The number of slotfront instances. They share the store and the load.
GATEWAYS = 2
# How long to wait for resources to be released. An idle connection to a node closes after 50 s, which is noticed up to 50 s
# later.
QUIET_S = 120
# The tolerated growth of descriptors and tasks, because the number of probes and idle connections to nodes varies.
KEPT_CONNECTIONS = GATEWAYS * 4 * 8
# The tolerated growth of memory from the middle third of the calls to the last one. Caches fill, and allocators keep pages.
MORE_BYTES = GATEWAYS * (6 << 20)


class Gateway:
    """A slotfront process and its files."""

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
                # Hangs are detected after three seconds. Retries reach a healthy node after all others. The cache fills soon.
                f'[pool]\nretries = {retries}\nattempt_timeout = {{ default = "3s" }}\n[cache]\ncapacity = "8MiB"\nmax_entry = "1MiB"\n'
                # A busy machine may exceed the default timeout of 20 ms.
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
        """Sends a POST to the admin listener. Returns true if it succeeded."""
        connection = Connection("127.0.0.1", self.ports[1])
        status, _, _ = await connection.post(path, "", f"Authorization: Bearer {TOKEN}\r\n")
        await connection.close()
        return status == 200

    async def metric(self, name):
        """Returns the sum of a metric's series. The name may have labels that select some of them."""
        _, page = await asyncio.to_thread(get, f"http://127.0.0.1:{self.ports[1]}/metrics")
        name, _, labels = name.partition("{")
        return sum(float(value) for value in re.findall(rf"^slotfront_{name}(?:{{{labels}[^}}]*}})? (\S+)$", page, re.M))

    def resources(self):
        """Returns the number of open descriptors and the resident memory in bytes."""
        proc = Path("/proc", str(self.process.pid))
        pages = int((proc / "statm").read_text().split()[1])
        return len(os.listdir(proc / "fd")), pages * os.sysconf("SC_PAGE_SIZE")


async def soak(options, folder):
    rng = random.Random(options.seed)
    with Nodes(3, seed=options.seed) as sim, Nodes(3, seed=options.seed) as laggard:
        proxies = [Proxy(port) for port in sim.ports]
        for proxy in proxies:
            await proxy.start()
        chain = Reference(sim.ports)
        await chain.find_accounts()
        with Store(folder) as store:
            gateways = [Gateway(folder, i, [proxy.port for proxy in proxies], laggard.port, store) for i in range(GATEWAYS)]
            keys = Keys(str(Path(folder, "keys.toml")), [gateway.ports[0] for gateway in gateways])
            keys.live = [(f"first-{i}", await keys.change("create", "--name", f"first-{i}")) for i in range(3)]
            with contextlib.ExitStack() as running:
                for gateway in gateways:
                    running.enter_context(await asyncio.to_thread(gateway.start))
                    if options.logs:
                        running.callback(gateway.keep_log, options.logs)
                injector = FaultInjector(rng, proxies, laggard, store, gateways, keys)
                problems = await run(options, chain, gateways, injector)
                for gateway in gateways:
                    stopped = gateway.process.stop()
                    panics = [line for line in gateway.process.printed().splitlines() if "panicked" in line]
                    if stopped != 0 or panics:
                        problems.append(f"exit code {stopped}, {len(panics)} panics: {panics[:3]}")
    return problems


async def run(options, chain, gateways, injector):
    """Runs the callers and the faults. Returns a list of problems."""
    tally, memory = Tally(chain, injector.active_faults), []
    endless = [asyncio.create_task(task) for task in (chain.follow(), tally.beat(), sample_memory(gateways, tally, memory))]
    # Measures the idle state before the load.
    await asyncio.sleep(5)
    idle = await resources_of(gateways)
    limits = {name: int(idle[name]) + KEPT_CONNECTIONS for name in ("descriptors", "tasks")} | {"requests_in_flight": 0, "connections": 0}
    until = tally.beats + 600 * options.minutes
    over = lambda: tally.beats >= until
    callers = [Caller(random.Random(f"{options.seed} {i}"), chain, injector.keys, tally) for i in range(options.callers)]
    running = asyncio.gather(injector.run(over), *(caller.call(over) for caller in callers))
    # An endless task completes only by an exception.
    done, _ = await asyncio.wait([running, *endless], return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()
    shared = sum([await gateway.metric('shared_requests_total{operation="get",result="hit"') for gateway in gateways])
    print(f"seed {options.seed}: {tally.calls} calls, {tally.hits} hits, {shared:.0f} from the shared store, "
          f"{tally.checked} compared with the chain, {tally.gone} clients disconnected, {len(tally.not_yet)} blocks were not available yet, "
          f"{tally.late} answers were late or behind because the machine stalled; {injector.counted}")
    left = await settle(gateways, limits)
    for task in endless:
        task.cancel()
    problems = table(tally, limits, left, memory)
    if len(tally.not_yet) > tally.calls / 2000:
        problems.append(f"{len(tally.not_yet)} blocks were reported as not available yet: {tally.not_yet[:3]}")
    # A busy machine misses slots, so fewer answers can be compared.
    if tally.checked < tally.calls / 10 or shared < tally.calls / 5000:
        problems.append(f"of {tally.calls} calls {tally.checked} checked, {shared} from the shared store")
    return problems


async def sample_memory(gateways, tally, memory):
    """Appends the resident memory of all gateways to `memory` after each hundred calls. Never ends."""
    while True:
        if tally.calls >= 100 * len(memory):
            memory.append(sum(gateway.resources()[1] for gateway in gateways))
        await asyncio.sleep(0.05)


async def resources_of(gateways):
    """Returns the sums of descriptors, tasks, requests in flight and connections over all gateways."""
    held = {"descriptors": sum(gateway.resources()[0] for gateway in gateways)}
    for name in ("tasks", "requests_in_flight", "connections"):
        held[name] = sum([await gateway.metric(name) for gateway in gateways])
    return held


async def settle(gateways, limits):
    """Waits until the resources are within their limits, for QUIET_S at most. Returns them."""
    deadline = time.monotonic() + QUIET_S
    while True:
        left = await resources_of(gateways)
        if time.monotonic() > deadline or all(left[name] <= limits[name] for name in limits):
            return left
        await asyncio.sleep(1)


def table(tally, limits, left, memory):
    """Prints the table. Returns the names of the rows that miss their goal."""
    mib = lambda count: f"{count / (1 << 20):.1f} MiB"
    third = len(memory) // 3
    middle, last = (statistics.median(part) for part in (memory[third:2 * third], memory[2 * third:]))
    rows = [
        ("failed answers", len(tally.failed), "0", not tally.failed),
        ("wrong answers", len(tally.wrong), "0", not tally.wrong),
        *((f"{name.replace('_', ' ')} left", int(left[name]), f"at most {limits[name]}", left[name] <= limits[name]) for name in limits),
        ("memory in the last third", mib(last), f"at most {mib(middle + MORE_BYTES)}", last <= middle + MORE_BYTES),
    ]
    for name, found, goal, is_met in rows:
        print(f"{name:36} {found!s:24} {goal:24} {'ok' if is_met else 'NOT OK'}")
    for text in [*tally.failed[:10], *tally.wrong[:10]]:
        print("  ", text)
    return [name for name, _, _, is_met in rows if not is_met]


def main():
    parser = argparse.ArgumentParser(description="Runs a soak test of the built slotfront.")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--callers", type=int, default=24)
    parser.add_argument("--logs", help="the folder for the logs of the gateways")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        problems = asyncio.run(soak(options, folder))
    print("problems: " + "; ".join(problems) if problems else "no problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

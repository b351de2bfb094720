#!/usr/bin/env python3
"""Measures the upstream calls that slotfront saves, and the lag of its answers. Prints one table as Markdown.

    lab/replay.py [--published] [--follow] [--seconds S] [--rate N] [--seed N] [--target FOLDER] [--print]

slotfront runs with its default settings in front of a simulated cluster of three nodes with slots of 250 ms. The load is
a seeded mix of calls: equal seed, rate and seconds give equal calls. `--print` prints them with their planned times in
microseconds. Each request is sent at its planned time, even while earlier ones are open.

The calls are of the eight methods. With --published, half of them are, and the other half has the shares of getSlot,
getBlocks, getTransaction, getBlockTime and getBalance that an EVM on Solana has published. With --follow, slotfront follows
the chain, and the follower's own calls count as upstream calls.

The calls, hits, upstream calls and the last column come from `/metrics` and include batched calls. The client measures
the times and the other lags, per request. Except in the rows of misses, lag covers answers from the cache that have a
slot (accounts, balances, fees). The client compares with the newest slots of a node, which it reads 50 times per second.
slotfront compares with the newest slots that it knows.

All traffic stays on the loopback interface.
"""

import argparse
import pathlib
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict

sys.dont_write_bytecode = True
import lab

NODES = 3
HELD = "hit", "stale", "derived"
OUTCOMES = {
    "hit": "hit",
    "derived": "derived from another form",
    "stale": "stale, during a refetch",
    "collapsed": "miss, collapsed",
    "miss": "miss",
    "expired": "miss, cached answer expired",
    "batch:hit": "batch, all from the cache",
    "batch:asked": "batch, some from a node",
}


def labels(sample):
    """Returns the name and the labels of a metric sample."""
    name, _, rest = sample.partition("{")
    return name, dict(re.findall(r'(\w+)="([^"]*)"', rest))


def sums(metrics, metric, *by):
    """Returns the sums of a metric's samples, by the given labels."""
    result = defaultdict(float)
    for sample, value in metrics.items():
        name, of = labels(sample)
        if name == metric:
            result[tuple(of.get(label, "") for label in by)] += value
    return result


def change(before, after, metric, *by):
    first, last = sums(before, metric, *by), sums(after, metric, *by)
    return defaultdict(float, {of: value - first[of] for of, value in last.items()})


def percentile(sorted_values, part):
    return sorted_values[min(len(sorted_values) - 1, int(len(sorted_values) * part))]


def milliseconds(micros, part):
    return f"{percentile(micros, part) / 1000:.2f}" if micros else "–"


def share(part, whole):
    return f"{part / whole:.1%}" if whole else "–"


class Requests:
    """The client's requests of one kind: their times, and the lags of their answers."""

    def __init__(self):
        self.micros, self.behind = [], []

    def columns(self):
        self.micros.sort()
        self.behind.sort()
        times = [milliseconds(self.micros, part) for part in (0.5, 0.99)]
        if not self.behind:
            return times + ["–", "–", "–"]
        mean = sum(self.behind) / len(self.behind)
        return times + [f"{mean:.2f}", f"{percentile(self.behind, 0.99)}", f"{self.behind[-1]}"]


def lag_by_slotfront(before, after, commitment):
    """Returns the mean of slotfront's histogram of served lag, for one commitment or for all."""
    total, count = (
        sum(
            value
            for (of,), value in change(before, after, f"slotfront_cache_served_lag_slots_{part}", "commitment").items()
            if commitment in (None, of)
        )
        for part in ("sum", "count")
    )
    return f"{total / count:.2f}" if count else "–"


def table(before, after, lines):
    """Yields the rows of the table, each a name and its columns."""
    methods, commitments, outcomes, every = defaultdict(Requests), defaultdict(Requests), defaultdict(Requests), Requests()
    for line in lines:
        method, commitment, outcome, micros, behind = line.split()
        for requests in (methods[method], commitments[commitment], outcomes[outcome], every):
            requests.micros.append(int(micros))
            # The lag of a node's new answer is not the cache's, so it counts only in the rows of misses.
            if behind != "-" and (outcome in HELD or requests is outcomes[outcome]):
                requests.behind.append(int(behind))

    asked = change(before, after, "slotfront_requests_total", "method", "commitment", "outcome")
    upstream = change(before, after, "slotfront_upstream_requests_total", "method")

    def calls(choose):
        chosen = {of: value for of, value in asked.items() if choose(*of)}
        return sum(chosen.values()), sum(value for of, value in chosen.items() if of[2] in HELD)

    def row(name, counted, sent, requests, lag="–"):
        total, held = counted
        saved = "–" if sent is None else share(total - sent, total)
        return [name, f"{total:.0f}", share(held, total), "–" if sent is None else f"{sent:.0f}", saved, *requests.columns(), lag]

    known = sorted({method for method, _, _ in asked if method != "other"}, key=lambda m: -calls(lambda of, *_: of == m)[0])
    sent = sum(upstream[(method,)] for method in known)
    yield row("**all calls**", calls(lambda *_: True), sent, every, lag_by_slotfront(before, after, None))
    for method in known:
        if calls(lambda of, *_: of == method)[0]:
            yield row(method, calls(lambda of, *_: of == method), upstream[(method,)], methods[method])
    for commitment in ("processed", "confirmed", "finalized"):
        lag = lag_by_slotfront(before, after, commitment)
        yield row(f"at {commitment}", calls(lambda _, of, __: of == commitment), None, commitments[commitment], lag)
    for outcome in [*OUTCOMES, *sorted(outcomes.keys() - OUTCOMES.keys())]:
        if outcome in outcomes:
            requests = outcomes[outcome]
            yield [OUTCOMES.get(outcome, outcome), f"{len(requests.micros)} requests", "–", "–", "–", *requests.columns(), "–"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--rate", type=float, default=500, help="the average number of requests per second")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--target", type=pathlib.Path, help="a folder with the built programs (default: build them)")
    parser.add_argument("--published", action="store_true", help="take the published shares of more methods")
    parser.add_argument("--follow", action="store_true", help="follow the chain")
    parser.add_argument("--print", action="store_true", help="print the requests without sending them")
    options = parser.parse_args()
    lab.require_two_cores()
    target = lab.programs(options.target, "replay")
    plan = ["--nodes", NODES, "--seed", options.seed, "--rate", options.rate, "--seconds", options.seconds, *(["--published"] if options.published else [])]
    program = ["taskset", "-c", lab.LOAD_CORE, target / "examples" / "replay"]
    if options.print:
        nowhere = "http://127.0.0.1/"
        return subprocess.run([str(word) for word in [*program, nowhere, "--node", nowhere, *plan, "--print"]], check=True)
    with tempfile.TemporaryDirectory() as folder, lab.Servers(folder) as servers:
        nodes = servers.cluster(target, NODES, "--seed", options.seed)
        gateway = lab.Gateway(
            servers, target, "gateway", nodes, f'[follow]\nmode = "{"on" if options.follow else "off"}"', plan='methods = ["core", "tip", "history"]'
        )
        # Waits for the first probes of the nodes.
        time.sleep(3)
        before = gateway.metrics()
        command = [*program, gateway.url, "--node", f"http://127.0.0.1:{nodes[0]}/", *plan]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"the replay failed: {done.stderr[:1000]}")
        after = gateway.metrics()
    lines = done.stdout.splitlines()
    notes = [line[2:] for line in lines if line.startswith("#")]
    print(
        f"{lab.machine()}; seed {options.seed}, {options.rate:g} requests a second for {options.seconds} s, {NODES} nodes, "
        f"250 ms a slot, slotfront on one core, nodes and client on another; {notes[-1]} s because the machine was stalled\n"
    )
    print(f"The mix: {notes[0]}.\n")
    print("| | calls | from the cache | upstream calls | saved | p50, ms | p99, ms | mean lag, slots | p99 lag | maximum lag | mean lag by slotfront |")
    print("| --- |" + " --- |" * 10)
    for columns in table(before, after, [line for line in lines if not line.startswith("#")]):
        print(f"| {' | '.join(columns)} |")


if __name__ == "__main__":
    main()

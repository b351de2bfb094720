#!/usr/bin/env python3
"""Measures the memory of slotfront after churn, and checks that nothing grows. Prints Markdown.

    lab/memory.py [--capacity-mb N] [--times N] [--soak SECONDS] [--follow] [--target FOLDER] [--against FOLDER] [--preload LIBRARY ...]

The churn sends answers of all sizes through a small cache, several times its capacity. They are accounts of 0 to 60,000
bytes, alone and in lists, and blocks of 100 KB to 5 MB. Some are requested again. Resident memory must stay below 1.2
times the capacity plus 60 MB.

The soak continues the churn over short connections. Afterwards resident memory, file descriptors, connections and
requests in flight must not be higher than before.

With `--follow`, slotfront only stands in front of a simulated cluster for the time of the soak, with following off and
on. The difference is what following takes beside the cache.

`--preload` repeats the measurement with another allocator (a shared library).
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
import lab

MB = 1_000_000
# How much resident memory may grow, as a factor and in bytes, because allocators do not return every page.
ALLOWED = 1.02, 4 * MB
GAUGES = "slotfront_requests_in_flight", "slotfront_connections"


def churn(target, gateway, connections, *arguments):
    """Runs a churn. Returns its figures and the resident memory, sampled four times per second."""
    command = [str(word) for word in lab.load_command(target, gateway.url, connections, "churn", *arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    seen = []
    while process.poll() is None:
        seen.append(gateway.resident()[0])
        time.sleep(0.25)
    out, err = process.communicate()
    if process.returncode:
        sys.exit(f"the load failed: {err[:1000]}")
    return lab.read_load(out), seen


def at_rest(gateway):
    """Returns memory, descriptors and gauges after five seconds without calls."""
    time.sleep(5)
    metrics = gateway.metrics()
    state = {"resident": gateway.resident()[0], "descriptors": gateway.descriptors(), "threads": gateway.threads()}
    state |= {name.removeprefix("slotfront_"): metrics[name] for name in GAUGES if name in metrics}
    return state | {"cache_bytes": metrics["slotfront_cache_bytes"], "entries": metrics["slotfront_cache_entries"]}


def grown(before, after):
    """Yields a line for each figure that grew. Entries and blocking threads are not checked, because they vary."""
    times, more = ALLOWED
    if after["resident"] > before["resident"] * times + more:
        yield f"resident memory {before['resident'] / MB:.0f} → {after['resident'] / MB:.0f} MB"
    for name in ("descriptors", "requests_in_flight", "connections"):
        if after.get(name, 0) > before.get(name, 0):
            yield f"{name} {before[name]:.0f} → {after[name]:.0f}"


def measure(options, target, build, name, preload, failures):
    capacity = options.capacity_mb * MB
    goal = 1.2 * capacity + 60 * MB
    with tempfile.TemporaryDirectory() as folder, lab.Servers(folder) as servers:
        env = {"LD_PRELOAD": preload} if preload else None
        node = servers.node(target)
        ttl = "account = { processed = \"1h\", confirmed = \"1h\", finalized = \"1h\" }"
        cache = f'capacity = "{capacity // 1024}KiB"'
        gateway = lab.Gateway(servers, build, "gateway", [node], f"[cache.ttl]\n{ttl}", cache, env=env)
        time.sleep(2)
        start = gateway.resident()[0]
        begun = time.monotonic()
        arguments = ["--bytes", options.times * capacity]
        done, during = churn(target, gateway, options.connections, *arguments)
        took = time.monotonic() - begun
        after = at_rest(gateway)
        first_peak = gateway.resident()[1]
        # Starts from the state after the churn, when all pools have their full size.
        arguments = ["--seconds", options.soak, "--reconnect", 50, "--first", int(done["next"])]
        soaked, meanwhile = churn(target, gateway, options.connections, *arguments)
        last = at_rest(gateway)
        peak = gateway.resident()[1]
    faults = list(grown(after, last))
    if max(after["resident"], last["resident"]) > goal:
        faults.append("resident memory above the goal")
    failures += [f"{name}: {fault}" for fault in faults]
    megabytes = [
        f"{value / MB:.0f}" for value in (start, max(during), after["resident"], last["resident"], peak, after["cache_bytes"])
    ]
    rate = done["calls"] / took
    print(f"| {name} | {' | '.join(megabytes)} | {rate:.0f} | {'no: ' + '; '.join(faults) if faults else 'yes'} |", flush=True)
    detail = {name: (after[name], last[name]) for name in after if name not in ("resident", "cache_bytes")}
    numbers = ", ".join(f"{name} {first:.0f} → {then:.0f}" for name, (first, then) in detail.items())
    return (
        f"{name}: churn of {done['calls']:.0f} calls and {done['bytes'] / MB:.0f} MB in {took:.0f} s (peak {first_peak / MB:.0f} MB, "
        f"{done['timed_out'] + soaked['timed_out']:.0f} calls timed out in all), "
        f"soak of {soaked['calls']:.0f} calls and {soaked['bytes'] / MB:.0f} MB in {soaked['seconds']:.0f} s, "
        f"resident at its quarters {', '.join(f'{value / MB:.0f}' for value in quarters(meanwhile))} MB; {numbers}."
    )


def quarters(seen):
    return [seen[(len(seen) - 1) * part // 4] for part in range(5)]


def measure_following(options, target):
    """Prints the resident memory of slotfront in front of a simulated cluster, with following off and on."""
    print("| MB resident | at the end | peak |")
    print("| --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder, lab.Servers(folder) as servers:
        nodes = servers.cluster(target, 1)
        gateways = {
            f"{name}, following {mode}": lab.Gateway(
                servers, build, f"{name.replace(' ', '-')}-{mode}", nodes, f'[follow]\nmode = "{mode}"'
            )
            for name, build in lab.builds(target, options.against).items() for mode in ("off", "on")
        }
        time.sleep(options.soak)
        for name, gateway in gateways.items():
            print(f"| {name} | {' | '.join(f'{value / MB:.0f}' for value in gateway.resident())} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--capacity-mb", type=int, default=256)
    parser.add_argument("--times", type=int, default=6, help="the bytes of the churn, as a multiple of the capacity")
    parser.add_argument("--soak", type=int, default=60, help="the seconds of the soak")
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--follow", action="store_true", help="measure what following takes, instead of churn and soak")
    lab.add_target_options(parser)
    parser.add_argument("--preload", nargs="*", default=[], help="shared libraries of other allocators to measure")
    options = parser.parse_args()
    lab.require_two_cores()
    target = lab.programs(options.target, "yardsticks", "load")
    if options.follow:
        print(f"{lab.machine()}; {options.soak} s in front of a simulated cluster of one node\n")
        return measure_following(options, target)
    goal = 1.2 * options.capacity_mb + 60
    print(
        f"{lab.machine()}; capacity {options.capacity_mb} MB, churn of {options.times} times the capacity, soak {options.soak} s, "
        f"{options.connections} connections; goal: at most {goal:.0f} MB resident, and no growth during the soak\n"
    )
    print("| MB resident | at the start | peak during the churn | after the churn | after the soak | peak | counted by the cache | calls a second | goal met |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    failures, notes = [], []
    contenders = [(build, name, None) for name, build in lab.builds(target, options.against).items()]
    contenders += [(target, pathlib.Path(path).name, path) for path in options.preload]
    for build, name, preload in contenders:
        notes.append(measure(options, target, build, name, preload, failures))
    print("\n" + "\n".join(notes))
    if failures:
        sys.exit("\n" + "\n".join(failures))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Counts the calls that following the chain saves, compared with an ideal cache. Prints one table as Markdown.

    lab/savings.py [--seconds S] [--rate N] [--list-rate N] [--spread A,B,C] [--confirmed P] [--seed N] [--target FOLDER]

Four slotfronts with default settings stand in front of one simulated cluster with slots of 250 ms: with
`follow.mode = "off"` and `"on"`, for single accounts and for lists. Each has three nodes of its own. Both modes get the
same reads at the same time: equal seed, rates and seconds give equal reads.

The cluster has 2,000 accounts that it writes every slot, every half minute, or never. `--spread` gives the percentages
of the reads of each kind (30,30,40), and `--confirmed` that of the reads at confirmed. The others are at finalized. A
list is of the kind of its most often written account.

The ideal cache fetches an account when it is read for the first time, and again only when it is read for the first time
after a block wrote it. It knows the cluster's own record of writes at once. The upstream calls are counted by the nodes.
Each answer is compared with the state of the cluster at the slot that it names.

All traffic stays on the loopback interface.
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
import lab

NODES = 3
MODES = "off", "on"
KINDS = "singles", "lists"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--rate", type=float, default=200, help="the average number of reads of single accounts per second")
    parser.add_argument("--list-rate", type=float, default=50, help="the average number of reads of lists per second")
    parser.add_argument("--spread", default="30,30,40", help="the percentages of reads of accounts written every slot, every half minute, never")
    parser.add_argument("--confirmed", type=int, default=60, help="the percentage of reads at confirmed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--target", type=pathlib.Path, help="a folder with the built programs (default: build them)")
    options = parser.parse_args()
    lab.require_two_cores()
    target = lab.programs(options.target, "savings")
    names = [f"{kind}-{mode}" for kind in KINDS for mode in MODES]
    with tempfile.TemporaryDirectory() as folder, lab.Servers(folder) as servers:
        ports = {name: [lab.free_port() for _ in range(NODES)] for name in names}
        urls, gateways = [], {}
        for name in names:
            mode = name.partition("-")[2]
            gateways[name] = lab.Gateway(servers, target, name, ports[name], f'[follow]\nmode = "{mode}"')
            urls += [f"--{name}", gateways[name].url]
        nodes = ",".join(str(port) for name in names for port in ports[name])
        command = ["taskset", "-c", lab.LOAD_CORE, target / "examples" / "savings", *urls, "--nodes", nodes]
        for name in ("seconds", "rate", "list_rate", "spread", "confirmed", "seed"):
            command += [f"--{name.replace('_', '-')}", getattr(options, name)]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
        anew = {name: lab.began(gateway.metrics()) for name, gateway in gateways.items() if name.endswith("-on")}
    if done.returncode:
        sys.exit(f"the replay failed: {done.stderr[:1000]}")
    print(f"{lab.machine()}; the slotfronts on one core, nodes and client on another\n")
    print(done.stdout, end="")
    for name, reasons in anew.items():
        print(f"\nFollowing began anew, {name}: {', '.join(f'{reason} {count}' for reason, count in reasons.items()) or 'never'}.")


if __name__ == "__main__":
    main()

"""Compares answers of slotfront with those of its node, and checks their age, their lag and their order.

usage: python3 tests/real/differential DIRECT_URL FRONT_URL --accounts MANIFEST [--seconds N] [--seed S] [--threads N]
                                       [--pause S] [--metrics URL] [--no-writes]

DIRECT_URL is a node. FRONT_URL is a slotfront whose only upstream is that node, with the default bounds of `[cache]` and
without limits (`auth.mode = "open"`). With --metrics,
the /metrics of the admin listener, the report includes the saved calls. Unless --no-writes is given, the node's faucet
transfers to new addresses, which creates accounts.

MANIFEST is a JSON file with accounts, messages and slots of the node. Other members are ignored:

    {
      "accounts": {kind: pubkey, ...},                  pubkeys in base58
      "messages": {kind: message, ...},                 serialized messages in base64, for getFeeForMessage
      "slots":    {kind: [slot, slot, ...], ...}        slots with a transaction of that kind, for getBlock
    }

Any kind is allowed, and more kinds test more. Some have a meaning. The manifest must have:

- the accounts "alice" (any that exists), "unknown" (one that does not exist) and "vote" (the vote account of the node)
- three accounts or more whose kinds begin with "token" or "mint"
- a large account: "sysvar_slot_history", "programdata_token_2022", or a kind that ends in "_100000" or "_1500000"
- the message "transfer" (preferably a legacy message) and at least one more ("v0_lookup" is used if present)
- one slot, of any kind

Kinds that begin with "vote" are vote accounts. These kinds are requested more often, because they change: "alice",
"payer", "identity", "vote", "token_2022_interest", "sysvar_clock", "sysvar_slot_hashes", "sysvar_recent_blockhashes".

Several threads each draw a scenario: an account in many forms, overlapping lists, fees, shapes of a block and others. For
some slots the thread sends its requests to slotfront at random. It also sends each of them to the node whenever the
node's slot has changed. The node's answer at the same context slot is the reference. The checks are:

- Text: bodies at the same slot are equal byte for byte. base64+zstd is compared unpacked, and votes and cluster nodes as
  sets. At finalized, a node's answer labelled S may have data of S+1 or S+2, in lists per element.
- Errors: code, message and data are equal. -32016 occurs only above its data.contextSlot, and never for a slot that the
  node had reached before the call.
- Age: a hit is not behind the node's slot of one (extended) TTL before the call.
- Lag: a hit is within the (extended) bound of the node's slot one probe interval before the call. A fetched answer is not
  behind the node's slot at the time of the call.
- Order: at confirmed and finalized, the slots of one request's answers do not go back. Nor do those of an account in
  different forms, lists and token balances.
- Clock: the slot in the Clock sysvar is context.slot.
- Tip: slots, heights, epochs and blockhashes are not below what any of the tip's methods has shown before the call.
- Beside: what names no slot (history, constants, what belongs to nodes) equals what the node said shortly before or after,
  or lies between the two by the rule of its method: a list has grown, a transaction has got further, a count has risen.

The exit code is 1 if there was a mismatch. Needs only Python. base64+zstd is unpacked with Python's compression.zstd, the
zstandard package or the zstd command, and is left out without any of them.

Files:

- Requests: request.py (requests and their transport), generator.py (random requests), scenarios.py (the requests of a
  thread), others.py (those for answers without a slot, with their rules), comparison.py (calls to both sides).
- Answers: answer.py (parsing), decoding.py (base58, zstd), reference.py (the node's answers by slot), checks.py (the
  checks), bounds.py (the checked bounds).
- The run: state.py (the shared state), report.py (the report).

The files are imported by their bare names, because Python puts the folder of the program on its import path.
"""

import argparse
import http.client
import json
import random
import struct
import sys
import threading
import time

from bounds import COMMITMENTS
from decoding import base58, unpack_zstd
from report import read_metrics, report, report_savings
from request import Peer, envelope
from scenarios import Worker
from state import run


def watch_slots(args):
    """Records the node's slot at each commitment, about twenty times per second."""
    node = Peer(args.direct)
    body = json.dumps([{"jsonrpc": "2.0", "id": c, "method": "getSlot", "params": [{"commitment": c}]} for c in COMMITMENTS]).encode()
    while time.time() < args.until + 10:
        try:
            for answer in json.loads(node.post(body)[2]):
                run.slots[answer["id"]].show(answer["result"], time.time())
        except (OSError, http.client.HTTPException, ValueError, KeyError):
            pass
        time.sleep(0.04)


def request_airdrops(args, addresses):
    """Creates and changes accounts by airdrops to random addresses."""
    node, rng = Peer(args.direct), random.Random(f"{args.seed}/writes")
    time.sleep(5)
    while time.time() < args.until:
        try:
            answer = json.loads(node.post(envelope("requestAirdrop", [rng.choice(addresses), rng.randint(1, 5) * 10**9]))[2])
            run.count("other", "airdrops" if "result" in answer else "airdrops refused")
        except (OSError, http.client.HTTPException, ValueError):
            run.count("other", "airdrops failed")
        time.sleep(rng.uniform(0.5, 3))


def main():
    args = argparse.ArgumentParser(prog="differential", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("direct", metavar="DIRECT_URL")
    args.add_argument("front", metavar="FRONT_URL")
    args.add_argument("--accounts", metavar="MANIFEST", required=True, help="a JSON file as described above")
    args.add_argument("--seconds", type=float, default=120)
    args.add_argument("--seed", default="1")
    args.add_argument("--threads", type=int, default=8)
    args.add_argument("--pause", type=float, default=0.02, help="the mean seconds between two requests of a thread")
    args.add_argument("--metrics", metavar="URL", help="slotfront's /metrics")
    args.add_argument("--no-writes", action="store_true")
    args = args.parse_args()
    with open(args.accounts) as file:
        manifest = json.load(file)
    draw = random.Random(f"{args.seed}/addresses")
    # Each run uses new addresses, whose accounts do not exist yet.
    fresh = [base58(draw.randbytes(24) + struct.pack("<d", time.time())) for _ in range(8)]
    manifest["accounts"].update({f"fresh_{i}": address for i, address in enumerate(fresh)})
    started = time.time()
    args.until = started + args.seconds
    if not unpack_zstd:
        print("no decoder for zstd: base64+zstd is left out")
    before = read_metrics(args.metrics) if args.metrics else {}
    threading.Thread(target=watch_slots, args=(args,), daemon=True).start()
    if not args.no_writes:
        threading.Thread(target=request_airdrops, args=(args, fresh), daemon=True).start()
    while not all(t.now() for t in run.slots.values()):
        time.sleep(0.1)
    workers = [Worker(args, manifest, i) for i in range(args.threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    report(time.time() - started)
    if args.metrics:
        # slotfront compares sampled hits after it has answered them.
        time.sleep(2)
        report_savings(before, read_metrics(args.metrics))
    print("\nmismatches: " + (", ".join(f"{kind} {n}" for kind, n in run.kinds.most_common()) or "none"))
    sys.exit(1 if run.kinds else 0)


if __name__ == "__main__":
    main()

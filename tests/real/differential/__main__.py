"""Compares answers behind slotfront with a node's own, and judges their lives from outside.

usage: python3 tests/real/differential DIRECT_URL FRONT_URL --accounts MANIFEST [--seconds N] [--seed S] [--threads N]
                                       [--pause S] [--within-bound] [--metrics URL] [--no-writes]

DIRECT_URL is a node, FRONT_URL a slotfront whose only upstream is that node, with the default bounds of `[cache]` and
without limits (`auth.mode = "open"`). Give --within-bound where `cache.assemble` is so, and --metrics the admin
listener's /metrics to have the calls counted that were saved. Unless --no-writes is given, the node's faucet is asked
for transfers to new addresses, so that accounts come to be.

MANIFEST is a JSON file that says what there is on the node to ask for. Other members are ignored:

    {
      "accounts": {kind: pubkey, ...},                  pubkeys in base58
      "messages": {kind: message, ...},                 serialized messages in base64, for getFeeForMessage
      "slots":    {kind: [slot, slot, ...], ...}        slots with a transaction of that kind, for getBlock
    }

The kinds are free names, and the more there are the better, but some have a meaning. There must be:

- accounts "alice" (any that exists), "unknown" (one that does not) and "vote" (the node's own vote account); at least
  three whose kinds begin with "token" or "mint"; and one that is large: "sysvar_slot_history", "programdata_token_2022",
  or a kind that ends in "_100000" or "_1500000".
- messages "transfer" (which should be a legacy one) and at least one more; "v0_lookup" is used if there.
- one slot, of any kind.

Kinds that begin with "vote" are vote accounts. These are asked for more often than others, since they change: "alice",
"payer", "identity", "vote", "token_2022_interest", "sysvar_clock", "sysvar_slot_hashes", "sysvar_recent_blockhashes".

Several threads each draw a theme (an account in many forms, lists that overlap, a fee, a block in its shapes, ...), then
for some slots ask slotfront for it at random while asking the node for the same whenever its slot has moved. A node's
answer of the same context slot is the truth. What is judged:

- text: at one slot the bodies are equal byte for byte (base64+zstd by what it unpacks to, votes and cluster nodes as
  sets). At finalized a node's answer labelled S may hold data of S+1 or S+2, element by element in a list.
- errors, by code, message and data; -32016 only above its own data.contextSlot, and never for a slot that the node had
  shown before the call was sent.
- lives: never behind what the node had shown one (stretched) ttl before the call was sent, nor further behind what it
  had shown one probe before than the (stretched) bound in slots; a call that went up is never behind what the node had
  shown when it was sent.
- order: at confirmed and finalized the slots of one request's answers do not go back, nor do those of an account,
  whichever form, list or token balance shows it.
- the Clock sysvar's own slot is context.slot.

Exits with 1 when anything was found. Needs only Python; base64+zstd is unpacked by whichever there is of Python's
compression.zstd, the zstandard package and the zstd command, and left out where none is.

The other files here: bounds.py (the bounds judged by), draw.py (random requests), ask.py (spelling and HTTP), answer.py
(reading an answer), packing.py (base58, zstd), truth.py (the node's answers by slot), judge.py (the rules), sides.py
(asking both sides), themes.py (what a thread asks together), shared.py (what threads share), report.py (tables at the
end). They are imported by their bare names: running the folder puts it on Python's import path.
"""

import argparse
import http.client
import json
import random
import struct
import sys
import threading
import time

from ask import Peer, envelope
from bounds import COMMITMENTS
from packing import base58, unpack_zstd
from report import read_metrics, report, report_savings
from shared import run
from themes import Worker


def watch_slots(args):
    """Keeps the timelines: what the node shows at each commitment, some twenty times a second."""
    node = Peer(args.direct)
    body = json.dumps([{"jsonrpc": "2.0", "id": c, "method": "getSlot", "params": [{"commitment": c}]} for c in COMMITMENTS]).encode()
    while time.time() < args.until + 10:
        try:
            for answer in json.loads(node.post(body)[2]):
                run.slots[answer["id"]].show(answer["result"], time.time())
        except (OSError, http.client.HTTPException, ValueError, KeyError):
            pass
        time.sleep(0.04)


def write(args, addresses):
    """Has accounts come to be, one after the other, and change later."""
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
    args.add_argument("--accounts", metavar="MANIFEST", required=True, help="a JSON file, see above")
    args.add_argument("--seconds", type=float, default=120)
    args.add_argument("--seed", default="1")
    args.add_argument("--threads", type=int, default=8)
    args.add_argument("--pause", type=float, default=0.02, help="mean seconds between a thread's questions")
    args.add_argument("--within-bound", action="store_true", help='slotfront runs with cache.assemble = "within-bound"')
    args.add_argument("--metrics", metavar="URL", help="slotfront's /metrics")
    args.add_argument("--no-writes", action="store_true")
    args = args.parse_args()
    run.within_bound = args.within_bound
    with open(args.accounts) as file:
        manifest = json.load(file)
    draw = random.Random(f"{args.seed}/addresses")
    # New ones each run, so that they do not exist yet.
    fresh = [base58(draw.randbytes(24) + struct.pack("<d", time.time())) for _ in range(8)]
    manifest["accounts"].update({f"fresh_{i}": address for i, address in enumerate(fresh)})
    started = time.time()
    args.until = started + args.seconds
    if not unpack_zstd:
        print("no decoder for zstd: base64+zstd is not asked for")
    before = read_metrics(args.metrics) if args.metrics else {}
    threading.Thread(target=watch_slots, args=(args,), daemon=True).start()
    if not args.no_writes:
        threading.Thread(target=write, args=(args, fresh), daemon=True).start()
    while not all(t.now() for t in run.slots.values()):
        time.sleep(0.1)
    workers = [Worker(args, manifest, i) for i in range(args.threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    report(time.time() - started)
    if args.metrics:
        # Comparisons of hits run after their answers.
        time.sleep(2)
        report_savings(before, read_metrics(args.metrics))
    print("\nmismatches: " + (", ".join(f"{kind} {n}" for kind, n in run.kinds.most_common()) or "none"))
    sys.exit(1 if run.kinds else 0)


if __name__ == "__main__":
    main()

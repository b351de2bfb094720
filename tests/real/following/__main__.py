"""Compares answers of a slotfront that follows the chain with a node's own answers at the same slot.

usage: python3 tests/real/following DIRECT_URL FRONT_URL [--accounts MANIFEST] [--metrics URL] [--seconds N] [--carried N]
                                    [--questions N] [--threads N] [--seed S] [--no-writes]

DIRECT_URL is a node, FRONT_URL a slotfront whose only upstream is that node, with `follow.mode = "on"`, the default bounds
of `[cache]` and without limits (`auth.mode = "open"`). Give slotfront's /metrics with --metrics to have its own counts.

MANIFEST is one of tests/real/differential. Of it only `accounts` is used. Without it, the accounts of the node's newest
blocks are asked for. Unless --no-writes is given, the node's faucet is asked for transfers to new addresses, so that
accounts come to be and change. Let other transfers run beside it.

A number of questions is drawn: accounts in every form, lists, token balances. Recorders ask the node for each of them all
the time at confirmed, so that its answer of nearly each slot is known. Other threads ask slotfront for them at random, at
confirmed and finalized. What is judged:

- An answer that says slot T equals the node's answer at T, byte for byte (base64+zstd by what it unpacks to).
- If the node was not seen at T, the answer equals those of the nearest slots below and above T, if these are equal and no
  block between them lists the account.
- At finalized, an answer that was not carried may be up to two slots ahead of its label, as those of nodes below 4.1 are.
- The lives, the order of slots and the Clock's own slot, as in tests/real/differential.

Ends after --seconds, or once --carried carried answers were compared. Exits with 1 if anything was found, or if no carried
answer was compared.
"""

import argparse
import collections
import importlib.util
import json
import pathlib
import random
import struct
import sys
import threading
import time
import traceback

HERE = pathlib.Path(__file__).resolve().parent
DIFFERENTIAL = HERE.parent / "differential"
sys.path.insert(1, str(DIFFERENTIAL))

from answer import Answer  # noqa: E402
from request import Peer, Request  # noqa: E402
from decoding import base58  # noqa: E402
from report import read_metrics, report_savings  # noqa: E402
from state import run  # noqa: E402
from questions import draw_questions, newest_accounts  # noqa: E402
from verdicts import Asker, compare, summary  # noqa: E402

# After this time, the node has certainly shown a later slot than the answer.
SETTLED_S = 3.0
# The longest time for a run with --carried, which otherwise ends once it has compared enough.
LONGEST_S = 600.0


def differential():
    """Loads the differential test, whose watcher of slots and writer of accounts are used here, too."""
    found = importlib.util.spec_from_file_location("differential", DIFFERENTIAL / "__main__.py")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def guarded(work):
    """Wraps the work of a thread, so that an exception in it becomes a finding. Otherwise nobody would notice it."""
    def whole():
        try:
            work()
        except Exception as error:  # noqa: BLE001
            run.found("script", Request("-", []), "".join(traceback.format_exception(error)))
    return whole


def record(args, questions):
    """Asks the node each question at confirmed again and again, and keeps its answers by slot."""
    node, rng = Peer(args.direct), random.Random(f"{args.seed}/record")
    while time.time() < args.until + SETTLED_S + 5:
        for question in questions:
            request = question["confirmed"]
            sent = time.time()
            status, _, body = node.post(request.body(rng))
            run.count("direct", request.method)
            if status == 200:
                run.reference.add(Answer(request, body, sent, time.time()))
            else:
                run.count("node", f"HTTP {status}")
        time.sleep(0.02)


def judge(args, pending, node):
    """Compares answers once the node has shown later slots. Returns when all are compared."""
    while time.time() < args.until or pending:
        if not pending or pending[0][0].got > time.time() - SETTLED_S:
            time.sleep(0.05)
            continue
        compare(*pending.popleft(), node)
        if args.carried and run.counts["carried"]["compared"] >= args.carried:
            args.until = min(args.until, time.time())


def main():
    args = argparse.ArgumentParser(prog="following", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("direct", metavar="DIRECT_URL")
    args.add_argument("front", metavar="FRONT_URL")
    args.add_argument("--accounts", metavar="MANIFEST", help="a JSON file, see above")
    args.add_argument("--metrics", metavar="URL", help="slotfront's /metrics")
    args.add_argument("--seconds", type=float, default=120)
    args.add_argument("--carried", type=int, help="ends the run once so many carried answers were compared")
    args.add_argument("--questions", type=int, default=100)
    args.add_argument("--threads", type=int, default=4)
    args.add_argument("--pause", type=float, default=0.01, help="mean seconds between a thread's questions")
    args.add_argument("--seed", default="1")
    args.add_argument("--no-writes", action="store_true")
    args = args.parse_args()
    node, rng = Peer(args.direct), random.Random(args.seed)
    accounts = json.loads(pathlib.Path(args.accounts).read_text())["accounts"] if args.accounts else newest_accounts(node)
    # Other addresses in each run, because the accounts must not exist yet.
    fresh = [base58(rng.randbytes(24) + struct.pack("<d", time.time())) for _ in range(8)]
    accounts.update({f"fresh_{i}": address for i, address in enumerate(fresh)})
    questions = draw_questions(node, accounts, rng, args.questions)
    before = read_metrics(args.metrics) if args.metrics else {}
    started = time.time()
    args.until = started + (LONGEST_S if args.carried else args.seconds)
    beside, pending = differential(), collections.deque()
    works = [lambda: beside.watch_slots(args)]
    works += [lambda i=i: record(args, questions[i::2]) for i in range(2)]
    if not args.no_writes:
        works.append(lambda: beside.request_airdrops(args, fresh))
    for work in works:
        threading.Thread(target=guarded(work), daemon=True).start()
    while not all(timeline.now() for timeline in run.slots.values()):
        time.sleep(0.1)
    askers = [Asker(args, questions, i, pending) for i in range(args.threads)]
    for asker in askers:
        threading.Thread(target=guarded(asker.ask), daemon=True).start()
    judge(args, pending, node)
    summary(time.time() - started, accounts, questions)
    if args.metrics:
        report_savings(before, read_metrics(args.metrics))
    print("\nmismatches: " + (", ".join(f"{kind} {n}" for kind, n in run.kinds.most_common()) or "none"))
    compared = run.counts["carried"]["compared"]
    if not compared:
        print("no carried answer was compared")
    sys.exit(1 if run.kinds or not compared else 0)


if __name__ == "__main__":
    main()

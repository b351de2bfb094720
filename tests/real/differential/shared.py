"""What the threads share: counts for the report, the mismatches that were found, and what the node had shown.

There is one run in a process: `run`.
"""

import collections
import threading

from bounds import COMMITMENTS, MOST_PRINTED
from truth import Timeline, Truths


class Run:
    """Everything that is shared and counted."""

    def __init__(self):
        self.lock = threading.Lock()
        self.counts = collections.defaultdict(collections.Counter)
        self.mismatches = []
        self.kinds = collections.Counter()
        self.places = collections.Counter()
        self.within_bound = False
        self.slots = {c: Timeline() for c in COMMITMENTS}
        self.votes = {c: Timeline() for c in COMMITMENTS}
        self.samples = Timeline()
        self.block_since = {}
        self.floors = {}
        self.account_floors = {}
        self.truths = Truths(self.count)

    def count(self, table, row, n=1):
        with self.lock:
            self.counts[table][row] += n

    def found(self, kind, request, what, front=None, direct=()):
        with self.lock:
            self.kinds[kind] += 1
            self.places[kind, request.key] += 1
            if self.places[kind, request.key] > 2 or self.kinds[kind] > MOST_PRINTED:
                return
            lines = [f"MISMATCH {kind}: {what}", f"  request {request.key[:400]}"]
            if front is not None:
                lines.append(f"  front   {front.status or '-'}  minContextSlot {front.wanted}  sent {front.sent:.3f} took {front.got - front.sent:.3f}")
                lines.append(f"          {front.body}")
            lines += [f"  direct  {d}" for d in direct]
            text = "\n".join(lines)
            self.mismatches.append(text)
            print(text, flush=True)


run = Run()

"""The state that the threads share: counts, mismatches, the node's slots over time and its answers.

A process has one state: `run`.
"""

import collections
import threading

from bounds import COMMITMENTS, MOST_PRINTED
from reference import Reference, Timeline


class Run:
    """The shared state of a run."""

    def __init__(self):
        self.lock = threading.Lock()
        self.counts = collections.defaultdict(collections.Counter)
        self.mismatches = []
        self.kinds = collections.Counter()
        self.places = collections.Counter()
        self.slots = {c: Timeline() for c in COMMITMENTS}
        self.votes = {c: Timeline() for c in COMMITMENTS}
        self.samples = Timeline()
        self.block_since = {}
        self.floors = {}
        self.account_floors = {}
        self.reference = Reference(self.count)

    def count(self, table, row, n=1):
        with self.lock:
            self.counts[table][row] += n

    def found(self, kind, request, what, front=None, direct=()):
        """Counts a mismatch, and prints it unless there are too many of its kind."""
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

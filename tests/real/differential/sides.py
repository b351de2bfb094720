"""Asking both sides: slotfront and the node, at the same time, with every answer handed to the rules.

The node is asked again whenever its slot has moved, so that its answer of each slot is known; slotfront is asked at
random in between, and its answers are compared at the end.
"""

import gzip
import time

from answer import Seen, cut, where_from
from draw import Draw
from judge import check_life, check_order, compare, floor_of
from shared import run


class Sides(Draw):
    """`self.direct` and `self.front` (connections), `self.until` and `self.pause` are set by the class that has this one as its base."""

    def ask_direct(self, request, min_context_slot=None):
        sent = time.time()
        status, _, body = self.direct.post(request.body(self.rng, min_context_slot))
        got = time.time()
        run.count("direct", request.method)
        if status != 200:
            run.count("node", f"HTTP {status}")
            return None
        seen = Seen(request, body, sent, got)
        if seen.slot is not None:
            run.slots[request.commitment].show(seen.slot, got)
        elif request.method == "getVoteAccounts" and seen.mark:
            run.votes[request.commitment].show(seen.mark, got)
        elif request.method == "getRecentPerformanceSamples" and seen.mark:
            run.samples.show(seen.mark, got)
        if min_context_slot is None or not seen.error:
            run.truths.add(seen)
        return seen

    def ask_front(self, request, min_context_slot=None):
        headers = {"Accept-Encoding": "gzip"} if self.rng.random() < 0.15 else {}
        floors = floor_of(request)
        sent = time.time()
        status, answer, body = self.front.post(request.body(self.rng, min_context_slot), headers)
        got = time.time()
        run.count("front", request.method)
        if answer.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
            run.count("other", "compressed answers")
        cache_status = answer.get("Cache-Status") or ""
        run.count("outcomes", (request.method, where_from(cache_status)))
        if status != 200:
            run.found("HTTP", request, f"{status} {cut(body)}")
            return None
        front = Seen(request, body, sent, got, cache_status, min_context_slot)
        if front.where == "stale-if-error":
            run.found("stale-if-error", request, "from a node that is well", front)
        check_life(front)
        check_order(front, floors)
        return front

    def together(self, requests, seconds):
        """Asks slotfront for any of `requests`, and the node for each as often as its slot moves."""
        met = {}
        pending = []
        end = min(time.time() + seconds, self.until + 5)
        warm = time.time() + self.rng.choice([0, 0, 0.3, 0.6])
        while time.time() < end:
            if time.time() >= warm and time.time() < end - 0.4:
                request = self.rng.choice(requests)
                front = self.ask_front(request, self.min_context_slot(request))
                if front:
                    pending.append(front)
            for request in self.rng.sample(requests, len(requests)):
                newest = run.slots[request.commitment].now()
                known, times = met.get(request.key, (-1, 0))
                again = request.commitment == "finalized" and times < 3 and self.rng.random() < 0.1
                if known < newest or again:
                    seen = self.ask_direct(request)
                    if seen and seen.slot is not None:
                        met[request.key] = (seen.slot, times + 1 if seen.slot == known else 1)
                    else:
                        met[request.key] = (newest, 1)
                    break
            time.sleep(self.pause * self.rng.random() * 2)
        for front in pending:
            compare(front)

"""Requests to both sides, slotfront and the node, at the same time. Every answer of slotfront is checked.

A request goes to the node whenever the node's slot has changed, so its answer at each slot is known. Requests to slotfront
are sent at random times, and their answers are compared at the end.
"""

import gzip
import time

from answer import Answer, cut, source
from checks import check_bounds, check_order, compare, floor_of
from generator import RequestGenerator
from state import run


class Comparison(RequestGenerator):
    """The requests of one thread to both sides.

    Subclasses set `self.direct` and `self.front` (connections), `self.until` and `self.pause`.
    """

    def ask_direct(self, request, min_context_slot=None):
        sent = time.time()
        status, _, body = self.direct.post(request.body(self.rng, min_context_slot))
        got = time.time()
        run.count("direct", request.method)
        if status != 200:
            run.count("node", f"HTTP {status}")
            return None
        seen = Answer(request, body, sent, got)
        if seen.slot is not None:
            run.slots[request.commitment].show(seen.slot, got)
        elif request.method in ("getSlot", "getEpochInfo") and seen.mark:
            run.slots[request.commitment].show(seen.mark, got)
        elif request.method == "getVoteAccounts" and seen.mark:
            run.votes[request.commitment].show(seen.mark, got)
        elif request.method == "getRecentPerformanceSamples" and seen.mark:
            run.samples.show(seen.mark, got)
        if min_context_slot is None or not seen.error:
            run.reference.add(seen)
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
        run.count("outcomes", (request.method, source(cache_status)))
        if status != 200:
            run.found("HTTP", request, f"{status} {cut(body)}")
            return None
        front = Answer(request, body, sent, got, cache_status, min_context_slot)
        if front.source == "stale-if-error":
            run.found("stale-if-error", request, "although the node is healthy", front)
        check_bounds(front)
        check_order(front, floors)
        return front

    def compare_for(self, seconds, requests):
        """Sends random ones of `requests` to slotfront, and each to the node whenever the node's slot has changed."""
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

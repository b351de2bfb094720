"""The observations of the node: its slot at any time, and its answers by request and slot."""

import bisect
import collections
import threading
import time


class Timeline:
    """The highest number that a node has returned, over time."""

    def __init__(self):
        self.lock, self.times, self.numbers = threading.Lock(), [], []

    def show(self, number, when):
        with self.lock:
            if not self.numbers or number > self.numbers[-1]:
                # Reports of several threads may arrive out of order. Times and numbers both stay sorted.
                self.times.append(max(when, self.times[-1] if self.times else when))
                self.numbers.append(number)

    def at(self, when):
        with self.lock:
            i = bisect.bisect_right(self.times, when)
            return self.numbers[i - 1] if i else 0

    def now(self):
        return self.numbers[-1] if self.numbers else 0

    def step_s(self):
        """Returns the mean duration of a step in seconds."""
        if len(self.numbers) < 2 or self.numbers[-1] == self.numbers[0]:
            return 0.4
        return (self.times[-1] - self.times[0]) / (self.numbers[-1] - self.numbers[0])


class Reference:
    """The node's answers: for each request and slot (or another mark), every value that was observed."""

    KEEP_S = 90

    def __init__(self, count):
        """`count` is a function that adds one to a row of a table of the report."""
        self.lock, self.count = threading.Lock(), count
        self.answers = collections.defaultdict(dict)
        self.errors = collections.defaultdict(dict)

    def add(self, seen):
        key, mark = seen.request.key, seen.mark
        with self.lock:
            if seen.error:
                self.errors[key][seen.error] = seen.got
                return
            values = self.answers[key].setdefault(mark, {})
            first = not values
            kept = values.setdefault(seen.parts, {"texts": set(), "body": seen.body, "sent": seen.sent})
            kept["texts"].add(seen.text)
            kept["got"] = seen.got
            if not first and len(values) > 1 and len(kept["texts"]) == 1:
                self.count("node", f"two values under one mark: {seen.request.method} {seen.request.commitment or ''}")
            if len(self.answers[key]) > 100 and mark:
                old = [m for m, v in self.answers[key].items() if all(time.time() - x["got"] > self.KEEP_S for x in v.values())]
                for m in old:
                    del self.answers[key][m]

    def at(self, key, mark):
        with self.lock:
            return dict(self.answers.get(key, {}).get(mark, {}))

    def results(self, key):
        with self.lock:
            return {mark: dict(values) for mark, values in self.answers.get(key, {}).items()}

    def errors_of(self, key):
        with self.lock:
            return dict(self.errors.get(key, {}))

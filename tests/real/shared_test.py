"""Four instances of the built `slotfront` with one real store: shared answers and rates, and a store that stops."""

import http.client
import json
import os
import signal
import tempfile
import threading
import time
import unittest
from pathlib import Path

from gateway import PATIENCE_S, Nodes, Serve, Store, call, eventually, keys, metric, upstreams

REPLICAS = 4
RATE, BURST = 100, 100
# The methods with the longest TTLs, because the machine may stall for seconds.
METHODS = ("getClusterNodes", "getRecentPerformanceSamples")
ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"


def address():
    """Returns a random address, which is in no cache."""
    number = int.from_bytes(os.urandom(31)) | 1 << 247
    text = ""
    while number:
        number, digit = divmod(number, len(ALPHABET))
        text = ALPHABET[digit] + text
    return "1" + text


class Replicas(unittest.TestCase):
    """A test with a simulated node, a store, one key file, and four gateways."""

    # A busy machine may exceed the default timeout of 20 ms.
    settings = 'timeout = "20s"\n'

    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.store = self.enterContext(Store(self.folder))
        node = self.enterContext(Nodes())
        file = self.folder / "keys.toml"
        self.key, self.fast = (keys(file, "create", "--name", plan, "--plan", plan) for plan in ("standard", "fast"))
        self.gateways = [self.gateway(i, file, node) for i in range(REPLICAS)]

    def gateway(self, i, keys_file, node):
        config = self.folder / f"{i}.toml"
        config.write_text(
            '[server]\nlisten = "127.0.0.1:0"\nadmin_listen = "127.0.0.1:0"\n'
            f'[auth]\nkeys_file = "{keys_file}"\nusage_file = "usage-{i}.json"\n'
            f'[plans.standard]\nrps = {RATE}\nburst = {BURST}\n[plans.fast]\nrps = 1000000\n'
            f'[shared]\nurl = "redis://127.0.0.1:{self.store.port}"\n{self.settings}' + upstreams(node.ports))
        serve = self.enterContext(Serve(config))
        serve.wait_for("the shared store is connected")
        return serve.ready()

    def metric(self, i, series):
        return metric(self.gateways[i].admin, series)

    def counted(self, i, series, at_least):
        """Waits until a series of gateway `i` has at least this value."""
        eventually(lambda: self.metric(i, series) >= at_least, f"{series} of {i} never became {at_least}")

    def load(self, key, methods, until, callers=2):
        """Sends calls to all gateways without a pause, until `until` returns. It is called with the number of answers by
        status, which changes meanwhile.

        Returns this number, the longest time of a call, and the duration.
        """
        statuses, longest, lock, over = {}, [0.0], threading.Lock(), threading.Event()

        def caller(i):
            connection, turn = http.client.HTTPConnection(self.gateways[i].public, timeout=PATIENCE_S), 0
            while not over.is_set():
                method, params = methods(turn)
                body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
                started = time.monotonic()
                connection.request("POST", f"/v3/{key}", body, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                text, took, turn = answer.read(), time.monotonic() - started, turn + 1
                outcome = answer.status if answer.status != 200 or b'"result"' in text else text
                with lock:
                    statuses[outcome] = statuses.get(outcome, 0) + 1
                    longest[0] = max(longest[0], took)
            connection.close()

        started = time.monotonic()
        threads = [threading.Thread(target=caller, args=(i,)) for i in range(REPLICAS) for _ in range(callers)]
        for thread in threads:
            thread.start()
        try:
            until(statuses)
        finally:
            over.set()
            for thread in threads:
                thread.join()
        return statuses, longest[0], time.monotonic() - started


class SharedState(Replicas):
    """Gateways with a long timeout of the store."""

    def test_replicas_share_fetched_answers(self):
        for method in METHODS:
            status, where, first = call(self.gateways[0].url(self.fast), method, [])
            self.assertEqual((status, where), (200, "slotfront; fwd=miss; stored"))
        self.counted(0, 'shared_requests_total{operation="put",result="ok"}', len(METHODS))
        for i in range(1, REPLICAS):
            for method in METHODS:
                status, where, _ = call(self.gateways[i].url(self.fast), method, [])
                self.assertEqual(status, 200)
                self.assertTrue(where.startswith("slotfront; hit"), f"{i}: {method}: {where}")
            self.assertEqual(self.metric(i, 'shared_requests_total{operation="get",result="hit"}'), len(METHODS))

    def test_four_replicas_share_one_rate_limit(self):
        # The burst, and what the rate allows in some seconds.
        wanted = BURST + 4 * RATE
        statuses, _, took = self.load(
            self.key, lambda _: ("getClusterNodes", []),
            lambda statuses: eventually(lambda: statuses.get(200, 0) >= wanted, lambda: f"{statuses} after a minute"))
        self.assertLessEqual(set(statuses), {200, 429})
        allowed = BURST + RATE * took
        print(f"{statuses[200]} passed in {took:.1f} s, {allowed:.0f} are allowed: {statuses[200] / allowed:.3f}")
        self.assertLessEqual(statuses[200], allowed * 1.05)


class StoppedStore(Replicas):
    """Gateways with default settings."""

    settings = ""

    def test_stopped_store_fails_no_call(self):
        skipped = 'shared_requests_total{operation="get",result="skipped"}'

        def pause(statuses):
            eventually(lambda: statuses.get(200, 0) > 100, "no calls are answered")
            before = [self.metric(i, skipped) for i in range(REPLICAS)]
            self.store.send(signal.SIGSTOP)
            for i in range(REPLICAS):
                self.counted(i, skipped, before[i] + 100)
            self.store.send(signal.SIGCONT)

        statuses, longest, _ = self.load(self.fast, lambda _: ("getAccountInfo", [address()]), pause)
        print(f"{statuses}, the longest took {longest * 1000:.0f} ms")
        self.assertEqual(set(statuses), {200})
        for i in range(REPLICAS):
            kept = self.metric(i, 'shared_requests_total{operation="put",result="ok"}')

            def is_kept(i=i, kept=kept):
                # On a busy machine a write may take longer than the store's timeout, so each try is a new one.
                call(self.gateways[i].url(self.fast), "getAccountInfo", [address()])
                return self.metric(i, 'shared_requests_total{operation="put",result="ok"}') > kept

            eventually(is_kept, f"gateway {i} writes nothing to the store after its return")


del Replicas  # The base class has no tests.


if __name__ == "__main__":
    unittest.main()

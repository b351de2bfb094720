"""Four built `slotfront` side by side with one real store: what they share, and what happens when it stops."""

import http.client
import json
import os
import re
import signal
import subprocess
import tempfile
import threading
import time
import unittest
from pathlib import Path

from running import BINARY, PATIENCE_S, Running, call, free_port, get, ready

REPLICAS = 4
RATE, BURST = 100, 100
# Whose answers live longest: the machine may stand still for seconds.
METHODS = ("getClusterNodes", "getRecentPerformanceSamples")
ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"


def address():
    """An account that nobody has asked for."""
    number = int.from_bytes(os.urandom(31)) | 1 << 247
    text = ""
    while number:
        number, digit = divmod(number, len(ALPHABET))
        text = ALPHABET[digit] + text
    return "1" + text


class Replicas(unittest.TestCase):
    """A simulated node, a store, one key file, and four gateways."""

    # A machine that is busy with other things answers nobody in 20 ms.
    settings = 'timeout = "1s"\n'

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.store_port, node = free_port(), free_port()
        self.store = self.run_until("redis-server", "--port", str(self.store_port), "--save", "", "--dir", folder.name,
                                    prints="Ready to accept connections")
        self.run_until("sim", "--listen", f"127.0.0.1:{node}", "--nodes", "1", prints=r"127\.0\.0\.1:\d+")
        keys = self.folder / "keys.toml"
        made = lambda plan: subprocess.run([BINARY, "keys", "create", "--file", keys, "--name", plan, "--plan", plan],
                                           capture_output=True, text=True, check=True).stdout.strip()
        self.key, self.fast = made("standard"), made("fast")
        self.gateways = [self.gateway(i, keys, node) for i in range(REPLICAS)]

    def run_until(self, *arguments, prints):
        program = "redis-server" if arguments[0] == "redis-server" else BINARY
        running = Running(*(arguments[1:] if program != BINARY else arguments), program=program)
        running.__enter__()
        self.addCleanup(running.__exit__)
        running.wait_for(prints)
        return running

    def gateway(self, i, keys, node):
        config = self.folder / f"{i}.toml"
        config.write_text(
            '[server]\nlisten = "127.0.0.1:0"\nadmin_listen = "127.0.0.1:0"\n'
            f'[auth]\nkeys_file = "{keys}"\nusage_file = "usage-{i}.json"\n'
            f'[plans.standard]\nrps = {RATE}\nburst = {BURST}\n[plans.fast]\nrps = 1000000\n'
            f'[shared]\nurl = "redis://127.0.0.1:{self.store_port}"\n{self.settings}'
            f'[[upstream]]\nurl = "http://127.0.0.1:{node}"\n')
        serve = self.run_until("serve", "--config", str(config), prints="the shared store is connected")
        public = serve.wait_for(r"server\.listen\W+(127\.0\.0\.1:\d+)").group(1)
        admin = serve.wait_for(r"server\.admin_listen\W+(127\.0\.0\.1:\d+)").group(1)
        ready(f"http://{admin}/")
        return public, admin

    def metric(self, i, line):
        found = re.search(f"^slotfront_{re.escape(line)} (\\S+)$", get(f"http://{self.gateways[i][1]}/metrics")[1], re.M)
        return float(found.group(1)) if found else 0.0

    def counted(self, i, line, at_least):
        deadline = time.monotonic() + PATIENCE_S
        while self.metric(i, line) < at_least:
            self.assertLess(time.monotonic(), deadline, f"{line} of {i} never became {at_least}")
            time.sleep(0.02)

    def load(self, key, seconds, methods, callers=2):
        """Calls at all gateways without a pause; each status with its number, and the longest time."""
        statuses, longest, lock, over = {}, [0.0], threading.Lock(), time.monotonic() + seconds

        def caller(i):
            connection, turn = http.client.HTTPConnection(self.gateways[i][0], timeout=PATIENCE_S), 0
            while time.monotonic() < over:
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
        for thread in threads:
            thread.join()
        return statuses, longest[0], time.monotonic() - started


class Together(Replicas):
    """As they are where the store may take its time."""

    def test_what_one_fetched_the_others_answer_without_a_node(self):
        for method in METHODS:
            status, where, first = call(f"http://{self.gateways[0][0]}/v3/{self.fast}", method, [])
            self.assertEqual((status, where), (200, "slotfront; fwd=miss; stored"))
        self.counted(0, 'shared_requests_total{operation="put",result="ok"}', len(METHODS))
        for i in range(1, REPLICAS):
            for method in METHODS:
                status, where, _ = call(f"http://{self.gateways[i][0]}/v3/{self.fast}", method, [])
                self.assertEqual(status, 200)
                self.assertTrue(where.startswith("slotfront; hit"), f"{i}: {method}: {where}")
            self.assertEqual(self.metric(i, 'shared_requests_total{operation="get",result="hit"}'), len(METHODS))

    def test_a_plan_of_a_hundred_a_second_is_that_at_all_four_together(self):
        statuses, _, took = self.load(self.key, 6, lambda _: ("getClusterNodes", []))
        self.assertLessEqual(set(statuses), {200, 429})
        allowed = BURST + RATE * took
        print(f"{statuses[200]} passed in {took:.1f} s, {allowed:.0f} are allowed: {statuses[200] / allowed:.3f}")
        self.assertLessEqual(statuses[200], allowed * 1.05)
        self.assertGreaterEqual(statuses[200], allowed * 0.7)


class Stopped(Replicas):
    """As they are by default."""

    settings = ""

    def test_a_store_that_stops_under_load_fails_nobody(self):
        stop = threading.Timer(1, lambda: self.store.process.send_signal(signal.SIGSTOP))
        go = threading.Timer(4, lambda: self.store.process.send_signal(signal.SIGCONT))
        stop.start(), go.start()
        statuses, longest, _ = self.load(self.fast, 7, lambda _: ("getAccountInfo", [address()]))
        print(f"{statuses}, the longest took {longest * 1000:.0f} ms")
        self.assertEqual(set(statuses), {200})
        for i in range(REPLICAS):
            self.assertGreater(self.metric(i, 'shared_requests_total{operation="get",result="skipped"}'), 0)
            kept = self.metric(i, 'shared_requests_total{operation="put",result="ok"}')
            call(f"http://{self.gateways[i][0]}/v3/{self.fast}", "getAccountInfo", [address()])
            self.counted(i, 'shared_requests_total{operation="put",result="ok"}', kept + 1)


del Replicas  # It has no tests of its own.


if __name__ == "__main__":
    unittest.main()

"""The usage file of the built `slotfront`, summed by another program."""

import csv
import io
import json
import random
import signal
import tempfile
import time
import unittest
from collections import Counter
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path

from gateway import GatewayTest, call, run

METHODS = ["getBlock", "getAccountInfo", "getClusterNodes", "notification", "looks"]


class Usage(unittest.TestCase):
    def test_month_of_two_replicas_is_summed_exactly(self):
        dice = random.Random(49)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        files = [Path(folder.name, f"usage-{replica}.json") for replica in (1, 2)]
        expected, lines = Counter(), ([], [])
        first = date(2026, 10, 25)
        for number in range(40):
            day = first + timedelta(days=number)
            for _ in range(dice.randrange(200)):
                key, methods = f"key-{dice.randrange(5)}", {}
                for method in dice.sample(METHODS, dice.randrange(4)):
                    calls, units = dice.randrange(1000), Decimal(dice.randrange(10**9)) / 1000
                    methods[method] = [calls, float(units)]
                    if day.month == 11:
                        expected[str(day), key, method, "calls"] += calls
                        expected[str(day), key, method, "units"] += units
                line = {"day": str(day), "key": key, "name": '=1+1,"\n', "used": [1.0, 2.0], "calls": methods}
                # Clocks jump, so the lines of a day need not follow each other.
                of = dice.choice(lines)
                of.insert(max(0, len(of) - dice.randrange(500)), json.dumps(line))
        for file, text in zip(files, lines):
            file.write_text("\n".join(text) + '\n{"day":"2026-11-30","key":"key-1","na')
        options = ["usage", "--month", "2026-11"]
        of_csv = csv.DictReader(io.StringIO(run(*options, "--csv", *files).stdout))
        of_json = json.loads(run(*options, "--json", *files).stdout, parse_float=Decimal)
        for rows in (list(of_csv), of_json):
            found = Counter()
            for row in rows:
                self.assertFalse(row["name"].startswith("=") and rows is not of_json, row)
                found[row["day"], row["key"], row["method"], "calls"] += int(row["calls"])
                found[row["day"], row["key"], row["method"], "units"] += Decimal(row["units"])
            self.assertEqual(found, expected)


class Killed(GatewayTest):
    def test_random_kills_lose_a_second_at_most(self):
        dice, key = random.Random(49), self.keys("create", "--name", "a")
        self.configuration(self.nodes)
        file, made, saved = Path(self.folder, "usage.json"), 0, 0
        for _ in range(5):
            serve = self.serve()
            # Until the random moment of the kill, each call is made at a known time.
            at, until = [], time.monotonic() + 1 + 2 * dice.random()
            while time.monotonic() < until:
                self.assertEqual(call(serve.url(key), "getClusterNodes", [])[0], 200)
                at.append(time.monotonic())
            killed = time.monotonic()
            serve.stop(signal.SIGKILL)
            made += len(at)
            rows = json.loads(run("usage", "--json", file).stdout) if file.exists() else []
            calls = sum(row["calls"] for row in rows)
            # A round each second, and time for the disk and a busy machine.
            lasting = sum(1 for made_at in at if killed - made_at > 3)
            self.assertLessEqual(saved + lasting, calls)
            self.assertLessEqual(calls, made)
            saved = calls
        serve = self.serve()
        self.assertEqual(self.used(key), saved, "what the file has goes on")
        self.assertEqual(serve.stop(), 0)


if __name__ == "__main__":
    unittest.main()

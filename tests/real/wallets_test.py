"""Wallets that live on `slotfront dev` alone: unmodified client libraries get its address, and nothing else."""

import json
import os
import re
import subprocess
import unittest
from pathlib import Path

from gateway import ROOT, TARGET, Dev

CLIENTS = Path(__file__).parent / "clients"
JAVASCRIPT = CLIENTS / "javascript"
PATIENCE_S = 120


def run(*command, source=None, **environment):
    ran = subprocess.run(command, cwd=JAVASCRIPT, input=source, env={**os.environ, **environment}, capture_output=True, text=True, timeout=PATIENCE_S)
    if ran.returncode:
        raise AssertionError(ran.stdout + ran.stderr)
    return ran.stdout


class Wallets(unittest.TestCase):
    def test_payment_of_the_readme(self):
        snippet = re.search(r"```js\n(import .*?)```", (ROOT / "README.md").read_text(), re.S).group(1)
        with Dev() as dev:
            dev.ready()
            source = snippet.replace("http://127.0.0.1:8899/v3/dev", dev.url) + "setTimeout(() => process.exit(), 3000);\n"
            printed = run("node", "--input-type=module", source=source)
        self.assertRegex(printed, r"(?m)^100000000 at slot \d+$")
        self.assertRegex(printed, r"(?m)^[1-9A-HJ-NP-Za-km-z]{86,88}$")

    def test_no_payment_is_called_expired(self):
        pay = {"payments": 60, "atOnce": 6, "patience": 60_000}
        with Dev() as dev:
            dev.ready()
            # All wallets pay at once, so nothing has to be said on the input but a line.
            printed = run("node", "pay.mjs", source="\n", PAY=json.dumps(pay | {"url": dev.url, "truth": dev.url}))
        counts = json.loads(printed.splitlines()[-1])
        self.assertEqual(counts["confirmed"], 60, counts)
        self.assertEqual(counts["falseExpiries"] + counts["lost"], 0, counts)

    def test_payments_with_kit(self):
        with Dev() as dev:
            dev.ready()
            printed = run("node", "pay_kit.mjs", PAY=json.dumps(addresses(dev) | {"payments": 3}))
        seen = json.loads(printed)
        self.assertEqual([len(seen["accounts"]), len(seen["slots"])], [3, 3], seen)
        for slots in seen.values():
            self.assertEqual(slots, sorted(set(slots)), "slots rise")

    def test_payment_with_solana_py(self):
        with Dev() as dev:
            dev.ready()
            printed = run(TARGET / "clients" / "venv" / "bin" / "python", CLIENTS / "python" / "pay.py", PAY=json.dumps(addresses(dev)))
        paid = json.loads(printed)
        self.assertEqual(paid["error"], None)
        self.assertRegex(paid["status"], "Confirmed|Finalized")
        self.assertEqual(len(paid["kinds"]), 3, paid)

    def test_payment_in_rust(self):
        with Dev() as dev:
            dev.ready()
            printed = run(TARGET / "clients" / "rust" / "debug" / "pay", PAY=json.dumps(addresses(dev)))
        paid = json.loads(printed)
        self.assertLess(paid.pop("account"), 1_000_000_000 - 5_000_000)
        self.assertGreater(min(paid.pop("slot"), paid.pop("transaction")), 0)
        self.assertEqual(paid, {"signature": {"err": None}, "logs": True, "program": True, "balance": 5_000_000})


def addresses(dev):
    """Returns the addresses for a library that has to be told both."""
    return {"url": dev.url, "ws": dev.url.replace("http", "ws")}


if __name__ == "__main__":
    unittest.main()

"""Wallets that live on `slotfront dev` alone: unmodified client libraries get its address, and nothing else."""

import json
import os
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

from gateway import ROOT, TARGET, Dev

CLIENTS = Path(__file__).parent / "clients"
JAVASCRIPT = CLIENTS / "javascript"
PATIENCE_S = 120
PAYEE = "7pQFpb2d353JDTYf533Q6ppzxKZw9e1KyymhAzQF9ssY"
UNKNOWN = "5VERv8NMvzbJMEkV8xnrLkEaWRtSz9CosKDYjCJjBRnbJLgp8uirBgmQpjKhoR4tjF3ZpRzrFmBV6UjKdiSZkQUW"


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

    def test_commands_of_solana(self):
        with Dev() as dev, tempfile.TemporaryDirectory() as home:
            dev.ready()
            key = Path(home, "key.json")
            key.write_text(dev.wait_for(r"^(\[[\d,]+\])$").group(1))
            command = [TARGET / "clients" / "cli" / "bin" / "solana", "--url", dev.url, "--ws", addresses(dev)["ws"], "--keypair", key]
            solana = lambda *words: run(*command, *words, HOME=home)
            self.assertEqual(solana("balance"), "1000 SOL\n")
            # It reads the balance once more as soon as the airdrop is confirmed.
            self.assertIn("\n1005 SOL\n", solana("airdrop", "5"))
            with subprocess.Popen([*command, "logs"], env={**os.environ, "HOME": home}, stdout=subprocess.PIPE, text=True) as logs:
                try:
                    told = (line.strip() for line in logs.stdout)
                    next(line for line in told if line.startswith("Transaction executed in slot"))
                    paid = solana("transfer", "--allow-unfunded-recipient", PAYEE, "1")
                    signature = re.search(r"^Signature: (\w+)$", paid, re.M).group(1)
                    self.assertEqual(next(line for line in told if signature in line), f"Signature: {signature}")
                finally:
                    logs.kill()
            self.assertEqual(solana("balance", PAYEE), "1 SOL\n")
            self.assertRegex(solana("confirm", "--verbose", signature), r"(?s)Status: Ok.*Account 1 balance: ◎0 -> ◎1\n.*\nConfirmed\n")
            self.assertEqual(solana("confirm", UNKNOWN), "Not found\n")


def addresses(dev):
    """Returns the addresses for a library that has to be told both."""
    return {"url": dev.url, "ws": dev.url.replace("http", "ws")}


if __name__ == "__main__":
    unittest.main()

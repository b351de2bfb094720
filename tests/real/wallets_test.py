"""Wallets that live on `slotfront dev` alone: unmodified client libraries get its address, and nothing else."""

import contextlib
import json
import os
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

from gateway import ROOT, TARGET, Dev, Serve, eventually, get, keys
from ports import free_port

CLIENTS = Path(__file__).parent / "clients"
JAVASCRIPT = CLIENTS / "javascript"
GO = TARGET / "clients" / "go" / "watch"
PATIENCE_S = 120
PAYMENTS = 3
# The libraries that watch at once. Rust's is built once a week.
WATCHERS = {
    "web3.js": ["node", "watch_web3js.mjs"],
    "kit": ["node", "watch_kit.mjs"],
    "solana-py": [TARGET / "clients" / "venv" / "bin" / "python", CLIENTS / "python" / "watch.py"],
    "solana-go": [GO],
}
# A node with airdrops, such as `http://127.0.0.1:8899` of solana-test-validator, in whose place `slotfront dev` is otherwise.
NODE = os.environ.get("WALLETS_NODE")
BESIDE_NODE = """
[server]
listen = "127.0.0.1:{port}"
ws_listen = "127.0.0.1:{ws_port}"
admin_listen = "127.0.0.1:0"

[plans.standard]
rps = 1000

[[upstream]]
name = "node"
url = "{node}"
ws_url = "{ws}"
"""
RUST = {"rust": [TARGET / "clients" / "rust" / "debug" / "watch"]}
PAYEE = "7pQFpb2d353JDTYf533Q6ppzxKZw9e1KyymhAzQF9ssY"
UNKNOWN = "5VERv8NMvzbJMEkV8xnrLkEaWRtSz9CosKDYjCJjBRnbJLgp8uirBgmQpjKhoR4tjF3ZpRzrFmBV6UjKdiSZkQUW"


def run(*command, source=None, **environment):
    ran = subprocess.run(command, cwd=JAVASCRIPT, input=source, env={**os.environ, **environment}, capture_output=True, text=True, timeout=PATIENCE_S)
    if ran.returncode:
        raise AssertionError(ran.stdout + ran.stderr)
    return ran.stdout


@contextlib.contextmanager
def beside_node(node):
    """A gateway in front of a node, whose WebSocket has the next port."""
    host, port = node.rsplit(":", 1)
    own = free_port()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "slotfront.toml")
        config.write_text(BESIDE_NODE.format(port=own, ws_port=own + 1, node=node, ws=f"{host.replace('http', 'ws')}:{int(port) + 1}"))
        key = keys(Path(folder, "keys.toml"), "create", "--name", "wallets")
        with Serve(config) as serve:
            serve.url = serve.url(key)
            yield serve


@contextlib.contextmanager
def program(command, **environment):
    """A running client, which ends with the test."""
    pipes = {name: subprocess.PIPE for name in ("stdin", "stdout", "stderr")}
    with subprocess.Popen(command, cwd=JAVASCRIPT, env={**os.environ, **environment}, text=True, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


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

    def test_libraries_watch_together(self):
        self.watch_together(WATCHERS)

    def test_libraries_watch_together_with_rusts(self):
        self.watch_together(WATCHERS | RUST)

    def watch_together(self, watchers):
        """Lets each library watch what all others watch, twice. Each gets what it would get alone."""
        with contextlib.ExitStack() as running:
            dev = running.enter_context(beside_node(NODE) if NODE else Dev()).ready()
            start = lambda command, **environment: running.enter_context(program(command, **environment))
            payer = start(["node", "payer.mjs"], PAY=json.dumps({"url": NODE or dev.url, "payments": PAYMENTS}))
            paid = json.loads(payer.stdout.readline())
            watch = json.dumps(addresses(dev) | paid)
            told = {(name, i): start(command, WATCH=watch) for name, command in watchers.items() for i in range(2)}
            subscriptions = {"account": 1, "program": 1, "signature": PAYMENTS}
            def all_watch():
                metrics = get(f"http://{dev.admin}/metrics")[1]
                return all(f'slotfront_ws_subscriptions{{method="{kind}Subscribe"}} {each * len(told)}\n' in metrics for kind, each in subscriptions.items())
            eventually(all_watch, "not all have subscribed")
            payer.communicate("\n", timeout=PATIENCE_S)
            expected = {"account": paid["balances"], "program": paid["balances"], "signatures": dict.fromkeys(paid["signatures"])}
            for who, client in told.items():
                out, err = client.communicate(timeout=PATIENCE_S)
                self.assertEqual(client.returncode, 0, (who, err))
                self.assertEqual(json.loads(out), expected, who)

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

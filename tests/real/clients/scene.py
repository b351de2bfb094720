"""What the clients are sent to: three simulated nodes, slotfront in front of them, and what is true there.

The truth is asked of a node directly, as plain JSON, and is of the past, so that it stays true: a final block, a mint's
decimals, a skipped slot. Each client gets it as one JSON text, and holds what its library made of slotfront's answers
against it.
"""

import base64
import contextlib
import json
import os
import re
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from running import BINARY, Running, call, free_port, get, ready

# What wallets and the libraries themselves call beside the eight.
FURTHER = ["getSlot", "getBalance", "getLatestBlockhash", "getEpochInfo", "getVersion", "getHealth"]

CONFIGURATION = """
[server]
listen = "127.0.0.1:0"
admin_listen = "127.0.0.1:0"

[plans.standard]
rps = 10000

# Two calls a second: whoever asks four meets the limit.
[plans.slow]
rps = 2
burst = 2

[passthrough]
methods = {further}
"""
NODES = 3


class Scene:
    """The running programs; `text` is what a client is told."""

    def __init__(self, text, admin):
        self.text, self.admin = text, admin

    def limited(self):
        """How many calls were over their key's rate so far."""
        series = re.findall(r'^slotfront_key_limited_total\{.*reason="rate".*\} (\d+)$', get(self.admin + "metrics")[1], re.M)
        return sum(map(int, series))


@contextlib.contextmanager
def scene():
    first = base_port()
    with tempfile.TemporaryDirectory() as folder, Running("sim", "--listen", f"127.0.0.1:{first}", "--nodes", str(NODES)) as sim:
        nodes = re.findall(r"http://127\.0\.0\.1:\d+", sim.wait_for(rf"(?:node \d: .*\n){{{NODES}}}").group(0))
        config = CONFIGURATION.format(further=json.dumps(FURTHER))
        for i, node in enumerate(nodes):
            config += f'\n[[upstream]]\nname = "node-{i}"\nurl = "{node}"\n'
        Path(folder, "slotfront.toml").write_text(config)
        with Running("serve", "--config", str(Path(folder, "slotfront.toml"))) as serve:
            address = serve.wait_for(r"listening on (http://\S+)/v3/").group(1)
            admin = serve.wait_for(r"status on (http://\S+/)").group(1)
            keys = {name: key(folder, name, plan) for name, plan in
                    [("wallet", "standard"), *((f"slow-{who}", "slow") for who in ("web3js", "kit", "python", "rust"))]}
            ready(admin)
            wait_until_taken(f"{address}/v3/{keys['slow-rust']}")
            told = truth(nodes[0])
            told["url"] = f"{address}/v3/{keys['wallet']}"
            told["slow"] = {who: f"{address}/v3/{keys['slow-' + who]}" for who in ("web3js", "kit", "python", "rust")}
            told["unknown"] = f"{address}/v3/sf_unknown"
            told["nodes"] = NODES
            yield Scene(json.dumps(told), admin)


def base_port():
    """A free port with free ones after it: node i listens on the port + i."""
    for _ in range(100):
        port = free_port()
        try:
            for i in range(NODES):
                with socket.socket() as s:
                    s.bind(("127.0.0.1", port + i))
            return port
        except (OSError, OverflowError):
            continue
    raise AssertionError("no free ports in a row")


def key(folder, name, plan):
    made = subprocess.run([BINARY, "keys", "create", "--file", str(Path(folder, "keys.toml")), "--name", name, "--plan", plan],
                          capture_output=True, text=True, check=True)
    return made.stdout.strip()


def wait_until_taken(url):
    """The key file is read once a second."""
    for _ in range(300):
        if call(url, "getClusterNodes", [])[0] == 200:
            return
        time.sleep(0.1)
    raise AssertionError("the keys were not taken")


def truth(node):
    ask = lambda method, params: call(node, method, params)[2]
    slot = ask("getSlot", [])["result"]
    told = {"skipped": None, "block": None, "tokenAccount": None, "message": None}
    # Old enough to be final on every node, young enough to be held.
    for candidate in range(slot - 1, slot - 100, -1):
        full = ask("getBlock", [candidate, {"encoding": "json", "maxSupportedTransactionVersion": 0}])
        if full.get("error", {}).get("code") in (-32007, -32009):
            told["skipped"] = told["skipped"] or candidate
            continue
        transactions = (full.get("result") or {}).get("transactions", [])
        # Past 19 decimals there is no uiAmount.
        balances = [(t, b) for t in transactions for b in t["meta"]["postTokenBalances"] or []
                    if b["uiTokenAmount"]["decimals"] < 10]
        versions = {t.get("version") for t in transactions}
        if told["block"] or not balances or not {"legacy", 0} <= versions:
            continue
        told["block"] = block(full["result"], candidate)
        transaction, balance = balances[0]
        keys = transaction["transaction"]["message"]["accountKeys"] + [
            k for part in ("writable", "readonly") for k in transaction["meta"].get("loadedAddresses", {}).get(part, [])]
        told["tokenAccount"] = {"address": keys[balance["accountIndex"]], "mint": balance["mint"], "owner": balance["owner"],
                                "program": balance["programId"], "decimals": balance["uiTokenAmount"]["decimals"]}
        wire = ask("getBlock", [candidate, {"encoding": "base64", "maxSupportedTransactionVersion": 0}])["result"]["transactions"]
        v0 = next(t for t in wire if t["version"] == 0)
        told["message"] = message(v0["transaction"][0])
    if None in told.values():
        raise AssertionError(f"the simulated cluster shows too little: {told}")
    mint = ask("getAccountInfo", [told["tokenAccount"]["mint"], {"encoding": "base64"}])["result"]["value"]
    told["mint"] = {"address": told["tokenAccount"]["mint"], "owner": mint["owner"], "space": mint["space"],
                    "lamports": mint["lamports"], "head": list(base64.b64decode(mint["data"][0])[:4])}
    votes = ask("getVoteAccounts", [])["result"]
    told["votes"] = {"current": len(votes["current"]), "delinquent": len(votes["delinquent"]), "one": votes["current"][0]["votePubkey"]}
    told["wallet"] = told["block"]["payer"]
    told["absent"] = "SysvarRecentB1ockHashes11111111111111111112"
    return told


def block(full, slot):
    first = full["transactions"][0]
    return {"slot": slot, "blockhash": full["blockhash"], "previousBlockhash": full["previousBlockhash"],
            "parentSlot": full["parentSlot"], "blockTime": full["blockTime"], "blockHeight": full["blockHeight"],
            "transactions": len(full["transactions"]), "rewards": len(full["rewards"]),
            "signature": first["transaction"]["signatures"][0], "fee": first["meta"]["fee"],
            "payer": first["transaction"]["message"]["accountKeys"][0]}


def message(wire):
    """The message of a transaction, in base64: what stands behind its signatures."""
    raw = base64.b64decode(wire)
    return base64.b64encode(raw[1 + 64 * raw[0]:]).decode()


def environment(scene):
    return {**os.environ, "SCENE": scene.text}

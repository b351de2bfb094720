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
import tempfile
from pathlib import Path

from gateway import Nodes, Serve, call, eventually, get, keys, upstreams

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
        series = re.findall(r'^slotfront_key_limited_total\{.*reason="rate".*\} (\d+)$', get(f"http://{self.admin}/metrics")[1], re.M)
        return sum(map(int, series))


@contextlib.contextmanager
def scene():
    with tempfile.TemporaryDirectory() as folder, Nodes(NODES) as nodes:
        config = CONFIGURATION.format(further=json.dumps(FURTHER)) + "\n" + upstreams(nodes.ports)
        Path(folder, "slotfront.toml").write_text(config)
        with Serve(Path(folder, "slotfront.toml")) as serve:
            key = lambda name, plan: keys(Path(folder, "keys.toml"), "create", "--name", name, "--plan", plan)
            wallet, slow = key("wallet", "standard"), {who: key(f"slow-{who}", "slow") for who in ("web3js", "kit", "python", "rust")}
            serve.ready()
            wait_until_taken(serve.url(slow["rust"]))
            told = truth(nodes.url)
            told["url"] = serve.url(wallet)
            told["slow"] = {who: serve.url(key) for who, key in slow.items()}
            told["unknown"] = serve.url("sf_unknown")
            told["nodes"] = NODES
            yield Scene(json.dumps(told), serve.admin)


def wait_until_taken(url):
    """The key file is read once a second."""
    eventually(lambda: call(url, "getClusterNodes", [])[0] == 200, "the keys were not taken")


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

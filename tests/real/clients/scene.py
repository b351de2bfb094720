"""The scene of the client tests: three simulated nodes, slotfront in front of them, and reference values.

The reference values are read from a node directly, as plain JSON. They never change: a finalized block, the decimals of a
mint, a skipped slot. Each client gets them as one JSON text, and compares its library's values with them.
"""

import base64
import contextlib
import json
import os
import re
import tempfile
from pathlib import Path

from gateway import Nodes, Serve, call, eventually, get, keys, upstreams
from ports import free_port

CONFIGURATION = """
[server]
listen = "127.0.0.1:{port}"
admin_listen = "127.0.0.1:0"

[plans.standard]
rps = 10000

# Two calls per second. Four calls at once exceed the limit.
[plans.slow]
rps = 2
burst = 2
"""
NODES = 3


class Scene:
    """The running programs. `text` is the JSON text for the clients."""

    def __init__(self, text, admin):
        self.text, self.admin = text, admin

    def limited(self):
        """Returns the number of calls so far that exceeded the rate of their key."""
        series = re.findall(r'^slotfront_key_limited_total\{.*reason="rate".*\} (\d+)$', get(f"http://{self.admin}/metrics")[1], re.M)
        return sum(map(int, series))


@contextlib.contextmanager
def scene():
    with tempfile.TemporaryDirectory() as folder, Nodes(NODES) as nodes:
        # Client libraries need the next port as well, which `free_port` leaves to slotfront.
        config = CONFIGURATION.format(port=free_port()) + upstreams(nodes.ports)
        Path(folder, "slotfront.toml").write_text(config)
        with Serve(Path(folder, "slotfront.toml")) as serve:
            key = lambda name, plan: keys(Path(folder, "keys.toml"), "create", "--name", name, "--plan", plan)
            wallet, slow = key("wallet", "standard"), {who: key(f"slow-{who}", "slow") for who in ("web3js", "kit", "python", "rust")}
            serve.ready()
            wait_for_keys(serve.url(slow["rust"]))
            values = reference_values(nodes.url)
            values["url"] = serve.url(wallet)
            values["slow"] = {library: serve.url(key) for library, key in slow.items()}
            values["unknown"] = serve.url("sf_unknown")
            values["nodes"] = NODES
            yield Scene(json.dumps(values), serve.admin)


def wait_for_keys(url):
    """Waits until slotfront has read the key file, which it does once a second."""
    eventually(lambda: call(url, "getClusterNodes", [])[0] == 200, "the keys were not read")


def reference_values(node):
    ask = lambda method, params: call(node, method, params)[2]
    slot = ask("getSlot", [])["result"]
    values = {"skipped": None, "block": None, "tokenAccount": None, "message": None}
    # The slots are finalized on every node, and within the nodes' history.
    for candidate in range(slot - 1, slot - 100, -1):
        full = ask("getBlock", [candidate, {"encoding": "json", "maxSupportedTransactionVersion": 0}])
        if full.get("error", {}).get("code") in (-32007, -32009):
            values["skipped"] = values["skipped"] or candidate
            continue
        transactions = (full.get("result") or {}).get("transactions", [])
        # Token amounts with more than 19 decimals have no uiAmount.
        balances = [(t, b) for t in transactions for b in t["meta"]["postTokenBalances"] or []
                    if b["uiTokenAmount"]["decimals"] < 10]
        versions = {t.get("version") for t in transactions}
        if values["block"] or not balances or not {"legacy", 0} <= versions:
            continue
        values["block"] = block(full["result"], candidate)
        transaction, balance = balances[0]
        keys = transaction["transaction"]["message"]["accountKeys"] + [
            k for part in ("writable", "readonly") for k in transaction["meta"].get("loadedAddresses", {}).get(part, [])]
        values["tokenAccount"] = {"address": keys[balance["accountIndex"]], "mint": balance["mint"], "owner": balance["owner"],
                                "program": balance["programId"], "decimals": balance["uiTokenAmount"]["decimals"]}
        wire = ask("getBlock", [candidate, {"encoding": "base64", "maxSupportedTransactionVersion": 0}])["result"]["transactions"]
        v0 = next(t for t in wire if t["version"] == 0)
        values["message"] = message(v0["transaction"][0])
    if None in values.values():
        raise AssertionError(f"the simulated cluster lacks some values: {values}")
    mint = ask("getAccountInfo", [values["tokenAccount"]["mint"], {"encoding": "base64"}])["result"]["value"]
    values["mint"] = {"address": values["tokenAccount"]["mint"], "owner": mint["owner"], "space": mint["space"],
                    "lamports": mint["lamports"], "head": list(base64.b64decode(mint["data"][0])[:4])}
    votes = ask("getVoteAccounts", [])["result"]
    values["votes"] = {"current": len(votes["current"]), "delinquent": len(votes["delinquent"]), "one": votes["current"][0]["votePubkey"]}
    values["wallet"] = values["block"]["payer"]
    values["absent"] = "SysvarRecentB1ockHashes11111111111111111112"
    return values


def block(full, slot):
    first = full["transactions"][0]
    return {"slot": slot, "blockhash": full["blockhash"], "previousBlockhash": full["previousBlockhash"],
            "parentSlot": full["parentSlot"], "blockTime": full["blockTime"], "blockHeight": full["blockHeight"],
            "transactions": len(full["transactions"]), "rewards": len(full["rewards"]),
            "signature": first["transaction"]["signatures"][0], "fee": first["meta"]["fee"],
            "payer": first["transaction"]["message"]["accountKeys"][0]}


def message(wire):
    """Returns the message of a transaction in base64. It follows the signatures."""
    raw = base64.b64decode(wire)
    return base64.b64encode(raw[1 + 64 * raw[0]:]).decode()


def environment(scene):
    return {**os.environ, "SCENE": scene.text}

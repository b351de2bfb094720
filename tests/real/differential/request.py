"""Requests in the different spellings that a node accepts, and the HTTP connection that carries them."""

import http.client
import json
import socket
import urllib.parse


TAKE_MIN_CONTEXT_SLOT = frozenset((
    "getAccountInfo", "getMultipleAccounts", "getFeeForMessage", "getBalance", "getTokenAccountsByOwner", "getTokenAccountsByDelegate",
    "getProgramAccounts", "getBlocks", "getBlocksWithLimit", "getSignaturesForAddress", "getInflationReward", "getSlotLeader",
    "getTransactionCount", "getStakeMinimumDelegation", "getSlot", "getBlockHeight", "getLatestBlockhash", "getEpochInfo",
    "isBlockhashValid"))
# A config of these is a commitment and nothing else, and refused otherwise.
STRICT = frozenset((
    "getTokenAccountBalance", "getTokenSupply", "getTokenLargestAccounts", "getInflationGovernor", "getMinimumBalanceForRentExemption",
    "getSignatureStatuses"))


class Request:
    """A request, without its spelling and its minContextSlot."""

    def __init__(self, method, params, commitment=None, kind="contextual"):
        self.method, self.params, self.commitment, self.kind = method, params, commitment, kind
        config = next((p for p in params if isinstance(p, dict)), {})
        self.encoding, self.slice = config.get("encoding"), config.get("dataSlice")
        same = json.loads(json.dumps(params))
        for p in same:
            if isinstance(p, dict) and method in ("getAccountInfo", "getMultipleAccounts"):
                p.setdefault("encoding", "binary" if method == "getAccountInfo" else "base64")
        self.key = json.dumps([method, same], separators=(",", ":"), sort_keys=True)
        # The accounts in the answer, in any form.
        self.accounts = []
        if kind == "contextual" and params:
            if method in ("getAccountInfo", "getTokenAccountBalance", "getBalance", "getTokenSupply"):
                self.accounts = [str(params[0])]
            elif method == "getMultipleAccounts":
                self.accounts = [str(key) for key in params[0]]

    def takes_min_context_slot(self):
        return self.method in TAKE_MIN_CONTEXT_SLOT and isinstance(self.params[-1] if self.params else None, dict)

    def body(self, rng, min_context_slot=None):
        """Returns the call in a random spelling."""
        params = []
        for position, p in enumerate(self.params, 1):
            if not isinstance(p, dict) or position < len(self.params):
                params.append(p)
                continue
            p = dict(p)
            if self.method not in STRICT:
                if p.get("commitment") == "finalized":
                    # A node treats all of these as finalized.
                    how = rng.random()
                    if how < 0.3:
                        del p["commitment"]
                    elif how < 0.45:
                        p["commitment"] = rng.choice([None, "recent", "max", "Finalized", 7])
                if rng.random() < 0.15:
                    p[rng.choice(["unknown", "sortresults", "Encoding"])] = rng.choice([None, 1, "x", {}])
                if self.takes_min_context_slot() and rng.random() < 0.15:
                    p.setdefault("minContextSlot", None)
                if min_context_slot is not None:
                    p["minContextSlot"] = min_context_slot
            members = list(p.items())
            rng.shuffle(members)
            params.append(dict(members))
        if params and params[-1] == {} and rng.random() < 0.5:
            params.pop()
        return envelope(self.method, params)


def envelope(method, params):
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()


class Peer:
    """A keep-alive connection to one side."""

    def __init__(self, url):
        self.url = urllib.parse.urlsplit(url)
        self.connection = None

    def post(self, body, headers=None):
        """Sends a POST. Returns status, headers and body. Retries once, because the server may have closed the connection."""
        for last in (False, True):
            try:
                if self.connection is None:
                    self.connection = http.client.HTTPConnection(self.url.hostname, self.url.port, timeout=40)
                    self.connection.connect()
                    self.connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                path = self.url.path or "/"
                self.connection.request("POST", path, body, {"Content-Type": "application/json", **(headers or {})})
                answer = self.connection.getresponse()
                return answer.status, answer.headers, answer.read()
            except (http.client.HTTPException, OSError):
                self.connection = None
                if last:
                    raise

    def call(self, method, *params):
        answer = json.loads(self.post(envelope(method, list(params)))[2])
        return answer["result"]

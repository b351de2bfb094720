"""Parsing of an answer: its slot, its error, and digests of its parts, so that many answers can be kept and compared.

Both sides are parsed alike. An answer of slotfront also has its Cache-Status, which states the source of the answer.
"""

import base64
import hashlib
import json
import re
import struct

from bounds import CLOCK, FINALIZED_LEAD_SLOTS, TIP
from decoding import unbase58, unpack_zstd, unpacked
from state import run


REWARDS_ARE_PAID = -32017


def digest(value):
    text = value if isinstance(value, bytes) else json.dumps(value, separators=(",", ":")).encode()
    return hashlib.blake2b(text, digest_size=12).digest()


def cut(body, most=500):
    text = body.decode("utf-8", "replace").strip()
    return text if len(text) <= most else f"{text[: most * 2 // 3]} ...({len(text)} chars)... {text[-most // 3 :]}"


class Answer:
    """A parsed answer."""

    __slots__ = ("request", "body", "error", "slot", "mark", "parts", "text", "sent", "got", "status", "wanted", "source", "result")

    def __init__(self, request, body, sent, got, status=None, wanted=None):
        self.request, self.body, self.sent, self.got, self.wanted = request, cut(body), sent, got, wanted
        self.status, self.source = status, source(status)
        self.error = self.slot = self.mark = self.result = None
        self.parts, self.text = (), digest(body)
        answer = json.loads(body, parse_float=lambda text: f"float {text}")
        if "error" in answer:
            error = answer["error"]
            if error["code"] == REWARDS_ARE_PAID:
                # The message and the data name the node's slot.
                error = {"code": error["code"], "message": ""}
            self.error = (error["code"], error["message"], json.dumps(error.get("data")))
            return
        result = answer["result"]
        if request.kind == "contextual":
            context, value = dict(result["context"]), result["value"]
            self.slot = self.mark = context.pop("slot")
            if request.method in TIP:
                # The context of an answer from the followed chain names no version.
                context.pop("apiVersion", None)
            frame = [sorted(result), context]
            if request.method == "getMultipleAccounts":
                self.check_clock([(k, v) for k, v in zip(request.params[0], value) if k == CLOCK])
                self.parts = tuple(digest([frame, plain(v)]) for v in value) or (digest(frame),)
            else:
                if request.method == "getAccountInfo":
                    self.check_clock([(request.params[0], value)] if request.params[0] == CLOCK else [])
                self.parts = (digest([frame, plain(value)]),)
        elif request.kind in ("plain", "statuses"):
            self.mark, self.result = 0, result
            value = result["value"] if isinstance(result, dict) and "context" in result else result
            self.parts = (digest(value),)
            if value is not result:
                self.text = self.parts[0]
            elif request.method == "getSlot":
                self.mark = result
        elif request.method == "getEpochInfo":
            # The number of transactions may be a slot old.
            self.mark, self.parts = result["absoluteSlot"], (digest({**result, "transactionCount": None}),)
        elif request.method == "getVoteAccounts":
            votes = {name: sorted(result[name], key=lambda v: v["votePubkey"]) for name in ("current", "delinquent")}
            # An account that no stake votes by may show any slot.
            self.mark = max((v["lastVote"] for list_ in votes.values() for v in list_ if v["activatedStake"]), default=0)
            self.parts = (digest([sorted(result), votes]),)
        elif request.method == "getClusterNodes":
            self.mark, self.parts = 0, (digest(sorted(result, key=lambda n: n["pubkey"])),)
        elif request.method == "getRecentPerformanceSamples":
            self.mark, self.parts = result[0]["slot"] if result else 0, (digest(result),)
        else:
            self.mark, self.parts = 0, (digest(result),)

    def check_clock(self, clocks):
        """Checks that the slot in the Clock sysvar is the slot of the answer."""
        slice_ = self.request.slice
        for _, value in clocks:
            inside = clock_slot(value, slice_)
            if inside is None:
                continue
            ahead = inside - self.slot
            most = 0
            if self.request.commitment == "finalized":
                most = FINALIZED_LEAD_SLOTS
            side = "front" if self.status is not None else "direct"
            run.count("clock", f"{side} {self.request.commitment} {ahead:+d}")
            if not 0 <= ahead <= most:
                run.found(f"clock ({side})", self.request, f"the slot in the Clock is {inside}, context.slot {self.slot}", self)


def clock_slot(value, slice_):
    """Returns the slot in the Clock's data, or `None` if the answer does not contain it."""
    data = value["data"]
    if isinstance(data, dict):
        return data["parsed"]["info"]["slot"]
    if slice_ and slice_["offset"] != 0:
        return None
    text, encoding = (data, "base58") if isinstance(data, str) else data
    if encoding == "base58":
        raw = unbase58(text)
    elif encoding == "base64":
        raw = base64.b64decode(text)
    elif unpack_zstd:
        raw = unpack_zstd(base64.b64decode(text))
    else:
        return None
    return struct.unpack("<Q", raw[:8])[0] if len(raw) >= 8 else None


def plain(value):
    """Returns an account with zstd data unpacked, because the packed bytes depend on the compressor."""
    if isinstance(value, dict) and isinstance(value.get("data"), list) and value["data"][1] == "base64+zstd":
        return {**value, "data": [unpacked(value["data"][0]) if unpack_zstd else None, "base64+zstd"]}
    return value


def source(status):
    """Returns the source of an answer, by its Cache-Status."""
    if status is None:
        return None
    if "stale-if-error" in status:
        return "stale-if-error"
    if "detail=carried" in status:
        return "carried"
    if "; hit" in status:
        if re.search(r"ttl=-|ttl=0", status) and re.search(r"ttl=-\d*[1-9]", status):
            return "stale derived" if "detail=derived" in status else "stale"
        return "derived" if "detail=derived" in status else "hit"
    if "collapsed" in status:
        return "collapsed"
    if "fwd=stale" in status:
        return "fetched, had expired"
    if "fwd=" in status:
        return "fetched"
    return "none"

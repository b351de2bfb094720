"""Random requests: accounts, encodings, slices, lists, blocks and minContextSlots.

Edge cases are frequent: slices around the sizes of accounts, the limit of 128 bytes of base58, slots just above the newest.
"""

import base64

from bounds import ENCODINGS, U64_MAX
from decoding import unpack_zstd
from request import Request
from state import run


class RequestGenerator:
    """The random requests of one thread. Subclasses set `self.rng` and `self.accounts`."""

    def min_context_slot(self, request):
        if not request.takes_min_context_slot() or self.rng.random() < 0.5:
            return None
        now, draw = run.slots[request.commitment].now(), self.rng.random()
        if draw < 0.4:
            return now
        if draw < 0.65:
            return max(0, now - self.rng.choice([1, 1, 2, 3, 5, 12, 40, now]))
        if draw < 0.9:
            return now + self.rng.choice([1, 1, 1, 2, 2, 3, 5, 12])
        return self.rng.choice([now + 33, now + 1000, U64_MAX])

    def some_seconds(self, commitment):
        return {"processed": 2.5, "confirmed": 3.0, "finalized": 7.0}[commitment] * (0.6 + self.rng.random())

    # -- accounts --

    def any_account(self):
        """Returns a random account. Accounts that change are preferred, and large ones are rare."""
        lively = ["sysvar_clock", "sysvar_clock", "alice", "payer", "vote", "sysvar_slot_hashes", "sysvar_recent_blockhashes",
                  "token_2022_interest", "identity", *[k for k in self.accounts if k.startswith("fresh_")]]
        draw = self.rng.random()
        names = list(self.accounts)
        if draw < 0.45:
            names = [n for n in lively if n in self.accounts]
        elif draw < 0.52:
            names = [n for n in self.accounts if n.endswith(("_100000", "_1500000")) or n in ("sysvar_slot_history", "programdata_token_2022")]
        return self.accounts[self.rng.choice(names)]

    def any_slice(self):
        edges = [0, 0, 1, 7, 8, 31, 32, 33, 40, 64, 72, 127, 128, 129, 164, 165, 166, 999, 1000, 65_535, 65_536, 99_999, 100_000, 1_499_990, 1_500_000, U64_MAX]
        if self.rng.random() < 0.45:
            return None
        lengths = [0, 1, 8, 32, 40, 127, 128, 129, 130, 165, 1000, 65_536, 100_000, U64_MAX]
        return {"offset": self.rng.choice(edges), "length": self.rng.choice(lengths)}

    def config(self, commitment):
        config = {"commitment": commitment}
        encoding = self.rng.choice(ENCODINGS)
        if encoding == "base64+zstd" and not unpack_zstd:
            encoding = "base64"
        if encoding:
            config["encoding"] = encoding
        slice_ = self.any_slice()
        if slice_:
            config["dataSlice"] = slice_
        return config

    def list_of(self, keys, commitment):
        keys = list(keys)
        self.rng.shuffle(keys)
        if keys and self.rng.random() < 0.3:
            keys.append(self.rng.choice(keys))
        config = self.config(commitment)
        # An account above the limit of base58 makes the whole list fail, so most lists have a small slice.
        if config.get("encoding") in ("base58", "binary") and self.rng.random() < 0.6:
            config["dataSlice"] = {"offset": self.rng.choice([0, 5, 32, U64_MAX]), "length": self.rng.choice([0, 8, 64, 128])}
        return Request("getMultipleAccounts", [keys[:10], config], commitment)

    # -- blocks --

    def block_request(self, slot):
        config = {}
        for name, values in (
            ("encoding", [None, "json", "jsonParsed", "jsonParsed", "base64", "base58", "binary"]),
            ("transactionDetails", [None, "full", "accounts", "signatures", "none"]),
            ("rewards", [None, True, False]),
            ("maxSupportedTransactionVersion", [0, 0, None]),
            ("commitment", [None, "confirmed", "confirmed", "finalized"]),
        ):
            value = self.rng.choice(values)
            if value is not None:
                config[name] = value
        if self.rng.random() < 0.08:
            return Request("getBlock", [slot, self.rng.choice(["json", "jsonParsed", "base64"])], "finalized", "block")
        return Request("getBlock", [slot, config], config.get("commitment", "finalized"), "block")


def with_blockhash(message, blockhash):
    """Returns the message with another blockhash. The blockhash follows the version, the header and the keys."""
    raw = bytearray(base64.b64decode(message))
    at = 1 if raw[0] & 0x80 else 0
    at += 3
    keys, shift = 0, 0
    while True:
        byte = raw[at]
        at += 1
        keys |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            break
    at += 32 * keys
    raw[at : at + 32] = blockhash
    return base64.b64encode(bytes(raw)).decode()

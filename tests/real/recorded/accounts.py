"""Accounts: what slotfront makes of accounts whose data it has, alone or in a list.

From base64 it makes the other encodings but jsonParsed, and slices. Where jsonParsed is base64, because the node knows no
program, it makes slices of that. Whatever the form, it makes getBalance and lists.
"""

import base64
import itertools

from decoding import base58, unbase58, unpack_zstd
from exact import write
from others import NEWEST, Plain
from recording import Recording
from scene import Check, config_of, error, result

ENCODINGS = ("base64", "base64+zstd", "base58", "binary", "jsonParsed")
# Offset and length. The data of most accounts ends between them.
SLICES = (None, (0, 0), (0, 1), (0, 32), (1, 7), (5, 128), (5, 129), (64, 3), (3, 1 << 20), (1 << 40, 8))
# The most accounts of a scan that are asked for by their addresses.
SOME = 4
BASE58_MAX = 128
TOO_LONG = error(-32600, "Encoded binary (base 58) data should be less than 128 bytes, please use Base64 encoding.")
# The owners of accounts that nodes never slice in jsonParsed.
TOKEN_PROGRAMS = ("TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA", "TokenzQdBNbLqP5VEhdkAS6EPFLC1PHnBqCXEpPxuEb")


class Account:
    """An account in the form in which it is recorded. `data` are its bytes, if they are known."""

    def __init__(self, tree, encoding, is_whole):
        self.tree, self.encoding, self.is_whole = tree, encoding, is_whole
        self.data = bytes_of(tree["data"]) if tree and is_whole else None

    def in_form(self, encoding, slice):
        """Returns the account's value in a form, or the error of a node. None if it cannot be made of the recording."""
        if self.tree is None or self.is_whole and (encoding, slice) == (self.encoding, None):
            return result(self.tree)
        if encoding == "jsonParsed":
            if self.encoding != "jsonParsed" or not self.is_whole:
                return None
            if self.data is None or self.tree["owner"] in TOKEN_PROGRAMS:
                return result(self.tree)
        if self.data is None:
            return None
        data = self.data if slice is None else self.data[slice[0]:slice[0] + slice[1]]
        if encoding in ("base58", "binary") and len(data) > BASE58_MAX:
            return TOO_LONG
        return result({**self.tree, "data": encoded(data, encoding)})


def bytes_of(data):
    """Returns the bytes of an account's member `data`. None if a node has parsed it."""
    if isinstance(data, dict):
        return None
    if isinstance(data, str):
        return unbase58(data)
    text, encoding = data
    if encoding == "base58":
        return unbase58(text)
    packed = base64.b64decode(text, validate=True)
    if encoding == "base64":
        return packed
    return unpack_zstd(packed) if unpack_zstd else None


def encoded(data, encoding):
    match encoding:
        case "base64" | "jsonParsed":
            return [base64.b64encode(data).decode(), "base64"]
        # Encoders of zstd differ, so what they have packed is compared.
        case "base64+zstd":
            return ["unpacked", base64.b64encode(data).decode()]
        case "base58":
            return [base58(data), "base58"]
        case "binary":
            return base58(data)


def unpacked(answer):
    """Returns an answer with what is packed in base64+zstd unpacked."""
    if "result" not in answer:
        return answer
    value = answer["result"]["value"]
    values = [one_unpacked(account) for account in (value if isinstance(value, list) else [value])]
    return result({**answer["result"], "value": values if isinstance(value, list) else values[0]})


def one_unpacked(account):
    if not account or account["data"][1:] != ["base64+zstd"]:
        return account
    return {**account, "data": encoded(bytes_of(account["data"]), "base64+zstd")}


class Accounts:
    """The scene of one account, or of a list of them."""

    def __init__(self, recording):
        self.method, self.recording = recording.method, recording
        self.context, self.slot = recording.result["context"], recording.result["context"]["slot"]
        is_list, config = self.method == "getMultipleAccounts", config_of(recording.params)
        self.keys = recording.params[0] if is_list else [recording.params[0]]
        self.encoding, self.config = config.get("encoding", "base64" if is_list else "binary"), config
        is_whole = "dataSlice" not in config
        values = recording.result["value"] if is_list else [recording.result["value"]]
        self.accounts = {key: Account(tree, self.encoding, is_whole) for key, tree in zip(self.keys, values)}
        self.commitment = {"commitment": config["commitment"]} if "commitment" in config else {}

    def answer(self, method, params):
        if method not in ("getAccountInfo", "getMultipleAccounts"):
            return None
        config = config_of(params)
        slice = config.get("dataSlice") and (config["dataSlice"]["offset"], config["dataSlice"]["length"])
        if self.is_recorded(method, params, config):
            return self.recording.text
        # A node packs data in its own way, so it says only what it has said.
        if config["encoding"] == "base64+zstd":
            return None
        keys = params[0] if method == "getMultipleAccounts" else [params[0]]
        return self.written(method, keys, config["encoding"], slice, as_text=True)

    def is_recorded(self, method, params, config):
        asked = (method, params[0], config["encoding"], config.get("dataSlice"))
        return asked == (self.method, self.recording.params[0], self.encoding, self.config.get("dataSlice"))

    def written(self, method, keys, encoding, slice, as_text=False):
        values = [self.accounts[key].in_form(encoding, slice) for key in keys]
        if None in values:
            return None
        if refused := next((value for value in values if "error" in value), None):
            return None if as_text else refused
        values = [value["result"] for value in values]
        answer = {"context": self.context, "value": values if method == "getMultipleAccounts" else values[0]}
        return write(answer) if as_text else result(answer)

    def checks(self):
        yield Check(self.method, self.recording.params, result(self.recording.result), self.recording.text)
        lists = [self.keys, self.keys[::-1]] if len(self.keys) > 1 else [self.keys]
        subjects = [*(("getAccountInfo", [key]) for key in self.accounts), *(("getMultipleAccounts", keys) for keys in lists)]
        for encoding, slice in itertools.product(ENCODINGS, SLICES):
            if encoding == "base64+zstd" and not unpack_zstd:
                continue
            # Where the recording has no such encoding, a node is asked for slices just as for all.
            if slice and all(account.in_form(encoding, None) is None for account in self.accounts.values()):
                continue
            config = {"encoding": encoding, **self.commitment}
            if slice is not None:
                config["dataSlice"] = {"offset": slice[0], "length": slice[1]}
            for method, keys in subjects:
                subject = keys if method == "getMultipleAccounts" else keys[0]
                expected = self.written(method, keys, encoding, slice)
                yield Check(method, [subject, config], expected, view=unpacked if encoding == "base64+zstd" else None)
        for key, account in self.accounts.items():
            lamports = account.tree["lamports"] if account.tree else 0
            yield Check("getBalance", [key, *([self.commitment] if self.commitment else [])],
                        result({"context": self.context, "value": lamports}))


def of_accounts(recording):
    return [Accounts(recording)]


def of_scan(recording):
    """Returns two scenes: the accounts of a program or an owner as they were asked for, and some of them by their addresses."""
    tree = recording.result
    context, listed = (tree["context"], tree["value"]) if isinstance(tree, dict) else ({"slot": NEWEST}, tree)
    some = listed[:SOME]
    config = {name: value for name, value in config_of(recording.params).items() if name in ("encoding", "dataSlice", "commitment")}
    if not some:
        return [Plain(recording)]
    # Whoever wrote the params down may have forgotten it.
    config.setdefault("encoding", encoding_of(some[0]["account"]["data"]))
    accounts = {"context": context, "value": [one["account"] for one in some]}
    by_address = Recording("getMultipleAccounts", [[one["pubkey"] for one in some], config], write(accounts), accounts)
    return [Plain(recording), Accounts(by_address)]


def encoding_of(data):
    return data[1] if isinstance(data, list) else "jsonParsed" if isinstance(data, dict) else "binary"

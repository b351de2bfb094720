"""Blocks and transactions: what slotfront makes of one full block.

From a block in base64 it makes every shape but jsonParsed, and each transaction; from one in jsonParsed, whatever is
jsonParsed. A recording in another encoding is written as bytes again for the node, so that slotfront has to make the recorded
text of them. A recorded transaction is asked for by itself, and put into a block of its own.

What nodes of older versions leave out is filled in, because slotfront writes like a node of version 4.0: the version of a
transaction, its empty list of lookup tables, and `stackHeight` 1 beside its instructions. That one is left out if the node
has written none beside inner instructions, either.
"""

import base64
import itertools

from decoding import unbase58
from exact import write
from others import Plain
from recording import UNKNOWN, Unusable, address
from scene import Check, config_of, error, result
from wire import Transaction

ENCODINGS = ("json", "base64", "base58", "binary", "jsonParsed")
SHORT_META = ("err", "fee", "postBalances", "postTokenBalances", "preBalances", "preTokenBalances", "status")
NO_ADDRESSES = {"readonly": [], "writable": []}


class Entry:
    """One transaction of a full block. `wire` is None if it is recorded in jsonParsed."""

    def __init__(self, tree):
        self.recorded, part = tree, tree["transaction"]
        self.wire = self.recorded_json = None
        self.version = tree.get("version")
        if is_in_json(part):
            message = part["message"]
            if self.version is None:
                self.version = 0 if message.get("addressTableLookups") is not None else "legacy"
            if "header" in message:
                self.wire = Transaction.of_json(part, self.version)
                self.recorded_json = as_newer_nodes(part, self.version)
        else:
            self.wire = Transaction.decode(bytes_of(part))
            if self.version not in (None, self.wire.version):
                raise ValueError(f"its version is {self.wire.version}, and not {self.version}")
            self.version = self.wire.version
        self.has_heights = True
        self.signature = self.wire.signatures[0] if self.wire else part["signatures"][0]

    def part(self, encoding):
        """Returns the member `transaction` in this encoding. None if it cannot be made of the recording."""
        if self.wire is None:
            return self.recorded["transaction"] if encoding == "jsonParsed" else None
        part = self.recorded_json if encoding == "json" and self.recorded_json else self.wire.encoded(encoding)
        return part if encoding != "json" or self.has_heights else without_heights(part)

    def short(self):
        return self.wire.accounts((self.recorded["meta"] or {}).get("loadedAddresses", NO_ADDRESSES))

    def written(self, part, max_version, is_short=False, rewards=True):
        """Returns the transaction as an element of a block."""
        meta = self.recorded["meta"]
        if meta is not None and is_short:
            kept = {*SHORT_META, "rewards"} if rewards else SHORT_META
            meta = {name: value for name, value in meta.items() if name in kept}
        elif meta is not None and not rewards:
            meta = {**meta, "rewards": None}
        written = {**self.recorded, "meta": meta, "transaction": part}
        if max_version is None:
            written.pop("version", None)
        elif meta is not None:
            written["version"] = self.version
        return written


def is_in_json(part):
    return isinstance(part, dict)


def bytes_of(part):
    if isinstance(part, str):
        return unbase58(part)
    text, encoding = part
    return base64.b64decode(text, validate=True) if encoding == "base64" else unbase58(text)


def as_newer_nodes(part, version):
    message = dict(part["message"])
    newer = lambda one: one if one.get("stackHeight") is not None else {**one, "stackHeight": 1}
    message["instructions"] = [newer(one) for one in message["instructions"]]
    if version == "legacy":
        message.pop("addressTableLookups", None)
    else:
        message["addressTableLookups"] = message.get("addressTableLookups") or []
    return {**part, "message": message}


def without_heights(part):
    left = [{name: value for name, value in one.items() if name != "stackHeight"} for one in part["message"]["instructions"]]
    return {**part, "message": {**part["message"], "instructions": left}}


def has_heights(entries):
    """Returns false if the node has written inner instructions without their heights."""
    metas = [entry.recorded["meta"] or {} for entry in entries]
    inner = [one for meta in metas for group in meta.get("innerInstructions") or [] for one in group["instructions"]]
    return not inner or any("stackHeight" in one for one in inner) or any("costUnits" in meta for meta in metas)


class Block:
    """The scene of a full block."""

    def __init__(self, block_slot, block):
        self.slot = self.block_slot = block_slot
        self.block, self.entries = block, []
        for index, tree in enumerate(block["transactions"]):
            try:
                self.entries.append(Entry(tree))
            except (ValueError, KeyError, TypeError, IndexError) as fault:
                raise Unusable(f"its transaction {index} cannot be read: {fault!r}") from fault
        written = has_heights(self.entries)
        for entry in self.entries:
            entry.has_heights = written
        is_parsed = [entry.wire is None for entry in self.entries]
        if any(is_parsed) != all(is_parsed):
            raise Unusable("some of its transactions are jsonParsed, and others are not")
        self.source = "jsonParsed" if any(is_parsed) else "base64"
        self.text = write(self.written("full", self.source, True, 0)["result"])

    def answer(self, method, params):
        config = config_of(params)
        asked = (method, params[:1], config.get("encoding"), config.get("transactionDetails"), config.get("rewards"),
                 config.get("maxSupportedTransactionVersion"))
        return self.text if asked == ("getBlock", [self.block_slot], self.source, "full", True, 0) else None

    def written(self, details, encoding, rewards, max_version):
        """Returns the answer to getBlock. None if it cannot be made of the recording."""
        block = dict(self.block)
        if not rewards:
            block.pop("rewards", None)
        makes = encoding == "jsonParsed" if self.source == "jsonParsed" else encoding != "jsonParsed"
        if not makes:
            return None
        if details in ("full", "accounts") and (refusal := self.refusal(self.entries, max_version)):
            return refusal
        if details == "full":
            block["transactions"] = [entry.written(entry.part(encoding), max_version, rewards=rewards) for entry in self.entries]
        elif details == "accounts":
            block["transactions"] = [entry.written(entry.short(), max_version, True, rewards) for entry in self.entries]
        else:
            del block["transactions"]
        if details == "signatures":
            block["signatures"] = [entry.signature for entry in self.entries]
        return result(block)

    @staticmethod
    def refusal(entries, max_version):
        """Returns a node's error if the caller does not accept the version of one of these transactions."""
        version = next((entry.version for entry in entries if max_version is None and entry.version != "legacy"), None)
        if version is None:
            return None
        return error(-32015, f"Transaction version ({version}) is not supported by the requesting client. Please try the request "
                             f'again with the following configuration parameter: "maxSupportedTransactionVersion": {version}')

    def checks(self):
        source = {"encoding": self.source, "maxSupportedTransactionVersion": 0}
        yield Check("getBlock", [self.block_slot, source], self.written("full", self.source, True, 0), self.text)
        for details, encoding, rewards, max_version in shapes():
            config = {"transactionDetails": details, "encoding": encoding, "rewards": rewards}
            # Without transactions, the encoding says nothing.
            shape = (details, encoding if details == "full" else "json", rewards, max_version)
            yield Check("getBlock", [self.block_slot, with_version(config, max_version)], self.written(*shape))
        time = self.block.get("blockTime")
        yield Check("getBlockTime", [self.block_slot], None if time is None else result(time))
        for index, entry in enumerate(self.entries):
            for encoding, max_version in itertools.product(ENCODINGS, (0, None)):
                params = [entry.signature, with_version({"encoding": encoding}, max_version)]
                yield Check("getTransaction", params, self.transaction(index, entry, encoding, max_version))

    def transaction(self, index, entry, encoding, max_version):
        """Returns the answer to getTransaction. None if it cannot be made of the recording."""
        time, part = self.block.get("blockTime"), entry.part(encoding)
        if part is None or entry.recorded["meta"] is None:
            return None
        numbers = {"blockTime": time, "slot": self.block_slot, "transactionIndex": index}
        return self.refusal([entry], max_version) or result({**entry.written(part, max_version), **numbers})


class Written(Plain):
    """The scene of a transaction that slotfront fetches in base64 and writes in the encoding of the recording."""

    def __init__(self, recording, block):
        super().__init__(recording)
        self.block = block

    def in_encoding(self, config):
        version = config.get("maxSupportedTransactionVersion")
        return self.block.transaction(0, self.block.entries[0], config.get("encoding", "json"), version)

    def answer(self, method, params):
        is_it = method == "getTransaction" and params[0] == self.recording.params[0]
        answer = self.in_encoding(config_of(params)) if is_it and config_of(params).get("encoding") == "base64" else None
        return write(answer["result"]) if answer and "result" in answer else None

    def checks(self):
        yield Check("getTransaction", self.recording.params, self.in_encoding(config_of(self.recording.params)))


def shapes():
    """Returns the shapes of a block: details, encoding, rewards, and the highest version."""
    for details, rewards, max_version in itertools.product(("full", "accounts", "signatures", "none"), (True, False), (0, None)):
        for encoding in ENCODINGS if details == "full" else ["json"]:
            yield details, encoding, rewards, max_version


def with_version(config, max_version):
    return config if max_version is None else {**config, "maxSupportedTransactionVersion": max_version}


def of_block(recording):
    details = config_of(recording.params).get("transactionDetails", "full")
    if recording.result is None:
        raise Unusable("the node did not have the block")
    if details != "full" or "transactions" not in recording.result:
        raise Unusable("slotfront makes short blocks of full ones, so record the block with full details")
    return [Block(recording.params[0], recording.result)]


def of_transaction(recording):
    """Returns two scenes: the transaction as it was asked for, and the transaction in a block."""
    if recording.result is None:
        raise Unusable("the node did not have the transaction")
    tree = {name: value for name, value in recording.result.items() if name in ("meta", "transaction", "version")}
    slot = recording.result["slot"]
    block = {
        "blockHeight": None, "blockTime": recording.result.get("blockTime"), "blockhash": address(0), "parentSlot": slot - 1,
        "previousBlockhash": address(1), "rewards": [], "transactions": [tree],
    }
    scene = Block(slot, block)
    signature = scene.entries[0].signature if recording.params[0] == UNKNOWN else recording.params[0]
    recording.params = [signature, *recording.params[1:]]
    is_written = scene.source == "base64" and config_of(recording.params).get("encoding", "json") != "base64"
    return [Written(recording, scene) if is_written else Plain(recording), scene]

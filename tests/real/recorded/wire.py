"""Transactions as bytes and as JSON, legacy and of version 0, read and written without any code of slotfront."""

import base64
from dataclasses import dataclass
from functools import cached_property, lru_cache

from decoding import base58, unbase58

# The addresses that no transaction may write, of the crate `agave-reserved-account-keys` with all features.
RESERVED = frozenset("""
    11111111111111111111111111111111 AddressLookupTab1e1111111111111111111111111 BPFLoader1111111111111111111111111111111111
    BPFLoader2111111111111111111111111111111111 BPFLoaderUpgradeab1e11111111111111111111111
    ComputeBudget111111111111111111111111111111 Config1111111111111111111111111111111111111
    Ed25519SigVerify111111111111111111111111111 Feature111111111111111111111111111111111111
    KeccakSecp256k11111111111111111111111111111 LoaderV411111111111111111111111111111111111
    NativeLoader1111111111111111111111111111111 Secp256r1SigVerify1111111111111111111111111
    Stake11111111111111111111111111111111111111 StakeConfig11111111111111111111111111111111
    Sysvar1111111111111111111111111111111111111 Sysvar1nstructions1111111111111111111111111
    SysvarC1ock11111111111111111111111111111111 SysvarEpochRewards1111111111111111111111111
    SysvarEpochSchedu1e111111111111111111111111 SysvarFees111111111111111111111111111111111
    SysvarLastRestartS1ot1111111111111111111111 SysvarRecentB1ockHashes11111111111111111111
    SysvarRent111111111111111111111111111111111 SysvarRewards111111111111111111111111111111
    SysvarS1otHashes111111111111111111111111111 SysvarS1otHistory11111111111111111111111111
    SysvarStakeHistory1111111111111111111111111 Vote111111111111111111111111111111111111111
    ZkE1Gama1Proof11111111111111111111111111111 ZkTokenProof1111111111111111111111111111111
""".split())
# While it is among a message's accounts, the programs that the message calls may be written.
UPGRADEABLE_LOADER = "BPFLoaderUpgradeab1e11111111111111111111111"

text_of = lru_cache(1 << 16)(base58)
bytes_of = lru_cache(1 << 16)(unbase58)


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, count):
        taken = self.data[self.at:self.at + count]
        if len(taken) < count:
            raise ValueError("the transaction is cut")
        self.at += count
        return taken

    def byte(self):
        return self.take(1)[0]

    def length(self):
        """Reads a length in one to three bytes, of which each but the last has its highest bit set."""
        value, shift = 0, 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def short(self):
        return self.take(self.length())

    def several(self, read):
        return [read() for _ in range(self.length())]


def length(value):
    written = b""
    while value >= 0x80:
        written += bytes([value & 0x7F | 0x80])
        value >>= 7
    return written + bytes([value])


def short(data):
    return length(len(data)) + bytes(data)


@dataclass(frozen=True)
class Transaction:
    """A transaction. Signatures and keys are texts; an instruction is (program, accounts, data), a lookup (table, writable,
    readonly)."""

    signatures: tuple
    version: object
    # The numbers of required signatures, and of readonly accounts with and without a signature.
    header: tuple
    keys: tuple
    blockhash: str
    instructions: tuple
    lookups: tuple

    @classmethod
    def decode(cls, wire):
        reader = Reader(wire)
        key = lambda: text_of(reader.take(32))
        signatures = reader.several(lambda: base58(reader.take(64)))
        first = reader.byte()
        version = "legacy" if first < 0x80 else first & 0x7F
        if version not in ("legacy", 0):
            raise ValueError(f"a transaction of version {version}")
        header = (first if version == "legacy" else reader.byte(), reader.byte(), reader.byte())
        keys, blockhash = reader.several(key), key()
        instructions = reader.several(lambda: (reader.byte(), tuple(reader.short()), reader.short()))
        lookups = [] if version == "legacy" else reader.several(lambda: (key(), tuple(reader.short()), tuple(reader.short())))
        if reader.at < len(wire):
            raise ValueError("bytes after the end of the transaction")
        return cls(tuple(signatures), version, header, tuple(keys), blockhash, tuple(instructions), tuple(lookups))

    @classmethod
    def of_json(cls, tree, version):
        message, header = tree["message"], tree["message"]["header"]
        return cls(
            tuple(tree["signatures"]), version,
            (header["numRequiredSignatures"], header["numReadonlySignedAccounts"], header["numReadonlyUnsignedAccounts"]),
            tuple(message["accountKeys"]), message["recentBlockhash"],
            tuple((one["programIdIndex"], tuple(one["accounts"]), unbase58(one["data"])) for one in message["instructions"]),
            tuple((one["accountKey"], tuple(one["writableIndexes"]), tuple(one["readonlyIndexes"]))
                  for one in message.get("addressTableLookups") or ()))

    @cached_property
    def wire(self):
        several = lambda parts: length(len(parts)) + b"".join(parts)
        message = bytes(self.header) + several([bytes_of(key) for key in self.keys]) + bytes_of(self.blockhash)
        message += several([bytes([program]) + short(accounts) + short(data) for program, accounts, data in self.instructions])
        if self.version != "legacy":
            tables = [bytes_of(key) + short(writable) + short(readonly) for key, writable, readonly in self.lookups]
            message = bytes([0x80 | self.version]) + message + several(tables)
        return several([unbase58(signature) for signature in self.signatures]) + message

    @cached_property
    def base58(self):
        return base58(self.wire)

    def encoded(self, encoding):
        """Returns the transaction as a node of version 4.0 writes it in this encoding."""
        match encoding:
            case "json":
                return self.json()
            case "base64":
                return [base64.b64encode(self.wire).decode(), "base64"]
            case "base58":
                return [self.base58, "base58"]
            case "binary":
                return self.base58

    def json(self):
        required, readonly_signed, readonly_unsigned = self.header
        message = {
            "accountKeys": list(self.keys),
            "header": {"numReadonlySignedAccounts": readonly_signed, "numReadonlyUnsignedAccounts": readonly_unsigned,
                       "numRequiredSignatures": required},
            "instructions": [{"accounts": list(accounts), "data": base58(data), "programIdIndex": program, "stackHeight": 1}
                             for program, accounts, data in self.instructions],
            "recentBlockhash": self.blockhash,
        }
        if self.version != "legacy":
            message["addressTableLookups"] = [
                {"accountKey": key, "readonlyIndexes": list(readonly), "writableIndexes": list(writable)}
                for key, writable, readonly in self.lookups]
        return {"message": message, "signatures": list(self.signatures)}

    def accounts(self, loaded):
        """Returns the transaction as in a block with details `accounts`. `loaded` are the addresses from lookup tables."""
        if self.version == "legacy":
            loaded = {"writable": [], "readonly": []}
        every = [*self.keys, *loaded["writable"], *loaded["readonly"]]
        called = {program for program, _, _ in self.instructions}
        required, readonly_signed, readonly_unsigned = self.header

        def may_be_written(at):
            if at < required:
                asked_for = at < required - readonly_signed
            elif at < len(self.keys):
                asked_for = at < len(self.keys) - readonly_unsigned
            else:
                asked_for = at < len(self.keys) + len(loaded["writable"])
            is_program = at in called and UPGRADEABLE_LOADER not in every
            return asked_for and every[at] not in RESERVED and not is_program

        keys = [{"pubkey": key, "signer": at < required, "source": "transaction" if at < len(self.keys) else "lookupTable",
                 "writable": may_be_written(at)} for at, key in enumerate(every)]
        return {"accountKeys": keys, "signatures": list(self.signatures)}

"""The calls that are judged: every method in every encoding, detail and commitment, with the schema of its result.

Accounts, slots and signatures are found by calls to the server itself, so the calls fit any cluster.
"""

import base64
import itertools
from dataclasses import dataclass

import schemas as s

COMMITMENTS = ("processed", "confirmed", "finalized")
ACCOUNT_ENCODINGS = (None, "binary", "base58", "base64", "base64+zstd", "jsonParsed")
NOBODY = "Ay1U9DWphDgc7hq58Yj1yHabt91zTzvV2YJbAWkPNbaK"
CLOCK = "SysvarC1ock11111111111111111111111111111111"
# Blocks of which each is asked for. On a large cluster one is several megabytes.
BLOCKS = 12
# How many slots are searched for a token balance.
FARTHEST = 600
TOKEN_PROGRAM = "TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA"

# slotfront answers these from its cache or from its tip, so each of them must be there.
REQUIRED = frozenset((
    "getAccountInfo", "getMultipleAccounts", "getTokenAccountBalance", "getFeeForMessage", "getVoteAccounts",
    "getRecentPerformanceSamples", "getClusterNodes", "getBlock",
    "getSlot", "getBlockHeight", "getLatestBlockhash", "getEpochInfo", "isBlockhashValid", "getSignatureStatuses"))


# Why a method that is not required is left out. The second code is slotfront's.
LEFT_OUT = {-32601: "unknown here", -32091: "not allowed here"}


@dataclass
class Call:
    method: str
    params: list
    schema: dict
    # Error codes that the call may get instead of a result.
    codes: tuple = ()


@dataclass
class Refused:
    """A call, or a body that is none, that must get one of these error codes."""
    name: str
    body: object
    codes: tuple


def config(**members):
    return {name: value for name, value in members.items() if value is not None}


class Facts:
    """What the calls are about, found on the cluster: a block with transactions, and the accounts in it."""

    def __init__(self, ask):
        newest = ask("getSlot", [{"commitment": "finalized"}])
        shape = {"encoding": "jsonParsed", "maxSupportedTransactionVersion": 0}
        self.skipped, self.token, self.slots, found = None, None, [], None
        # The newest blocks, and further back up to one with a token balance, if there is one.
        for slot in range(newest, max(newest - FARTHEST, 0), -1):
            if len(self.slots) >= BLOCKS and self.token:
                break
            block = ask("getBlock", [slot, shape], missing=None)
            if block is None:
                self.skipped = self.skipped or slot
                continue
            if not block["transactions"]:
                continue
            if len(self.slots) < BLOCKS:
                self.slots.append(slot)
            balances = [(transaction, balance) for transaction in block["transactions"] if transaction["meta"]
                        for balance in transaction["meta"]["postTokenBalances"]]
            if found is None or balances and not self.token:
                self.slot, found = slot, block
            if balances and not self.token:
                transaction, balance = balances[0]
                keys = transaction["transaction"]["message"]["accountKeys"]
                self.token, self.mint = keys[balance["accountIndex"]]["pubkey"], balance["mint"]
                self.owner = balance["owner"]
        if found is None:
            raise SystemExit(f"no block from slot {newest} back has a transaction")
        self.signatures = [one["transaction"]["signatures"][0] for one in found["transactions"]][:3]
        self.payer = found["transactions"][0]["transaction"]["message"]["accountKeys"][0]["pubkey"]
        raw = ask("getBlock", [self.slot, {"encoding": "base64", "maxSupportedTransactionVersion": 0, "rewards": False}])
        self.has_versioned = any(one["version"] != "legacy" for one in raw["transactions"])
        signed = base64.b64decode(raw["transactions"][0]["transaction"][0])
        # One byte, the number of signatures, is before the signatures.
        self.message = base64.b64encode(signed[1 + 64 * signed[0]:]).decode()
        votes = ask("getVoteAccounts", [])
        self.epoch = ask("getEpochInfo", [])["epoch"]
        self.vote = (votes["current"] + votes["delinquent"])[0]
        self.accounts = [account for account in (self.payer, self.vote["votePubkey"], CLOCK, TOKEN_PROGRAM, NOBODY, self.token)
                         if account]
        self.blockhash = ask("getLatestBlockhash", [{"commitment": "finalized"}])["value"]["blockhash"]


def account_calls(facts):
    for encoding, commitment in itertools.product(ACCOUNT_ENCODINGS, COMMITMENTS):
        options = config(encoding=encoding, commitment=commitment)
        # Nodes refuse more than 128 bytes in base58 with this code.
        long = (-32600,) if encoding in (None, "binary", "base58") else ()
        one = s.account(encoding)
        for account in facts.accounts:
            yield Call("getAccountInfo", [account, options], s.with_context(s.maybe(one)), long)
        if encoding != "jsonParsed":
            cut = {**options, "dataSlice": {"offset": 4, "length": 16}}
            yield Call("getAccountInfo", [facts.vote["votePubkey"], cut], s.with_context(one))
        # The docs give base64 as the default here only.
        several = s.array(s.maybe(s.account(encoding or "base64")), minItems=len(facts.accounts), maxItems=len(facts.accounts))
        yield Call("getMultipleAccounts", [facts.accounts, options], s.with_context(several), long if encoding else ())
    yield Call("getAccountInfo", [NOBODY], s.with_context(s.NULL))
    yield Call("getMultipleAccounts", [[], {}], s.with_context(s.array({}, maxItems=0)))


def block_calls(facts):
    shapes = itertools.product((None, "json", "jsonParsed", "base58", "base64"), (None, "full", "accounts", "signatures", "none"),
                               (None, True, False), (None, 0), (None, "confirmed", "finalized"))
    for encoding, details, rewards, version, commitment in shapes:
        options = config(encoding=encoding, transactionDetails=details, rewards=rewards, maxSupportedTransactionVersion=version,
                         commitment=commitment)
        schema = s.block(encoding or "json", details or "full", rewards is not False, version is not None)
        # Without a version, a node refuses a block with a versioned transaction that it would have to show.
        refused = (-32015,) if version is None and facts.has_versioned else ()
        yield Call("getBlock", [facts.slot, options], schema, refused)
    yield Call("getBlock", [facts.slot, "json"], s.block("json", "full", True, False),
               (-32015,) if facts.has_versioned else ())


    for slot, encoding in itertools.product(facts.slots, ("json", "jsonParsed", "base64")):
        options = {"encoding": encoding, "maxSupportedTransactionVersion": 0}
        yield Call("getBlock", [slot, options], s.block(encoding, "full", True, True))


def other_calls(facts):
    at = [config(commitment=commitment) for commitment in (None, *COMMITMENTS)]
    for options in at:
        yield Call("getFeeForMessage", [facts.message, options], s.with_context(s.maybe(s.U64)))
        yield Call("getVoteAccounts", [options], s.VOTE_ACCOUNTS)
        yield Call("getVoteAccounts", [{**options, "votePubkey": facts.vote["votePubkey"], "keepUnstakedDelinquents": True}],
                   s.VOTE_ACCOUNTS)
        if facts.token:
            # A node wants the commitment if there is a configuration.
            yield Call("getTokenAccountBalance", [facts.token, *([options] if options else [])], s.with_context(s.TOKEN_AMOUNT))
        yield Call("getSlot", [options], s.U64)
        yield Call("getBlockHeight", [options], s.U64)
        yield Call("getLatestBlockhash", [options], s.LATEST_BLOCKHASH)
        yield Call("getEpochInfo", [options], s.EPOCH_INFO)
        for blockhash in (facts.blockhash, NOBODY):
            yield Call("isBlockhashValid", [blockhash, options], s.with_context(s.BOOLEAN))
    for method, schema in (("getVoteAccounts", s.VOTE_ACCOUNTS), ("getSlot", s.U64), ("getBlockHeight", s.U64),
                           ("getLatestBlockhash", s.LATEST_BLOCKHASH), ("getEpochInfo", s.EPOCH_INFO)):
        yield Call(method, [], schema)
    yield Call("getClusterNodes", [], s.array(s.CLUSTER_NODE, minItems=1))
    for limit in ([], [1], [720]):
        most = limit[0] if limit else 720
        yield Call("getRecentPerformanceSamples", limit, s.array(s.SAMPLE, maxItems=most))
    signatures = [*facts.signatures, "1" * 64]
    statuses = s.array(s.maybe(s.SIGNATURE_STATUS), minItems=len(signatures), maxItems=len(signatures))
    for options in ([], [{"searchTransactionHistory": False}], [{"searchTransactionHistory": True}]):
        yield Call("getSignatureStatuses", [signatures, *options], s.with_context(statuses))


def optional_calls(facts):
    """Methods that a server may not have, or not allow."""
    for commitment in COMMITMENTS:
        at = {"commitment": commitment}
        yield Call("getBalance", [facts.payer, at], s.with_context(s.U64))
        yield Call("getTransactionCount", [at], s.U64)
        yield Call("getSlotLeader", [at], s.PUBKEY)
        yield Call("getMinimumBalanceForRentExemption", [165, at], s.U64)
        yield Call("getSupply", [at], s.with_context(s.SUPPLY))
        yield Call("getLeaderSchedule", [None, at], s.LEADERS)
        yield Call("getBlockProduction", [at], s.with_context(s.PRODUCTION))
        for encoding in ACCOUNT_ENCODINGS:
            options = config(encoding=encoding, dataSlice=None if encoding == "jsonParsed" else {"offset": 0, "length": 32},
                             filters=[{"dataSize": 165}], **at)
            yield Call("getProgramAccounts", [TOKEN_PROGRAM, options], s.array(s.keyed(encoding)), (-32010, -32012))
            if facts.token:
                del options["filters"]
                for filter in ({"mint": facts.mint}, {"programId": TOKEN_PROGRAM}):
                    held = s.with_context(s.array(s.keyed(encoding)))
                    yield Call("getTokenAccountsByOwner", [facts.owner, filter, options], held)
        for filter in (None, "circulating", "nonCirculating"):
            largest = s.with_context(s.array(s.LARGEST, maxItems=20))
            yield Call("getLargestAccounts", [config(filter=filter, **at)], largest, (-32012,))
        yield Call("getStakeMinimumDelegation", [at], s.with_context(s.U64))
        yield Call("getInflationGovernor", [at], s.INFLATION_GOVERNOR)
        if facts.token:
            held = s.with_context(s.array(s.keyed("jsonParsed")))
            yield Call("getTokenAccountsByDelegate", [facts.owner, {"mint": facts.mint}, {"encoding": "jsonParsed", **at}], held)
            yield Call("getTokenSupply", [facts.mint, at], s.with_context(s.TOKEN_AMOUNT))
            yield Call("getTokenLargestAccounts", [facts.mint, at], s.with_context(s.array(s.LARGEST_TOKEN, maxItems=20)))
    for commitment, encoding, version in itertools.product(("confirmed", "finalized"), ("json", "jsonParsed", "base58", "base64"),
                                                           (None, 0)):
        options = config(commitment=commitment, encoding=encoding, maxSupportedTransactionVersion=version)
        schema = s.confirmed_transaction(encoding, version is not None)
        yield Call("getTransaction", [facts.signatures[0], options], schema, (-32015,) if version is None else ())
    for commitment in ("confirmed", "finalized"):
        at = {"commitment": commitment}
        slots = s.array(s.U64, uniqueItems=True)
        yield Call("getBlocks", [max(facts.slot - 8, 0), facts.slot, at], {**slots, "maxItems": 9})
        yield Call("getBlocksWithLimit", [max(facts.slot - 8, 0), 5, at], {**slots, "maxItems": 5})
        yield Call("getSignaturesForAddress", [facts.payer, {"limit": 5, **at}], s.array(s.SIGNATURE_INFO, maxItems=5))
        for page in ({"before": facts.signatures[0]}, {"until": facts.signatures[0]}):
            options = {"limit": 5, **page, **at}
            yield Call("getSignaturesForAddress", [facts.payer, options], s.array(s.SIGNATURE_INFO, maxItems=5))
        rewarded = [facts.vote["votePubkey"], NOBODY]
        for options in (at, {"epoch": max(facts.epoch - 1, 0), **at}, {"epoch": 0, **at}):
            rewards = s.array(s.INFLATION_REWARD, minItems=2, maxItems=2)
            # Of a running epoch, of one whose rewards are paid at the moment, or of one that the node has dropped.
            yield Call("getInflationReward", [rewarded, options], rewards, (-32001, -32004, -32009, -32017, -32018))
    for params in ([], [facts.slot], [None, {"identity": facts.vote["nodePubkey"]}], [facts.slot + 10**9]):
        yield Call("getLeaderSchedule", params, s.LEADERS)
    yield Call("getBlocks", [max(facts.slot - 8, 0)], s.array(s.U64, uniqueItems=True))
    yield Call("getTransaction", ["1" * 64], s.NULL)
    yield Call("getHighestSnapshotSlot", [], s.SNAPSHOT, (-32008,))
    yield Call("getBlockTime", [facts.slot], s.maybe(s.I64))
    yield Call("getSlotLeaders", [facts.slot, 3], s.array(s.PUBKEY, maxItems=3))
    yield Call("getBlockCommitment", [facts.slot],
               s.record({"commitment": s.maybe(s.array(s.U64, minItems=32, maxItems=32)), "totalStake": s.U64}))
    fee = s.record({"slot": s.U64, "prioritizationFee": s.U64})
    yield Call("getRecentPrioritizationFees", [[facts.payer]], s.array(fee, maxItems=150))
    for method, schema in (
        ("getHealth", s.values("ok")), ("getGenesisHash", s.PUBKEY), ("getIdentity", s.record({"identity": s.PUBKEY})),
        ("getVersion", s.record({"solana-core": s.STRING, "feature-set": s.maybe(s.U64)})),
        ("getEpochSchedule", s.EPOCH_SCHEDULE), ("getInflationGovernor", s.INFLATION_GOVERNOR),
        ("getInflationRate", s.INFLATION_RATE), ("getFirstAvailableBlock", s.U64), ("minimumLedgerSlot", s.U64),
        ("getMaxRetransmitSlot", s.U64), ("getMaxShredInsertSlot", s.U64), ("getStakeMinimumDelegation", s.with_context(s.U64)),
    ):
        yield Call(method, [], schema)


def call(method, *params):
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": list(params)}


def refusals(facts):
    """The error codes: those of JSON-RPC 2.0, and those that @solana/errors 6.10.0 lists in codes.d.ts."""
    far = {"minContextSlot": 2**40}
    yield Refused("not JSON", b'{"jsonrpc":', (-32700,))
    yield Refused("an empty object", {}, (-32600,))
    yield Refused("another version", {**call("getSlot"), "jsonrpc": "1.0"}, (-32600,))
    yield Refused("an unknown method", call("getNothing"), (-32601,))
    for method in ("getAccountInfo", "getTokenAccountBalance", "getMultipleAccounts", "getFeeForMessage", "getBlock",
                   "isBlockhashValid", "getSignatureStatuses"):
        yield Refused(f"{method} without params", call(method), (-32602,))
    for method in ("getAccountInfo", "getTokenAccountBalance", "isBlockhashValid"):
        yield Refused(f"{method} of no key", call(method, "not base58: 0OIl"), (-32602,))
    for method, first in (("getAccountInfo", facts.payer), ("getMultipleAccounts", [facts.payer]),
                          ("getFeeForMessage", facts.message), ("isBlockhashValid", facts.blockhash)):
        yield Refused(f"{method} of the future", call(method, first, far), (-32016,))
    for method in ("getSlot", "getBlockHeight", "getLatestBlockhash", "getEpochInfo"):
        yield Refused(f"{method} of the future", call(method, far), (-32016,))
    yield Refused("an unknown encoding", call("getAccountInfo", facts.payer, {"encoding": "hex"}), (-32602,))
    for method, params in (("getBalance", ["x"]), ("getTransaction", ["x"]), ("getSignaturesForAddress", ["x"]),
                           ("getBlocks", ["x"]), ("getBlockTime", ["x"]), ("getTokenSupply", ["x"]),
                           ("getTokenAccountsByOwner", [facts.payer, {}]), ("getInflationReward", [["x"]]),
                           ("getProgramAccounts", [TOKEN_PROGRAM, {"filters": [{"dataSize": 1}] * 5}]),
                           ("getSlotLeaders", [facts.slot, 5001]), ("getBlocksWithLimit", [0, 500_001]),
                           ("getTransaction", [facts.signatures[0], {"commitment": "processed"}]),
                           ("getSignaturesForAddress", [facts.payer, {"limit": 1001}]),
                           ("getRecentPrioritizationFees", [[facts.payer] * 129])):
        # A server that does not open the method says so instead.
        yield Refused(f"{method} of what it does not take: {params}"[:80], call(method, *params), (-32602, *LEFT_OUT))
    yield Refused("an unknown bound", call("getSignaturesForAddress", facts.payer, {"before": "1" * 64}), (-32020, *LEFT_OUT))
    yield Refused("the time of a block of the future", call("getBlockTime", 2**40), (-32004, *LEFT_OUT))
    yield Refused("rewards of the future", call("getInflationReward", [facts.payer], {"epoch": 2**30}), (-32004, *LEFT_OUT))
    for method in ("getBalance", "getBlocks", "getTransactionCount", "getSlotLeader"):
        first = {"getBalance": [facts.payer], "getBlocks": [0, facts.slot]}.get(method, [])
        yield Refused(f"{method} of the future", call(method, *first, far), (-32016, *LEFT_OUT))
    yield Refused("101 accounts", call("getMultipleAccounts", [facts.payer] * 101), (-32602,))
    yield Refused("257 signatures", call("getSignatureStatuses", [facts.signatures[0]] * 257), (-32602,))
    yield Refused("a balance of no token account", call("getTokenAccountBalance", facts.payer), (-32602,))
    yield Refused("a message that is none", call("getFeeForMessage", "AAAA"), (-32602,))
    yield Refused("too many samples", call("getRecentPerformanceSamples", 721), (-32602,))
    yield Refused("a processed block", call("getBlock", facts.slot, {"commitment": "processed"}), (-32602,))
    yield Refused("a block of the future", call("getBlock", 2**40), (-32004, -32007, -32009))
    if facts.skipped:
        yield Refused("a skipped block", call("getBlock", facts.skipped), (-32007, -32009))

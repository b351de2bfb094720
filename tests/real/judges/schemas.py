"""The results of Solana's RPC methods as JSON Schema, written down from public specifications and not from slotfront.

The sources: the pages at solana.com/docs/rpc (below, "docs"), the types of @solana/rpc-api and @solana/rpc-types 6.10.0
("kit"), and the OpenRPC document for Solana that Alchemy publishes ("openrpc", in alchemyplatform/docs). Where they differ,
the stricter one counts, unless a comment says what nodes do. A member that no source has is refused.
"""

U64 = {"type": "integer", "minimum": 0, "maximum": 2**64 - 1}
I64 = {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}
U8 = {"type": "integer", "minimum": 0, "maximum": 255}
BOOLEAN = {"type": "boolean"}
STRING = {"type": "string"}
NUMBER = {"type": "number"}
NULL = {"type": "null"}
BASE58 = {"type": "string", "pattern": "^[1-9A-HJ-NP-Za-km-z]*$"}
BASE64 = {"type": "string", "pattern": "^[A-Za-z0-9+/]*={0,2}$"}
# 32 bytes in base58, which is as many ones for zeros, and otherwise up to 44 digits.
PUBKEY = {"type": "string", "pattern": "^[1-9A-HJ-NP-Za-km-z]{32,44}$"}
SIGNATURE = {"type": "string", "pattern": "^[1-9A-HJ-NP-Za-km-z]{64,88}$"}
SOCKET = {"type": ["string", "null"], "pattern": r"^(\d+\.\d+\.\d+\.\d+|\[[0-9a-f:.]+\]):\d+$"}


def one_of(*schemas):
    return {"anyOf": list(schemas)}


def maybe(schema):
    return one_of(schema, NULL)


def array(items, **bounds):
    return {"type": "array", "items": items, **bounds}


def values(*known):
    return {"enum": list(known)}


def record(required, optional=None):
    """An object with these members, and no others."""
    return {"type": "object", "required": sorted(required), "properties": {**required, **(optional or {})},
            "additionalProperties": False}


def pair(text, *names):
    """Encoded bytes beside the name of their encoding."""
    return {"type": "array", "prefixItems": [text, values(*names)], "minItems": 2, "maxItems": 2}


def with_context(value):
    """A value beside the slot that it was read at. The docs name apiVersion in their examples only."""
    return record({"context": record({"slot": U64}, {"apiVersion": STRING}), "value": value})


# docs: "TransactionError". A variant is its name, or an object with its name and its content.
ERROR = one_of(STRING, {"type": "object", "minProperties": 1, "maxProperties": 1})
STATUS = one_of(record({"Ok": NULL}), record({"Err": ERROR}))

# kit: account-info.d.ts, encoded-bytes.d.ts. The docs have rentEpoch, the types have not.
PARSED_DATA = record({"program": STRING, "parsed": record({"type": STRING}, {"info": {}}), "space": U64})
DATA = {
    None: BASE58,
    "binary": BASE58,
    "base58": pair(BASE58, "base58"),
    "base64": pair(BASE64, "base64"),
    "base64+zstd": pair(BASE64, "base64+zstd"),
    "jsonParsed": one_of(PARSED_DATA, pair(BASE64, "base64")),
}


def account(encoding):
    return record({"lamports": U64, "owner": PUBKEY, "data": DATA[encoding], "executable": BOOLEAN, "rentEpoch": U64,
                   "space": U64})


def keyed(encoding):
    """kit: AccountInfoWithPubkey."""
    return record({"pubkey": PUBKEY, "account": account(encoding)})


# kit: token-amount.d.ts, token-balance.d.ts.
TOKEN_AMOUNT = record({
    "amount": {"type": "string", "pattern": "^[0-9]+$"}, "decimals": U8, "uiAmount": {"type": ["number", "null"]},
    "uiAmountString": {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?$"}})
TOKEN_BALANCE = record({"accountIndex": U8, "mint": PUBKEY, "uiTokenAmount": TOKEN_AMOUNT},
                       {"owner": PUBKEY, "programId": PUBKEY})

# From Agave 4 on, nodes also write the commission in hundredths of a percent.
BPS = {"commissionBps": maybe({"type": "integer", "minimum": 0, "maximum": 10_000})}
# docs: getBlock. Nodes write null for a reward without a type, as the source of getBlock's page says of its fields.
REWARD = record({"pubkey": PUBKEY, "lamports": I64, "postBalance": U64, "commission": maybe(U8),
                 "rewardType": values("Fee", "Rent", "Voting", "Staking", "DeactivatedStake", None)}, BPS)
REWARDS = maybe(array(REWARD))

# kit: transaction.d.ts. Nodes write null as the height of an instruction outside of calls.
HEIGHT = {"stackHeight": {"type": ["integer", "null"]}}
COMPILED = record({"programIdIndex": U8, "accounts": array(U8), "data": BASE58}, HEIGHT)
PARSED = record({"program": STRING, "programId": PUBKEY, "parsed": {"type": ["object", "string"]}}, HEIGHT)
UNPARSED = record({"programId": PUBKEY, "accounts": array(PUBKEY), "data": BASE58}, HEIGHT)
INSTRUCTION = {False: COMPILED, True: one_of(PARSED, UNPARSED)}
LOOKUPS = array(record({"accountKey": PUBKEY, "writableIndexes": array(U8), "readonlyIndexes": array(U8)}))
KEY = record({"pubkey": PUBKEY, "signer": BOOLEAN, "writable": BOOLEAN, "source": values("transaction", "lookupTable")})
HEADER = record({"numRequiredSignatures": U8, "numReadonlySignedAccounts": U8, "numReadonlyUnsignedAccounts": U8})


def message(parsed):
    keys = {"accountKeys": array(KEY)} if parsed else {"accountKeys": array(PUBKEY), "header": HEADER}
    rest = {"recentBlockhash": PUBKEY, "instructions": array(INSTRUCTION[parsed])}
    return record({**keys, **rest}, {"addressTableLookups": maybe(LOOKUPS)})


def transaction(encoding):
    if encoding in ("base58", "base64"):
        return pair(BASE58 if encoding == "base58" else BASE64, encoding)
    return record({"signatures": array(SIGNATURE, minItems=1), "message": message(encoding == "jsonParsed")})


BALANCES = {"err": maybe(ERROR), "status": STATUS, "fee": U64, "preBalances": array(U64), "postBalances": array(U64),
            "preTokenBalances": array(TOKEN_BALANCE), "postTokenBalances": array(TOKEN_BALANCE)}
RETURNED = record({"programId": PUBKEY, "data": pair(BASE64, "base64")})


def meta(parsed):
    """docs: "Transaction Status Metadata". Nodes also write the units that the cost model counts, costUnits."""
    inner = array(record({"index": U8, "instructions": array(INSTRUCTION[parsed])}))
    more = {"innerInstructions": maybe(inner), "logMessages": maybe(array(STRING)), "rewards": REWARDS}
    loaded = record({"writable": array(PUBKEY), "readonly": array(PUBKEY)})
    return record({**BALANCES, **more},
                  {"loadedAddresses": loaded, "returnData": RETURNED, "computeUnitsConsumed": U64, "costUnits": U64})


VERSION = one_of(values("legacy"), U8)


def in_block(encoding, details, versioned):
    """One transaction of a block. Its version is there exactly if the call says which versions it understands."""
    version = {"version": VERSION} if versioned else {}
    if details == "accounts":
        keys = record({"signatures": array(SIGNATURE, minItems=1), "accountKeys": array(KEY)})
        # The docs do not name rewards here, but nodes write them unless the call wants none.
        return record({"transaction": keys, "meta": maybe(record(BALANCES, {"rewards": REWARDS})), **version})
    return record({"transaction": transaction(encoding), "meta": maybe(meta(encoding == "jsonParsed")), **version})


def block(encoding, details, rewards, versioned):
    """docs: getBlock. A node also writes the number of partitions of an epoch's rewards, if the block begins one."""
    members = {"blockhash": PUBKEY, "previousBlockhash": PUBKEY, "parentSlot": U64, "blockTime": maybe(I64),
               "blockHeight": maybe(U64)}
    if details in ("full", "accounts"):
        members["transactions"] = array(in_block(encoding, details, versioned))
    elif details == "signatures":
        members["signatures"] = array(SIGNATURE)
    if rewards:
        members["rewards"] = array(REWARD)
    return record(members, {"numRewardPartitions": U64} if rewards else None)


# docs: getTransaction. Nodes that keep the place of a transaction in its block write transactionIndex.
def confirmed_transaction(encoding, versioned):
    members = {"slot": U64, "blockTime": maybe(I64), "transaction": transaction(encoding),
               "meta": maybe(meta(encoding == "jsonParsed"))}
    return maybe(record({**members, **({"version": VERSION} if versioned else {})}, {"transactionIndex": U64}))


# kit: getVoteAccounts. From Agave 4 on, nodes also write the commission in hundredths of a percent.
VOTE_ACCOUNT = record(
    {"votePubkey": PUBKEY, "nodePubkey": PUBKEY, "activatedStake": U64, "epochVoteAccount": BOOLEAN, "commission": U8,
     "lastVote": U64, "epochCredits": array(array(U64, minItems=3, maxItems=3), maxItems=5), "rootSlot": U64},
    {"inflationRewardsCommissionBps": U64})
VOTE_ACCOUNTS = record({"current": array(VOTE_ACCOUNT), "delinquent": array(VOTE_ACCOUNT)})

SOCKETS = ("gossip", "pubsub", "rpc", "serveRepair", "tpu", "tpuForwards", "tpuForwardsQuic", "tpuQuic", "tpuVote", "tvu")
CLUSTER_NODE = record(
    {"pubkey": PUBKEY, "version": maybe(STRING), "featureSet": maybe(U64), "shredVersion": maybe(U64),
     **dict.fromkeys(SOCKETS, SOCKET)}, {"clientId": maybe(STRING)})

SAMPLE = record({"slot": U64, "numTransactions": U64, "numNonVoteTransactions": maybe(U64), "numSlots": U64,
                 "samplePeriodSecs": U64})
EPOCH_INFO = record({"absoluteSlot": U64, "blockHeight": U64, "epoch": U64, "slotIndex": U64, "slotsInEpoch": U64,
                     "transactionCount": maybe(U64)})
LATEST_BLOCKHASH = with_context(record({"blockhash": PUBKEY, "lastValidBlockHeight": U64}))
COMMITMENT = values("processed", "confirmed", "finalized", None)
SIGNATURE_STATUS = record({"slot": U64, "confirmations": maybe(U64), "err": maybe(ERROR), "status": STATUS,
                           "confirmationStatus": COMMITMENT})
SIGNATURE_INFO = record({"signature": SIGNATURE, "slot": U64, "err": maybe(ERROR), "memo": maybe(STRING),
                         "blockTime": maybe(I64), "confirmationStatus": COMMITMENT}, {"transactionIndex": U64})
EPOCH_SCHEDULE = record({"slotsPerEpoch": U64, "leaderScheduleSlotOffset": U64, "warmup": BOOLEAN,
                         "firstNormalEpoch": U64, "firstNormalSlot": U64})
INFLATION_GOVERNOR = record(dict.fromkeys(("initial", "terminal", "taper", "foundation", "foundationTerm"), NUMBER))
INFLATION_RATE = record({"total": NUMBER, "validator": NUMBER, "foundation": NUMBER, "epoch": U64})
SUPPLY = record({"total": U64, "circulating": U64, "nonCirculating": U64, "nonCirculatingAccounts": array(PUBKEY)})
LEADERS = {"type": ["object", "null"], "propertyNames": PUBKEY, "additionalProperties": array(U64)}
PRODUCTION = record({
    "byIdentity": {"type": "object", "propertyNames": PUBKEY,
                   "additionalProperties": array(U64, minItems=2, maxItems=2)},
    "range": record({"firstSlot": U64, "lastSlot": U64})})
LARGEST_TOKEN = record({**TOKEN_AMOUNT["properties"], "address": PUBKEY})
LARGEST = record({"address": PUBKEY, "lamports": U64})
# docs: getHighestSnapshotSlot. Nodes write null while there is no incremental snapshot, as kit expects.
SNAPSHOT = record({"full": U64, "incremental": maybe(U64)})
# docs: getInflationReward. null for an account that has got none.
INFLATION_REWARD = maybe(record(
    {"epoch": U64, "effectiveSlot": U64, "amount": U64, "postBalance": U64, "commission": maybe(U8)}, BPS))

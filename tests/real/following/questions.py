"""The questions: accounts, lists and token balances, each at confirmed and at finalized."""

import json

from request import Request, envelope
from bounds import ENCODINGS
from decoding import unpack_zstd

# The longest list. Longer ones would only make answers longer, not different.
MOST_LISTED = 10
TOKEN_PROGRAMS = ("TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA", "TokenzQdBNbLqP5VEhdkAS6EPFLC1PHnBqCXEpPxuEb")
TOKEN_ACCOUNT_BYTES = 165


def newest_accounts(node):
    """Returns accounts of the node's newest final blocks, by made-up kinds. The kind of a token account begins with "token"."""
    finalized = node.call("getSlot", {"commitment": "finalized"})
    keys = {}
    for slot in node.call("getBlocks", max(0, finalized - 40), finalized):
        block = node.call("getBlock", slot, {"transactionDetails": "accounts", "maxSupportedTransactionVersion": 0})
        for transaction in block["transactions"]:
            keys.update(dict.fromkeys(key["pubkey"] for key in transaction["transaction"]["accountKeys"]))
    accounts, keys = {}, list(keys)
    for start in range(0, min(len(keys), 200), 100):
        some = keys[start : start + 100]
        for key, value in zip(some, node.call("getMultipleAccounts", some, {"encoding": "base64"})["value"]):
            is_token = value and value["owner"] in TOKEN_PROGRAMS and value["space"] == TOKEN_ACCOUNT_BYTES
            accounts[f"{'token' if is_token else 'key'}_{len(accounts)}"] = key
    return accounts


def form(rng, commitment_free):
    """Adds an encoding and a slice to a configuration."""
    encoding = rng.choice(ENCODINGS)
    if encoding == "base64+zstd" and not unpack_zstd:
        encoding = "base64"
    if encoding:
        commitment_free["encoding"] = encoding
    # Without a slice, base58 is refused for most accounts.
    if encoding in (None, "binary", "base58") or rng.random() < 0.3:
        commitment_free["dataSlice"] = {"offset": rng.choice([0, 0, 8, 32, 64]), "length": rng.choice([0, 8, 32, 100, 128])}
    return commitment_free


def draw_question(rng, accounts):
    """Returns a random method with its params and its configuration, which names no commitment yet."""
    kind = rng.random()
    tokens = [key for name, key in accounts.items() if name.startswith("token") and "2022" not in name]
    if kind < 0.15 and tokens:
        return "getTokenAccountBalance", [rng.choice(tokens)], {}
    if kind < 0.4:
        listed = rng.sample(list(accounts.values()), min(len(accounts), rng.randint(2, MOST_LISTED)))
        return "getMultipleAccounts", [listed], form(rng, {})
    return "getAccountInfo", [rng.choice(list(accounts.values()))], form(rng, {})


def draw_questions(node, accounts, rng, count):
    """Returns `count` questions that the node answers, each as two requests: at confirmed and at finalized."""
    questions = []
    for _ in range(count * 20):
        if len(questions) == count:
            break
        method, params, config = draw_question(rng, accounts)
        at = {c: Request(method, [*params, {**config, "commitment": c}], c) for c in ("confirmed", "finalized")}
        answer = json.loads(node.post(envelope(method, at["confirmed"].params))[2])
        # A refusal shows no slot, so there would be nothing to compare.
        if "result" in answer:
            questions.append(at)
    return questions

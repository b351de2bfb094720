"""The scenarios about the methods whose answers name no slot: history, tip, constants, and what belongs to nodes.

Such an answer is compared with what the node said shortly before and after it. Where the node's own answer changes from
slot to slot, a rule says which answers may lie between two of them.
"""

import json
import time

from bounds import COMMITMENTS, ENCODINGS, LATENESS_S
from comparison import Comparison
from request import Request
from state import run

TOKEN_PROGRAMS = ("TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA", "TokenzQdBNbLqP5VEhdkAS6EPFLC1PHnBqCXEpPxuEb")
SETTLED = ("confirmed", "finalized")
RANK = {name: rank for rank, name in enumerate(COMMITMENTS)}
# A node forgets the leaders of epochs long past, and slotfront may still know them.
FORGOTTEN = ("getLeaderSchedule", "getSlotLeaders")
MISSING_SIGNATURE = "1" * 64


def between(low, answer, high):
    """Returns true if a number is between two of the node's."""
    return all(isinstance(one, int) for one in (low, answer, high)) and low <= answer <= high


def blocks_between(low, answer, high):
    """Returns true if a list of blocks has grown from one of the node's, and grows into another one."""
    return all(isinstance(one, list) for one in (low, answer, high)) and high[: len(answer)] == answer and answer[: len(low)] == low


def page_between(low, answer, high):
    """Returns true if a page of transactions lies between two of the node's: newer ones join at its begin."""
    if not all(isinstance(one, list) for one in (low, answer, high)):
        return False

    def follows(older, newer):
        if not older or not newer:
            return not older or not newer
        names = [one["signature"] for one in newer]
        if older[0]["signature"] not in names:
            return len(names) == len(older)
        return all(
            {**a, "confirmationStatus": 0} == {**b, "confirmationStatus": 0} and RANK[a["confirmationStatus"]] <= RANK[b["confirmationStatus"]]
            for a, b in zip(older, newer[names.index(older[0]["signature"]) :])
        )

    return follows(low, answer) and follows(answer, high)


def fees_between(low, answer, high):
    """Returns true if the fees of the blocks that both lists name are equal, and the newest block is between the node's."""
    lists = [low, answer, high]
    if not all(isinstance(one, list) and one for one in lists):
        return False
    before, own, after = ({fee["slot"]: fee["prioritizationFee"] for fee in one} for one in lists)
    known = {**before, **after}
    return max(before) <= max(own) <= max(after) and all(fee == known.get(slot, fee) for slot, fee in own.items())


def votes_between(low, answer, high):
    """Returns true if a block has as much stake behind it as before, deeper and deeper in the votes."""
    if not all(isinstance(one, dict) and one["totalStake"] == answer["totalStake"] for one in (low, high)):
        return False
    depth = [sum(i * stake for i, stake in enumerate(one["commitment"])) if one["commitment"] else None for one in (low, answer, high)]
    return depth[1] is None or all(one is not None for one in (depth[0], depth[2])) and depth[0] <= depth[1] <= depth[2]


def statuses_between(low, answer, high):
    """Returns true if each transaction is at least as far as before, and at most as far as after."""

    def reached(status):
        return RANK[status["confirmationStatus"]] if status else -1

    def same(a, b):
        return a is None or b is None or all(a[name] == b[name] for name in ("slot", "err", "status"))

    values = [one["value"] for one in (low, answer, high)]
    return low["context"]["slot"] <= answer["context"]["slot"] <= high["context"]["slot"] and all(
        same(a, b) and same(b, c) and reached(a) <= reached(b) <= reached(c) for a, b, c in zip(*values)
    )


BETWEEN = {
    "getSlot": between, "getBlockHeight": between, "getTransactionCount": between, "getMaxRetransmitSlot": between,
    "getMaxShredInsertSlot": between, "getBlocks": blocks_between, "getBlocksWithLimit": blocks_between,
    "getSignaturesForAddress": page_between, "getRecentPrioritizationFees": fees_between, "getBlockCommitment": votes_between,
    "getSignatureStatuses": statuses_between, "minimumLedgerSlot": between, "getFirstAvailableBlock": between,
}


class OtherMethods(Comparison):
    """The scenarios of one thread. Subclasses set `self.manifest`, too."""

    def beside(self, requests, rounds=None, min_slots=True):
        """Sends each request to both sides in turns, and compares the answers of slotfront with those around them."""
        seen, fronts = {request.key: [] for request in requests}, []
        for _ in range(rounds or self.rng.randint(3, 8)):
            for request in self.rng.sample(requests, len(requests)):
                seen[request.key].append(self.ask_direct(request))
                front = self.ask_front(request, self.min_context_slot(request) if min_slots else None)
                if front:
                    fronts.append(front)
            time.sleep(self.rng.choice([0, 0, 0.05, 0.3]))
        for request in requests:
            seen[request.key].append(self.ask_direct(request))
        for front in fronts:
            self.compare_beside(front, [one for one in seen[front.request.key] if one])

    def compare_beside(self, front, seen):
        request = front.request
        if front.error and front.error[0] == -32016:
            run.count("compared", "-32016, checked alone")
            return
        lateness = LATENESS_S.get(request.method, 0)
        # What a node said before counts for as long as an answer may be kept.
        earliest = max((one.sent for one in seen if one.got <= front.sent - lateness), default=0)
        around = [one for one in seen if one.sent >= earliest]
        if any(self.is_equal(front, one) for one in around):
            run.count("compared", "equal to the node before or after" if not front.error else "equal error")
            return
        rule = BETWEEN.get(request.method)
        results = [one.result for one in around if not one.error]
        if rule and results and not front.error and rule(results[0], front.result, results[-1]):
            run.count("compared", "between the node before and after")
            return
        if request.method in FORGOTTEN and not front.error and all(one.error or one.result is None for one in seen):
            run.count("compared", "forgotten by the node")
            return
        if not earliest and lateness:
            run.count("compared", "not comparable")
            return
        if self.settles(front, request):
            return
        run.found("beside", request, f"{lateness} s", front, [f"{one.sent:.3f}-{one.got:.3f} {one.body}" for one in around][:6])

    def settles(self, front, request):
        """Returns true if the node itself gives the answer a moment later, as it does once it has written a block."""
        for wait in (0.3, 1):
            time.sleep(wait)
            seen = self.ask_direct(request)
            if seen and self.is_equal(front, seen):
                run.count("compared", "equal to the node a moment later")
                return True
        return False

    @staticmethod
    def is_equal(front, seen):
        if front.error or seen.error:
            return front.error == seen.error
        return front.parts == seen.parts and (front.request.kind != "plain" or front.text == seen.text)

    # -- history --

    def any_signature(self):
        draw = self.rng.random()
        if draw < 0.05:
            return MISSING_SIGNATURE
        if draw < 0.35:
            # A transaction of the newest blocks, perhaps not final yet.
            near = self.rng.choice([run.slots["confirmed"].now() - self.rng.randint(0, 3), run.slots["finalized"].now() - self.rng.randint(0, 60)])
            config = {"transactionDetails": "signatures", "rewards": False, "commitment": "confirmed"}
            block = json.loads(self.direct.post(Request("getBlock", [max(near, 0), config]).body(self.rng))[2])
            if signatures := (block.get("result") or {}).get("signatures"):
                return self.rng.choice(signatures)
        return self.rng.choice([one for listed in self.manifest["signatures"].values() for one in listed])

    def transactions(self):
        """Requests a transaction in every encoding, with and without a version, at both commitments."""
        signature, requests = self.any_signature(), []
        for encoding in self.rng.sample(["json", "jsonParsed", "base58", "base64", "binary", None], 4):
            commitment = self.rng.choice(SETTLED)
            config = {"commitment": commitment}
            if encoding:
                config["encoding"] = encoding
            if self.rng.random() < 0.7:
                config["maxSupportedTransactionVersion"] = 0
            requests.append(Request("getTransaction", [signature, config], commitment, "plain"))
        if self.rng.random() < 0.2:
            requests.append(Request("getTransaction", [signature, self.rng.choice(["base64", "json"])], "finalized", "plain"))
        self.beside(requests)

    def any_slot(self):
        finalized, confirmed = run.slots["finalized"].now(), run.slots["confirmed"].now()
        return max(0, self.rng.choice([
            0, 1, self.rng.randint(0, finalized), self.rng.randint(0, finalized), finalized, finalized + self.rng.randint(-3, 3),
            self.rng.randint(finalized, confirmed), confirmed, confirmed - 1, confirmed + 1, confirmed + 1000,
        ]))

    def block_lists(self):
        requests = []
        for _ in range(self.rng.randint(2, 4)):
            commitment, first = self.rng.choice(SETTLED), self.any_slot()
            draw, config = self.rng.random(), {"commitment": commitment}
            if draw < 0.4:
                last = first + self.rng.choice([0, 1, 5, 40, 500, 499_999, 500_000, 500_001, -1, -10])
                request = Request("getBlocks", [first, max(0, last), config], commitment, "plain")
            elif draw < 0.6:
                request = Request("getBlocks", [first, self.rng.choice([config, config, None])], commitment, "plain")
                commitment = "finalized" if request.params[1] is None else commitment
                request.commitment = commitment
            else:
                limit = self.rng.choice([0, 1, 2, 10, 500, 500_000, 500_001])
                request = Request("getBlocksWithLimit", [first, limit, config], commitment, "plain")
            requests.append(request)
        self.beside(requests)

    def block_times(self):
        self.beside([Request("getBlockTime", [self.any_slot()], None, "plain") for _ in range(3)])

    def pages(self):
        """Requests pages of an account's transactions: the newest one, then the ones before and until."""
        account = self.rng.choice([self.accounts[name] for name in ("alice", "payer", "vote", "mint_6", "program_memo", "unknown") if name in self.accounts])
        commitment, limit = self.rng.choice(SETTLED), self.rng.choice([1, 2, 3, 10, 100, 1000, None])
        config = {"commitment": commitment} | ({"limit": limit} if limit else {})
        requests = [Request("getSignaturesForAddress", [account, config], commitment, "plain")]
        newest = self.ask_direct(requests[0])
        signatures = [one["signature"] for one in newest.result or []] if newest and not newest.error else []
        anywhere = [*signatures, self.any_signature()]
        before, until = self.rng.choice(anywhere), self.rng.choice(anywhere)
        size = {"limit": self.rng.choice([1, 2, 5, 50])}
        for more in self.rng.sample([{"before": before}, {"until": until}, {"before": before, "until": until}, {"before": until}], 2):
            requests.append(Request("getSignaturesForAddress", [account, {**config, **size, **more}], commitment, "plain"))
        self.beside(requests)

    # -- the tip --

    def tip(self):
        commitment = self.rng.choice(COMMITMENTS)
        at = {"commitment": commitment}
        named = self.direct.call("getLatestBlockhash", {"commitment": self.rng.choice(COMMITMENTS)})["value"]["blockhash"]
        contextual = [
            Request("getLatestBlockhash", [at], commitment), Request("isBlockhashValid", [named, at], commitment),
            Request("isBlockhashValid", [self.accounts["unknown"], at], commitment), Request("getEpochInfo", [at], commitment, "marked"),
        ]
        self.compare_for(self.some_seconds(commitment) / 2, self.rng.sample(contextual, 2))
        numbers = [Request("getSlot", [at], commitment, "plain"), Request("getBlockHeight", [at], commitment, "plain")]
        self.beside(numbers)

    def statuses(self):
        signatures = [self.any_signature() for _ in range(self.rng.randint(0, 5))]
        requests = [Request("getSignatureStatuses", [signatures, *more], None, "statuses") for more in ([], [{"searchTransactionHistory": True}])]
        self.beside(requests)

    # -- constants and nodes --

    def constants(self):
        commitment = self.rng.choice(COMMITMENTS)
        at = {"commitment": commitment}
        settled = {"commitment": self.rng.choice(SETTLED)}
        epoch = self.direct.call("getEpochInfo", at)["epoch"]
        rewarded = [self.accounts[name] for name in ("vote", "stake", "unknown", "vote_unstaked_0") if name in self.accounts]
        of = {"epoch": max(0, self.rng.choice([0, epoch - 2, epoch - 1, epoch - 1, epoch, epoch + 1]))}
        slot = self.any_slot()
        identity = self.accounts.get("identity", self.accounts["alice"])
        drawn = [
            ("getGenesisHash", []), ("getEpochSchedule", []), ("getInflationGovernor", [at]), ("getInflationGovernor", []),
            ("getInflationRate", []), ("getStakeMinimumDelegation", [at]),
            ("getMinimumBalanceForRentExemption", [self.rng.choice([0, 1, 165, 10 * 1024 * 1024, 10 * 1024 * 1024 + 1]), at]),
            ("getLeaderSchedule", [None, at]), ("getLeaderSchedule", [slot, at]), ("getLeaderSchedule", [at]),
            ("getLeaderSchedule", [self.rng.choice([None, slot]), {**at, "identity": self.rng.choice([identity, self.accounts["unknown"]])}]),
            ("getLeaderSchedule", [slot + 10**6, at]), ("getSlotLeaders", [slot, self.rng.choice([0, 1, 10, 5000, 5001])]), ("getSlotLeader", [at]),
            ("getInflationReward", [rewarded, {**settled, **of}]), ("getInflationReward", [rewarded[:1], settled]),
            ("getInflationReward", [rewarded, {**settled, **of}]), ("getInflationReward", [[], settled]),
        ]
        self.beside([self.plain(method, params) for method, params in self.rng.sample(drawn, 6)])

    @staticmethod
    def plain(method, params):
        """A request at the commitment that its params name, or at finalized."""
        named = [p["commitment"] for p in params if isinstance(p, dict) and "commitment" in p]
        return Request(method, params, named[0] if named else "finalized", "plain")

    def of_nodes(self):
        at = {"commitment": self.rng.choice(COMMITMENTS)}
        keys = self.rng.sample(list(self.accounts.values()), 3)
        drawn = [
            ("getHealth", []), ("getVersion", []), ("getFirstAvailableBlock", []), ("minimumLedgerSlot", []), ("getIdentity", []),
            ("getHighestSnapshotSlot", []), ("getMaxRetransmitSlot", []), ("getMaxShredInsertSlot", []), ("getTransactionCount", [at]),
            ("getRecentPrioritizationFees", []), ("getRecentPrioritizationFees", [keys]), ("getBlockCommitment", [self.any_slot()]),
        ]
        self.beside([self.plain(method, params) for method, params in self.rng.sample(drawn, 4)])
        range_ = {"firstSlot": max(0, run.slots["finalized"].now() - 50)} | self.rng.choice([{}, {"lastSlot": run.slots["finalized"].now()}])
        production = [[{**at}], [{**at, "range": range_}], [{**at, "identity": self.accounts.get("identity")}]]
        params = self.rng.choice(production)
        self.compare_for(2, [Request("getBlockProduction", params, at["commitment"])])

    # -- accounts by other ways --

    def lamports(self):
        commitment = self.rng.choice(COMMITMENTS)
        requests = [Request("getBalance", [self.any_account(), {"commitment": commitment}], commitment) for _ in range(2)]
        requests.append(Request("getAccountInfo", [requests[0].params[0], {"encoding": "base64", "commitment": commitment}], commitment))
        mints = [key for name, key in self.accounts.items() if name.startswith("mint")] + [self.accounts["alice"], self.accounts["unknown"]]
        requests += [Request("getTokenSupply", [mint, {"commitment": commitment}], commitment) for mint in self.rng.sample(mints, 2)]
        self.compare_for(self.some_seconds(commitment), requests)

    def owned(self):
        """Requests the token accounts of an owner or a delegate."""
        commitment = self.rng.choice(COMMITMENTS)
        mints = [key for name, key in self.accounts.items() if name.startswith("mint")]
        requests = []
        for _ in range(3):
            by = self.rng.choice([{"mint": self.rng.choice(mints)}, {"programId": self.rng.choice(TOKEN_PROGRAMS)}, {"mint": self.accounts["unknown"]}])
            config = {"commitment": commitment, "encoding": self.rng.choice([one for one in ENCODINGS if one and one != "base64+zstd"])}
            if config["encoding"] != "jsonParsed":
                config["dataSlice"] = {"offset": 0, "length": self.rng.choice([0, 32, 100])}
            method = self.rng.choice(["getTokenAccountsByOwner", "getTokenAccountsByOwner", "getTokenAccountsByDelegate"])
            requests.append(Request(method, [self.rng.choice([self.accounts["alice"], self.accounts["payer"], self.accounts["unknown"]]), by, config], commitment))
        self.compare_for(self.some_seconds(commitment) / 2, requests)

    def scans(self):
        commitment = self.rng.choice(COMMITMENTS)
        at, mint = {"commitment": commitment}, self.accounts.get("mint_6", self.accounts["alice"])
        filters = [{"dataSize": 165}, {"memcmp": {"offset": 0, "bytes": mint}}]
        self.rng.shuffle(filters)
        form = {"encoding": "base64", "dataSlice": {"offset": 0, "length": 40}}
        requests = [
            Request("getProgramAccounts", [TOKEN_PROGRAMS[0], {**at, **form, "filters": filters, "withContext": True}], commitment),
            Request("getTokenLargestAccounts", [mint, at], commitment),
            Request("getSupply", [{**at, "excludeNonCirculatingAccountsList": True}], commitment),
        ]
        self.compare_for(self.some_seconds(commitment), self.rng.sample(requests, 2))
        listed = [
            Request("getProgramAccounts", [TOKEN_PROGRAMS[0], {**at, "encoding": "jsonParsed", "filters": filters}], commitment, "plain"),
            Request("getProgramAccounts", [self.rng.choice(TOKEN_PROGRAMS), {**at, **form, "filters": [{"dataSize": 82}]}], commitment, "plain"),
        ]
        # A node shows the slot at which it has found the largest accounts for anybody, at any commitment.
        largest = [{**at}, {**at, "filter": "circulating"}, {**at, "filter": "nonCirculating"}]
        listed += [Request("getLargestAccounts", [config], commitment, "plain") for config in self.rng.sample(largest, 2)]
        self.beside(listed, 2, min_slots=False)

"""The scenarios: groups of related requests that a thread sends for some slots.

There are scenarios for an account in many forms, overlapping lists, token balances, fees, shapes of a block, vote
accounts, methods without a slot, and invalid requests.
"""

import random
import re
import threading
import time
import traceback

from answer import cut, digest, source
from bounds import CLOCK, COMMITMENTS, NOT_YET_TTL_S, U64_MAX
from checks import compare, same_block
from decoding import unbase58
from generator import with_blockhash
from others import OtherMethods
from request import Peer, Request, envelope
from state import run


class Worker(OtherMethods, threading.Thread):
    """A thread that runs random scenarios until the time is over."""

    def __init__(self, args, manifest, number):
        super().__init__(daemon=True)
        self.rng = random.Random(f"{args.seed}/{number}")
        self.direct, self.front = Peer(args.direct), Peer(args.front)
        self.manifest, self.until, self.pause = manifest, args.until, args.pause
        self.accounts = manifest["accounts"]
        self.pending = []

    def run(self):
        scenarios = {
            self.account: 45, self.lists: 22, self.balances: 7, self.fees: 9, self.blocks: 12, self.votes: 7,
            self.without_slot: 3, self.invalid: 3, self.transactions: 8, self.block_lists: 8, self.block_times: 4, self.pages: 8,
            self.tip: 8, self.statuses: 5, self.constants: 8, self.of_nodes: 6, self.lamports: 8, self.owned: 6, self.scans: 3,
        }
        while time.time() < self.until:
            try:
                scenario = self.rng.choices(list(scenarios), list(scenarios.values()))[0]
                run.count("scenarios", scenario.__name__)
                scenario()
            except Exception as error:  # noqa: BLE001: an exception that ends a thread would go unnoticed
                run.found("script", Request("-", []), "".join(traceback.format_exception(error)))

    # -- accounts --

    def account(self):
        """Requests one account in several forms, alone and in lists."""
        key, commitment = self.any_account(), self.rng.choice(COMMITMENTS)
        requests = [Request("getAccountInfo", [key, self.config(commitment)], commitment) for _ in range(self.rng.randint(2, 5))]
        if self.rng.random() < 0.3:
            requests.append(Request("getAccountInfo", [key, {"commitment": commitment}], commitment))
        if self.rng.random() < 0.4:
            requests.append(self.list_of([key, self.any_account()][: self.rng.randint(1, 2)], commitment))
        if self.rng.random() < 0.2:
            requests.append(Request("getTokenAccountBalance", [key, {"commitment": commitment}], commitment))
        if self.rng.random() < 0.25:
            other = self.rng.choice(COMMITMENTS)
            requests.append(Request("getAccountInfo", [key, self.config(other)], other))
        self.compare_for(self.some_seconds(commitment), requests)

    def lists(self):
        """Requests lists with common accounts, and some of these accounts alone."""
        commitment = self.rng.choice(COMMITMENTS)
        keys = [self.any_account() for _ in range(self.rng.randint(0, 6))]
        if self.rng.random() < 0.5:
            keys.append(CLOCK)
        config = self.config(commitment)
        requests = [self.list_of(keys, commitment)]
        for _ in range(self.rng.randint(0, 2)):
            some = [k for k in keys if self.rng.random() < 0.7]
            requests.append(Request("getMultipleAccounts", [some, config], commitment))
        for key in self.rng.sample(keys, min(len(keys), 3)):
            requests.append(Request("getAccountInfo", [key, {"encoding": "base64", **config}], commitment))
        self.compare_for(self.some_seconds(commitment), requests)

    def balances(self):
        commitment = self.rng.choice(COMMITMENTS)
        names = [n for n in self.accounts if n.startswith(("token", "mint"))] if self.rng.random() < 0.8 else list(self.accounts)
        keys = {self.accounts[n] for n in self.rng.sample(names, 3)}
        requests = [Request("getTokenAccountBalance", [k, {"commitment": commitment}], commitment) for k in sorted(keys)]
        self.compare_for(self.some_seconds(commitment), requests)

    # -- fees --

    def fees(self):
        """Requests fees of the given messages, and of messages with a new blockhash."""
        commitment = self.rng.choice(COMMITMENTS)
        messages = self.manifest["messages"]
        chosen = [messages[n] for n in self.rng.sample(sorted(messages), 2)]
        if self.rng.random() < 0.8 and "transfer" in messages:
            at = self.rng.choice(COMMITMENTS)
            blockhash = self.direct.call("getLatestBlockhash", {"commitment": at})["value"]["blockhash"]
            for name in ("transfer", "v0_lookup"):
                if name in messages:
                    chosen.append(with_blockhash(messages[name], unbase58(blockhash).rjust(32, b"\0")))
        if self.rng.random() < 0.15:
            chosen.append(self.rng.choice(["", "!!!!", "AQ==", "gA==", "A" * 1645, "A" * 1644, "AAAA", messages["transfer"][:40], "/" + messages["transfer"][1:]]))
        requests = [Request("getFeeForMessage", [m, {"commitment": commitment}], commitment) for m in chosen]
        self.compare_for(self.some_seconds(commitment), requests)

    # -- blocks --

    def blocks(self):
        finalized, confirmed = run.slots["finalized"].now(), run.slots["confirmed"].now()
        listed = [s for v in self.manifest["slots"].values() for s in v]
        slot = self.rng.choice([
            self.rng.choice(listed), self.rng.choice(listed), self.rng.randint(1, max(1, finalized)), finalized,
            finalized + self.rng.randint(-1, 3), self.rng.randint(finalized, confirmed), confirmed, confirmed - 1, confirmed + 1,
            self.rng.choice([0, confirmed + 50, 2**63, U64_MAX]),
        ])
        requests = [self.block_request(slot) for _ in range(self.rng.randint(2, 5))]
        for _ in range(self.rng.randint(4, 12)):
            self.one_block(self.rng.choice(requests))
            time.sleep(self.rng.choice([0, 0, 0.05, 0.25]))

    def one_block(self, request):
        before = self.direct_block(request)
        front = self.ask_front(request)
        if front is None or before is None:
            return
        if same_block(front, before):
            run.count("compared", "equal block" if not front.error else "equal error")
            return
        for wait in (0, 0.5, 1.5):
            time.sleep(wait)
            after = self.direct_block(request)
            if after and same_block(front, after):
                run.count("compared", "equal block" if not front.error else "equal error")
                return
            if front.error:
                break
        since = run.block_since.get(request.key, front.sent)
        absent = front.error and front.error[0] in (-32004, -32014)
        if absent and front.sent - since < NOT_YET_TTL_S + 0.05:
            run.count("compared", "not available yet, within its TTL")
            return
        run.found("block", request, f"requested {front.sent - since:.3f} s after the node had it", front, [x.body for x in (before, after) if x])

    def direct_block(self, request):
        seen = self.ask_direct(request)
        if seen and not seen.error and seen.parts != (digest(None),):
            run.block_since.setdefault(request.key, seen.got)
        return seen

    # -- methods without a context slot --

    def votes(self):
        commitment = self.rng.choice(COMMITMENTS)
        voters = [self.accounts[n] for n in self.accounts if n.startswith("vote")] + [self.accounts["unknown"]]
        requests = []
        for _ in range(self.rng.randint(2, 4)):
            config = {"commitment": commitment}
            if self.rng.random() < 0.5:
                config["votePubkey"] = self.rng.choice([self.accounts["vote"], self.rng.choice(voters)])
            if self.rng.random() < 0.4:
                config["keepUnstakedDelinquents"] = self.rng.choice([True, True, False])
            if self.rng.random() < 0.25:
                config["delinquentSlotDistance"] = self.rng.choice([0, 1, 2, 5, 128, 1_000_000, U64_MAX])
            requests.append(Request("getVoteAccounts", [config], commitment, "marked"))
        self.compare_for(self.some_seconds(commitment) * 0.7, requests)

    def without_slot(self):
        """Requests samples and cluster nodes, which change each minute or never."""
        requests = []
        for _ in range(4):
            limit = self.rng.choice([0, 1, 2, 3, 10, 719, 720, None, self.rng.randint(0, 720)])
            params = [] if limit is None and self.rng.random() < 0.5 else [limit]
            requests.append(Request("getRecentPerformanceSamples", params, None, "marked"))
        requests.append(Request("getClusterNodes", [], None, "marked"))
        pending = []
        for _ in range(12):
            request = self.rng.choice(requests)
            self.ask_direct(request)
            pending.append(self.ask_front(request))
            time.sleep(0.05)
        for request in requests:
            self.ask_direct(request)
        for front in pending:
            if front:
                compare(front)

    # -- invalid requests --

    def invalid(self):
        """Sends invalid requests, and compares the errors with the node's."""
        some, wrong = self.accounts["alice"], ["", "abc", "0" * 43, "l" * 44, "1" * 45, self.accounts["alice"] + "1", "é"]
        commitment = self.rng.choice(COMMITMENTS)
        calls = [
            ("getAccountInfo", [self.rng.choice(wrong), {"minContextSlot": U64_MAX}]),
            ("getAccountInfo", [some, {"encoding": "base32"}]), ("getAccountInfo", [some, {"dataSlice": {"offset": 1}}]),
            ("getAccountInfo", [some, {"minContextSlot": "5"}]), ("getAccountInfo", [some, {"minContextSlot": -1}]),
            ("getAccountInfo", [some, {"dataSlice": {"offset": 1.5, "length": 1}}]), ("getAccountInfo", [some, "confirmed"]),
            ("getAccountInfo", [some, []]), ("getAccountInfo", []), ("getAccountInfo", [5]), ("getAccountInfo", [some, {}, 3]),
            ("getMultipleAccounts", [[some] * 101]), ("getMultipleAccounts", [[some, self.rng.choice(wrong)]]),
            ("getMultipleAccounts", [some]), ("getMultipleAccounts", [[some, None]]), ("getMultipleAccounts", {"a": 1}),
            ("getTokenAccountBalance", [some, {"commitment": "max"}]), ("getTokenAccountBalance", [some, {}]),
            ("getTokenAccountBalance", [self.rng.choice(wrong)]), ("getBlock", []), ("getBlock", ["5"]), ("getBlock", [-1]),
            ("getBlock", [5, {"commitment": "processed"}]), ("getBlock", [5, {"encoding": "x"}]), ("getBlock", [2**64]),
            ("getBlock", [5, {"maxSupportedTransactionVersion": 256}]), ("getFeeForMessage", [5]), ("getFeeForMessage", [some]),
            ("getFeeForMessage", [self.rng.choice(["", "!!!!", "AQ==", "gA==", "A" * 1645, "A" * 1644])]),
            ("getRecentPerformanceSamples", [721]), ("getRecentPerformanceSamples", [-1]), ("getRecentPerformanceSamples", ["1"]),
            ("getVoteAccounts", [{"votePubkey": self.rng.choice(wrong)}]), ("getVoteAccounts", [{"delinquentSlotDistance": "x"}]),
            ("getVoteAccounts", [{}, 1]), ("getClusterNodes", [1]), ("getClusterNodes", {"a": 1}), ("getblock", [5]), ("getSlot2", []),
            ("getMultipleAccounts", [[], {"commitment": commitment, "minContextSlot": U64_MAX - 1}]),
        ]
        for method, params in self.rng.sample(calls, 12):
            body = envelope(method, params)
            request = Request(method, params if isinstance(params, list) else [params], commitment, "broken")
            _, _, own = self.direct.post(body)
            sent = time.time()
            status, headers, answer = self.front.post(body)
            run.count("front", method if method[3:4].isupper() and method != "getSlot2" else "other")
            run.count("outcomes", ("refused", source(headers.get("Cache-Status") or "")))
            settled = [re.sub(rb'"contextSlot":\d+', b'"contextSlot":0', b) for b in (own, answer)]
            if status == 200 and settled[0] == settled[1]:
                run.count("compared", "equal refusal")
            elif b'"error"' not in own:
                run.count("compared", "not comparable")
            else:
                run.found("refusal", request, f"HTTP {status} {cut(answer)} at {sent:.3f}", None, [cut(own)])

"""The callers, and the checks of their answers."""

import asyncio
import base64
import contextlib
import json
import time
from datetime import datetime, timezone

import reference
from connection import Connection
from reference import STALL_S

# The largest lag of an answer in slots: the extended bound, the lag of a usable node, and the delay of a probe. Answers
# with `stale-if-error` may be older.
LAG_SLOTS = {"processed": 1 + 20 + 8, "confirmed": 3 + 20 + 8, "finalized": 18 + 20 + 8}
COMMITMENTS = ["processed", "confirmed", "finalized"]
SHAPES = [{"transactionDetails": "none"}, {"transactionDetails": "signatures"}, {"transactionDetails": "none", "rewards": False},
          {"maxSupportedTransactionVersion": 0, "encoding": "base64"}]

# The timeout of a probe, the pause to the next one, and the timeout of that one.
PROBES_S = 2 + 1 + 2


class Tally:
    """The counts of calls, and the answers that failed or were wrong."""

    def __init__(self, chain, active_faults):
        # A function that returns the names of the current faults.
        self.chain, self.active_faults = chain, active_faults
        self.calls = self.hits = self.gone = self.checked = self.late = 0
        self.failed, self.wrong = [], []
        self.not_yet = []
        self.woken_late_at, self.beats = 0.0, 0

    async def beat(self):
        """Counts tenths of a second in which the machine did not stall. Never ends."""
        while True:
            slept = time.monotonic()
            await asyncio.sleep(0.1)
            self.beats += 1
            if time.monotonic() - slept > STALL_S:
                self.woken_late_at = time.monotonic()

    def stalled_at(self):
        """Returns the time of the last stall, in which this process or a node without faults was slow."""
        return max(self.woken_late_at, self.chain.slow_at)

    def add_refusal(self, status, text, sent, what):
        """Counts a call without a result. A timeout during a stall of the machine is not a failure."""
        timed_out = status == 504 or (status == 502 and b'"timeout"' in text)
        if timed_out and self.stalled_at() > sent:
            self.late += 1
        else:
            self.add_failure(what)

    def add_lag(self, sent, what):
        """Counts an answer with too much lag. After a stall, healthy nodes are left out until their next probe. The
        lagging node is then the last one that answers."""
        if self.stalled_at() > sent - PROBES_S:
            self.late += 1
        else:
            self.add_wrong(what)

    def add_failure(self, what):
        self.failed.append(self.with_context(what))

    def add_wrong(self, what):
        self.wrong.append(self.with_context(what))

    def with_context(self, what):
        """Adds the time, in the format of the logs, and the current faults."""
        return f"{datetime.now(timezone.utc):%H:%M:%S.%f} during {', '.join(self.active_faults()) or 'no fault'}: {what}"


class Caller:
    """A caller that sends random calls to all gateways."""

    def __init__(self, rng, chain, keys, tally):
        self.rng, self.chain, self.keys, self.tally = rng, chain, keys, tally
        # The newest slot of each gateway's answers, by call.
        self.shown = {}

    def draw(self):
        """Returns a random method, its params, and its commitment or `None`."""
        rng, chain, commitment = self.rng, self.chain, self.rng.choice(COMMITMENTS)
        # A few accounts get most of the calls.
        account = lambda: chain.accounts[min(int(rng.expovariate(0.15)), len(chain.accounts) - 1)]
        config = {"commitment": commitment, "encoding": "base64"}
        if rng.random() < 0.3:
            config["dataSlice"] = {"offset": rng.randrange(40), "length": rng.randrange(60)}
        kind = rng.choices(["one", "list", "fee", "votes", "samples", "nodes", "block"], [55, 12, 6, 6, 5, 4, 12])[0]
        if kind == "one":
            return "getAccountInfo", [account(), config], commitment
        if kind == "list":
            return "getMultipleAccounts", [[account() for _ in range(rng.randrange(1, 8))], config], commitment
        if kind == "fee":
            return "getFeeForMessage", [rng.choice(chain.messages), {"commitment": commitment}], commitment
        if kind == "votes":
            return "getVoteAccounts", [{"commitment": commitment}], commitment
        if kind == "samples":
            return "getRecentPerformanceSamples", [rng.randrange(1, 30)], None
        if kind == "nodes":
            return "getClusterNodes", [], None
        # A block that is at least four seconds old, finalized or confirmed.
        commitment = rng.choice(["confirmed", "finalized"])
        tip = chain.tip(commitment, time.monotonic() - 4)
        return "getBlock", [tip - min(int(rng.expovariate(0.05)), 100), dict(rng.choice(SHAPES), commitment=commitment)], commitment

    async def call(self, over):
        connections = [Connection("127.0.0.1", port) for port in self.keys.ports]
        while not over():
            connection = self.rng.choice(connections)
            calls = [self.draw() for _ in range(1 if self.rng.random() < 0.95 else self.rng.randrange(2, 7))]
            bodies = [{"jsonrpc": "2.0", "id": i, "method": method, "params": params} for i, (method, params, _) in enumerate(calls)]
            body = json.dumps(bodies[0] if len(bodies) == 1 else bodies)
            path = f"/v3/{self.rng.choice(self.keys.live)[1]}"
            if self.rng.random() < 0.03:
                await self.go_away(connection, path, body)
                continue
            sent = time.monotonic()
            try:
                status, headers, text = await asyncio.wait_for(connection.post(path, body), 60)
                answers = json.loads(text)
            except (OSError, ValueError, asyncio.TimeoutError, asyncio.IncompleteReadError) as error:
                late = 504 if isinstance(error, asyncio.TimeoutError) else 0
                self.tally.add_refusal(late, b"", sent, f"{type(error).__name__} {error}: {body[:200]}")
                await connection.close()
                continue
            if status != 200:
                self.tally.add_refusal(status, text, sent, f"{status} {text[:300]!r}: {body[:200]}")
                continue
            answers = answers if isinstance(answers, list) else [answers]
            if [answer.get("id") for answer in answers] != list(range(len(calls))):
                self.tally.add_wrong(f"ids {text[:200]!r}: {body[:200]}")
                continue
            for asked, answer in zip(calls, answers):
                await self.check(asked, answer, headers.get("cache-status", ""), sent, connection.port)
            await asyncio.sleep(self.rng.uniform(0, 0.03))
        for connection in connections:
            await connection.close()

    async def go_away(self, connection, path, body):
        """Disconnects during a request, or before its answer."""
        self.tally.gone += 1
        with contextlib.suppress(OSError):
            await connection.send(path, body if self.rng.random() < 0.7 else body + " " * 100)
            if self.rng.random() < 0.5:
                await asyncio.sleep(self.rng.uniform(0, 0.02))
            if self.rng.random() < 0.5:
                connection.writer.transport.abort()
        await connection.close()

    async def check(self, asked, answer, cache, sent, port):
        """Checks an answer, and counts it."""
        (method, params, commitment), tally = asked, self.tally
        tally.calls += 1
        tally.hits += cache.startswith("slotfront; hit")
        what = f"{method} {json.dumps(params)[:200]}: {json.dumps(answer)[:300]} ({cache})"
        if method == "getBlock":
            right = await self.chain.block(*params)
            tally.checked += 1
            code = answer.get("error", {}).get("code")
            if answer.get("result", code) == right:
                return
            # The error for a slot without a block changes when the slot is finalized, possibly between the two calls.
            if code == reference.SKIPPED and right == reference.NOT_YET:
                return
            known_at = "finalized" if right == reference.SKIPPED else commitment
            tip = self.chain.tip(known_at, sent)
            if code == reference.NOT_YET and params[0] > tip - LAG_SLOTS[known_at]:
                # The retries and their budget left only the lagging node to answer.
                if right != reference.SKIPPED or params[0] <= tip:
                    tally.not_yet.append(tally.with_context(what))
                return
            what += f" at tip {tip}, not {json.dumps(right)[:200]}"
            if "error" in answer:
                tally.add_refusal({-32095: 502, -32096: 504}.get(code, 0), json.dumps(answer).encode(), sent, what)
            else:
                tally.add_wrong(what)
            return
        if "result" not in answer:
            ours = {-32095: 502, -32096: 504}.get(answer["error"]["code"], 0)
            return tally.add_refusal(ours, json.dumps(answer).encode(), sent, what)
        result = answer["result"]
        if method == "getClusterNodes":
            tally.checked += 1
            if not all("pubkey" in node for node in result) or not result:
                tally.add_wrong(what)
        elif method == "getRecentPerformanceSamples":
            tally.checked += 1
            # The newest sample may not be in the reference yet.
            known = [json.dumps(sample) in self.chain.samples for sample in result]
            if not 0 < len(result) <= params[0] or not all(known[1:]):
                tally.add_wrong(what)
        elif method == "getVoteAccounts":
            self.compare(self.chain.votes.get(reference.last_vote(result)), reference.by_key(result), what)
        else:
            self.check_at_slot(asked, result, what, "stale-if-error" in cache, sent, port)

    def compare(self, right, found, what):
        """Compares an answer with the reference. `right` is `None` if the reference lacks the slot."""
        self.tally.checked += right is not None
        if right is not None and right != found:
            self.tally.add_wrong(f"{what}, not {json.dumps(right)[:300]}")

    def check_at_slot(self, asked, result, what, in_fault, sent, port):
        """Checks that slots do not go back, that the lag is within its bound, and that the value is right at its slot."""
        method, params, commitment = asked
        slot, value = result["context"]["slot"], result["value"]
        # slotfront caches no fee of null, so its slot may go back.
        if commitment != "processed" and (value is not None or method != "getFeeForMessage"):
            question = json.dumps([port, method, params])
            if slot < self.shown.get(question, 0):
                self.tally.add_lag(sent, f"back from {self.shown[question]}: {what}")
            self.shown[question] = slot
        tip = self.chain.tip(commitment, sent)
        if not in_fault and slot < tip - LAG_SLOTS[commitment]:
            self.tally.add_lag(sent, f"{tip - slot} slots behind: {what}")
        if method == "getFeeForMessage":
            self.compare(self.chain.fees.get(slot, {}).get(params[0]), [value], what)
            return
        right = self.chain.at.get(slot)
        keys, values = (params[0], value) if method == "getMultipleAccounts" else ([params[0]], [value])
        self.compare(right and [sliced(right[key], params[1].get("dataSlice")) for key in keys], values, what)


def sliced(account, part):
    if account is None or part is None:
        return account
    data = base64.b64decode(account["data"][0])[part["offset"]:][:part["length"]]
    return dict(account, data=[base64.b64encode(data).decode(), "base64"])

"""Callers, and the judgement of what they are told."""

import asyncio
import base64
import contextlib
import json
import time
from datetime import datetime, timezone

import truth
from wire import Connection

# Seconds and slots that an answer may be old by at most: the stretched bounds, how far a node may be behind, and what
# is learnt late from a probe; more only where the answer says that no node gives anything newer.
LAG_SLOTS = {"processed": 1 + 20 + 8, "confirmed": 3 + 20 + 8, "finalized": 18 + 20 + 8}
COMMITMENTS = ["processed", "confirmed", "finalized"]
SHAPES = [{"transactionDetails": "none"}, {"transactionDetails": "signatures"}, {"transactionDetails": "none", "rewards": False},
          {"maxSupportedTransactionVersion": 0, "encoding": "base64"}]


# A machine on which a sleep of a tenth of a second takes so much longer serves nobody in time.
STOOD_STILL_S = 0.7
# A probe's patience, the pause to the next one, and that one's patience.
PROBES_S = 2 + 1 + 2


class Tally:
    def __init__(self, trouble):
        # What goes wrong just now, by name.
        self.trouble = trouble
        self.calls = self.hits = self.gone = self.checked = self.late = 0
        self.failed, self.wrong = [], []
        self.not_yet = []
        self.stood_still, self.beats = 0.0, 0

    async def beat(self):
        """Counts tenths of a second in which the machine did not stand still, and notes when it last did. Never ends."""
        while True:
            slept = time.monotonic()
            await asyncio.sleep(0.1)
            self.beats += 1
            if time.monotonic() - slept > STOOD_STILL_S:
                self.stood_still = time.monotonic()

    def refused(self, status, text, sent, what):
        """A deadline that passed while nobody was served is nobody's fault."""
        timed_out = status == 504 or (status == 502 and b'"timeout"' in text)
        if timed_out and self.stood_still > sent:
            self.late += 1
        else:
            self.fail(what)

    def behind(self, sent, what):
        """A probe that timed out while nobody was served leaves a node out that is well, until the next has come back."""
        if self.stood_still > sent - PROBES_S:
            self.late += 1
        else:
            self.err(what)

    def fail(self, what):
        self.failed.append(self.amid(what))

    def err(self, what):
        self.wrong.append(self.amid(what))

    def amid(self, what):
        """With the time, as the gateways' logs have it, and what goes wrong meanwhile."""
        return f"{datetime.now(timezone.utc):%H:%M:%S.%f} amid {', '.join(self.trouble()) or 'nothing'}: {what}"


class Caller:
    def __init__(self, rng, chain, keys, tally):
        self.rng, self.chain, self.keys, self.tally = rng, chain, keys, tally
        # The newest slot that each gateway has answered each question with.
        self.shown = {}

    def draw(self):
        """A method, its params, and the commitment where there is one."""
        rng, chain, commitment = self.rng, self.chain, self.rng.choice(COMMITMENTS)
        # Few are asked for often.
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
        # A block that was there a while ago, final or only confirmed.
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
                self.tally.refused(late, b"", sent, f"{type(error).__name__} {error}: {body[:200]}")
                await connection.close()
                continue
            if status != 200:
                self.tally.refused(status, text, sent, f"{status} {text[:300]!r}: {body[:200]}")
                continue
            answers = answers if isinstance(answers, list) else [answers]
            if [answer.get("id") for answer in answers] != list(range(len(calls))):
                self.tally.err(f"ids {text[:200]!r}: {body[:200]}")
                continue
            for asked, answer in zip(calls, answers):
                await self.judge(asked, answer, headers.get("cache-status", ""), sent, connection.port)
            await asyncio.sleep(self.rng.uniform(0, 0.03))
        for connection in connections:
            await connection.close()

    async def go_away(self, connection, path, body):
        """A client that disconnects within its request, or before the answer."""
        self.tally.gone += 1
        with contextlib.suppress(OSError):
            await connection.send(path, body if self.rng.random() < 0.7 else body + " " * 100)
            if self.rng.random() < 0.5:
                await asyncio.sleep(self.rng.uniform(0, 0.02))
            if self.rng.random() < 0.5:
                connection.writer.transport.abort()
        await connection.close()

    async def judge(self, asked, answer, cache, sent, port):
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
            # Of a slot without a block a node says "not yet" until it is final, and then "skipped": one is a moment before
            # the other.
            if code == truth.SKIPPED and right == truth.NOT_YET:
                return
            told_at = "finalized" if right == truth.SKIPPED else commitment
            tip = self.chain.tip(told_at, sent)
            if code == truth.NOT_YET and params[0] > tip - LAG_SLOTS[told_at]:
                # What was left to ask within the retries and their budget was the laggard: its word, which callers ask again.
                if right != truth.SKIPPED or params[0] <= tip:
                    tally.not_yet.append(tally.amid(what))
                return
            what += f" at tip {tip}, not {json.dumps(right)[:200]}"
            if "error" in answer:
                tally.refused({-32095: 502, -32096: 504}.get(code, 0), json.dumps(answer).encode(), sent, what)
            else:
                tally.err(what)
            return
        if "result" not in answer:
            ours = {-32095: 502, -32096: 504}.get(answer["error"]["code"], 0)
            return tally.refused(ours, json.dumps(answer).encode(), sent, what)
        result = answer["result"]
        if method == "getClusterNodes":
            tally.checked += 1
            if not all("pubkey" in node for node in result) or not result:
                tally.err(what)
        elif method == "getRecentPerformanceSamples":
            tally.checked += 1
            # A minute that has just ended is not known here yet.
            known = [json.dumps(sample) in self.chain.samples for sample in result]
            if not 0 < len(result) <= params[0] or not all(known[1:]):
                tally.err(what)
        elif method == "getVoteAccounts":
            self.compare(self.chain.votes.get(truth.last_vote(result)), truth.by_key(result), what)
        else:
            self.judge_at_its_slot(asked, result, what, "stale-if-error" in cache, sent, port)

    def compare(self, right, said, what):
        """`right` is `None` where that slot was missed."""
        self.tally.checked += right is not None
        if right is not None and right != said:
            self.tally.err(f"{what}, not {json.dumps(right)[:300]}")

    def judge_at_its_slot(self, asked, result, what, in_fault, sent, port):
        method, params, commitment = asked
        slot, value = result["context"]["slot"], result["value"]
        # A fee of null is kept by nobody.
        if commitment != "processed" and (value is not None or method != "getFeeForMessage"):
            question = json.dumps([port, method, params])
            if slot < self.shown.get(question, 0):
                self.tally.err(f"back from {self.shown[question]}: {what}")
            self.shown[question] = slot
        tip = self.chain.tip(commitment, sent)
        if not in_fault and slot < tip - LAG_SLOTS[commitment]:
            self.tally.behind(sent, f"{tip - slot} slots behind: {what}")
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

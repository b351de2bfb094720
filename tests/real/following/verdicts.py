"""Asking slotfront, and comparing its answers with what the node said at the same slot."""

import bisect
import random
import time

from answer import Answer, cut
from request import Peer
from bounds import FINALIZED_LEAD_SLOTS
from checks import check_bounds, check_order, floor_of
from state import run


def is_carried(front):
    return "detail=carried" in (front.status or "")


class Asker:
    """A thread that asks slotfront at random."""

    def __init__(self, args, questions, number, pending):
        self.args, self.questions, self.pending = args, questions, pending
        self.front, self.rng = Peer(args.front), random.Random(f"{args.seed}/{number}")

    def ask(self):
        while time.time() < self.args.until:
            question = self.rng.choice(self.questions)
            self.ask_front(question, self.rng.choice(["confirmed", "confirmed", "finalized"]))
            time.sleep(self.args.pause * self.rng.random() * 2)

    def ask_front(self, question, commitment):
        request, wanted = question[commitment], None
        if request.takes_min_context_slot() and self.rng.random() < 0.1:
            wanted = run.slots[commitment].now() + self.rng.choice([-3, 0, 0, 1])
        floors, sent = floor_of(request), time.time()
        status, headers, body = self.front.post(request.body(self.rng, wanted))
        if status != 200:
            run.found("HTTP", request, f"{status} {cut(body)}")
            return
        front = Answer(request, body, sent, time.time(), headers.get("Cache-Status") or "", wanted)
        run.count("asked", f"{request.method}, {commitment}")
        if is_carried(front):
            run.count("carried", f"{request.method}, {commitment}")
        check_bounds(front)
        check_order(front, floors)
        self.pending.append((front, question))


def compare(front, question, node):
    """Compares an answer with the node's own ones at confirmed, of its slot or of the slots around it."""
    request = front.request
    key = question["confirmed"].key
    if front.error:
        if front.error[0] == -32016 or front.error in run.reference.errors_of(key):
            run.count("compared", "error, as the node's")
        else:
            run.found("error", request, f"{front.error}", front, [str(error) for error in run.reference.errors_of(key)])
        return
    truths = run.reference.results(key)
    exact = truths.get(front.slot, {})
    if front.parts in exact:
        if request.encoding != "base64+zstd" and front.text not in exact[front.parts]["texts"]:
            run.found("text", request, f"equal when parsed, other text, at {front.slot}", front, [exact[front.parts]["body"]])
        else:
            count(front, "equal at its slot")
        return
    marks = sorted(truths)
    at = bisect.bisect_left(marks, front.slot)
    if front.slot in truths:
        around = [front.slot]
    elif 0 < at < len(marks):
        around = [marks[at - 1], marks[at]]
    else:
        count(front, "the node was not seen around its slot")
        return
    wrong, unknown = [], 0
    for position, part in enumerate(front.parts):
        seen = {parts[position] for mark in around for parts in truths[mark] if position < len(parts)}
        if part in seen and len(seen) == 1:
            continue
        if len(seen) > 1 or (len(around) > 1 and is_written(node, around, request.accounts[position])):
            unknown += 1
        elif may_be_ahead(front) and is_seen_soon(front, position, truths):
            continue
        elif may_be_ahead(front) and is_unseen_soon(front, truths):
            unknown += 1
        else:
            wrong.append(position)
    if wrong:
        kind = "carried value" if is_carried(front) else "value"
        own = [f"[{mark}] {value['body']}" for mark in around for value in truths[mark].values()]
        run.found(kind, request, f"at {front.slot}, elements {wrong}, the node at {around}", front, own[:4])
    elif unknown:
        count(front, "an account was written around its slot")
    else:
        count(front, "equal at its slot" if len(around) == 1 else "equal to the slots around it")


def count(front, how):
    """Counts a comparison. Carried answers are counted separately, because the run is about them."""
    kind = "carried" if is_carried(front) else "other"
    run.count("compared", f"{kind}: {how}")
    if kind == "carried" and how.startswith("equal"):
        run.count("carried", "compared")


def may_be_ahead(front):
    """Returns true if an answer may show the state of a slot soon after its own, as nodes' answers at finalized do."""
    return front.request.commitment == "finalized" and not is_carried(front)


def is_seen_soon(front, position, truths):
    """Returns true if the node has shown the same account soon after the slot of the answer."""
    later = sorted(mark for mark in truths if mark > front.slot)[:FINALIZED_LEAD_SLOTS + 1]
    return any(parts[position] == front.parts[position] for mark in later for parts in truths[mark])


def is_unseen_soon(front, truths):
    """Returns true if the node's answer is missing for one of the slots soon after that of the answer."""
    later = range(front.slot + 1, front.slot + FINALIZED_LEAD_SLOTS + 1)
    return any(slot not in truths for slot in later)


def is_written(node, around, account):
    """Returns true if a block between two slots lists the account as writable, so that its state there is not known."""
    below, above = around
    for slot in node.call("getBlocks", below + 1, above, {"commitment": "confirmed"}):
        config = {"transactionDetails": "accounts", "maxSupportedTransactionVersion": 0, "commitment": "confirmed"}
        block = node.call("getBlock", slot, config)
        keys = [key for t in block["transactions"] for key in t["transaction"]["accountKeys"] if key["writable"]]
        if any(key["pubkey"] == account for key in keys + block["rewards"]):
            return True
    return False


def summary(seconds, accounts, questions):
    """Prints what the run has counted, and how far behind the answers were."""
    counts = run.counts
    print(f"\n{seconds:.0f} s, {len(accounts)} accounts, {len(questions)} questions, a slot took {run.slots['confirmed'].step_s():.2f} s")
    print(f"asked of slotfront: {sum(counts['asked'].values())}, of the node: {sum(counts['direct'].values())}")
    carried = {row: n for row, n in counts["carried"].items() if row != "compared"}
    print(f"carried: {sum(carried.values())}, of them compared and equal: {counts['carried']['compared']}")
    for table in ("asked", "carried", "compared", "clock", "went back", "node", "other"):
        print(f"\n{table}:")
        for row, n in sorted(counts[table].items()):
            print(f"  {n:8} {row}")
    print("\nslots behind what the node had shown when asked (commitment, outcome: slots x answers):")
    for commitment in ("confirmed", "finalized"):
        lags = {lag: 0 for c, _, lag in counts["lag"] if c == commitment}
        for (c, _, lag), n in counts["lag"].items():
            lags[lag] = lags.get(lag, 0) + (n if c == commitment else 0)
        print(f"  {commitment:10}" + "  ".join(f"{lag}x{lags[lag]}" for lag in sorted(lags) if lags[lag]))

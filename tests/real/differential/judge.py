"""The rules: what is checked of each answer that came through slotfront.

- `check_life`: conditions and bounds, which need no second answer.
- `check_order`: the slots of one request's answers do not go back, nor those of an account, in whatever form.
- `compare`: the node's own answer of the same slot is equal.
- `same_block`: for blocks, which have no context slot to compare by.
"""

import json

from bounds import (
    FINALIZED_LEAD_SLOTS,
    PROBE_S,
    SAMPLES_TTL_S,
    STRETCH,
    TTL_S,
    VOTES_TTL_S,
    stretched_lag,
)
from shared import run

# ---- checks on one answer through slotfront ----


def check_life(front):
    """The checks that need no second answer: conditions, bounds, order."""
    request, commitment = front.request, front.request.commitment
    where = front.where
    if front.error:
        check_error_alone(front)
        return
    if request.kind == "contextual":
        slot, shown = front.slot, run.slots[commitment]
        if front.wanted is not None and slot < front.wanted:
            run.found("minContextSlot", request, f"answered at {slot}, asked for {front.wanted}", front)
        lag = shown.at(front.sent) - slot
        group = "fetched" if where.startswith("fetched") else where
        run.count("lag", (commitment, group, lag))
        ttl_s = TTL_S[commitment] * STRETCH[commitment]
        if slot < shown.at(front.sent - ttl_s):
            run.found("age", request, f"slot {slot}, but {ttl_s} s before it was asked the node had shown {shown.at(front.sent - ttl_s)}", front)
        bound = stretched_lag(commitment)
        if slot + bound < shown.at(front.sent - PROBE_S):
            run.found("lag", request, f"slot {slot}, but {PROBE_S} s before it was asked the node had shown {shown.at(front.sent - PROBE_S)}, bound {bound}", front)
        # A list completed within the bound carries its oldest part's slot.
        completed = run.within_bound and request.method == "getMultipleAccounts"
        if where.startswith("fetched") and lag > 0 and not completed:
            run.found("behind", request, f"went up, but slot {slot} is under {shown.at(front.sent)}, shown before", front)
    elif request.method == "getVoteAccounts" and front.mark:
        ttl_s = VOTES_TTL_S[commitment] * STRETCH[commitment]
        before = run.votes[commitment].at(front.sent - ttl_s)
        run.count("votes lag", (commitment, run.votes[commitment].at(front.sent) - front.mark))
        if front.mark < before:
            run.found("age", request, f"lastVote {front.mark}, but {ttl_s} s before it was asked the node had shown {before}", front)
    elif request.method == "getRecentPerformanceSamples" and front.mark:
        before = run.samples.at(front.sent - SAMPLES_TTL_S)
        if front.mark < before:
            run.found("age", request, f"newest sample {front.mark}, but one ttl before the node had shown {before}", front)


def check_error_alone(front):
    code, _, data = front.error
    request = front.request
    if -32096 <= code <= -32090:
        run.found("slotfront's own error", request, str(front.error), front)
    if code != -32016:
        return
    at = json.loads(data)["contextSlot"]
    shown = run.slots[request.commitment]
    if front.wanted is None or front.wanted <= at:
        run.found("-32016", request, f"asked for {front.wanted}, data.contextSlot {at}", front)
    elif front.wanted <= shown.at(front.sent):
        run.found("-32016", request, f"asked for {front.wanted}, the node had shown {shown.at(front.sent)} before", front)
    elif at < shown.at(front.sent - PROBE_S):
        run.found("-32016", request, f"data.contextSlot {at}, the node had shown {shown.at(front.sent - PROBE_S)} long before", front)


NO_FLOOR = (0, None)


def floor_of(request):
    """What had been answered so far: to the same request, and of each account that it shows."""
    return (
        {own: run.floors.get((request.key, own), NO_FLOOR) for own in (False, True)},
        {account: run.account_floors.get((account, request.commitment), NO_FLOOR) for account in request.accounts},
    )


def check_order(front, floors):
    """`floors`: what had been answered, by any thread, before this was sent; apart for those with a minContextSlot."""
    floors, account_floors = floors
    request = front.request
    if request.kind != "contextual" or front.slot is None:
        return
    for own, kind in ((False, "backwards"), (True, "backwards, after a minContextSlot")):
        floor, before = floors[own]
        if front.slot < floor:
            run.count("went back", f"{request.commitment}: {kind}")
            if request.commitment != "processed":
                run.found(kind, request, f"slot {front.slot} after {floor}", front, [before])
            break
    else:
        # A list that mixes slots carries the lowest, and each account in it may be of a higher one.
        mixes = run.within_bound and request.method == "getMultipleAccounts"
        for account, (floor, before) in account_floors.items():
            if front.slot < floor and not mixes:
                kind = "backwards, in another form"
                run.count("went back", f"{request.commitment}: {kind}")
                if request.commitment != "processed":
                    run.found(kind, request, f"{account} at slot {front.slot} after {floor}", front, [before])
                break
    what = f"earlier through slotfront: {front.status} minContextSlot {front.wanted} sent {front.sent:.3f}"
    shown = (front.slot, f"{what} {request.key[:200]} {front.body[:200]}")
    with run.lock:
        places = [(run.floors, (request.key, front.wanted is not None))]
        places += [(run.account_floors, (account, request.commitment)) for account in request.accounts]
        for held, place in places:
            if front.slot > held.get(place, NO_FLOOR)[0]:
                held[place] = shown


# ---- checks against the node's answers ----


def compare(front):
    """Looks for the node's own answer of the same slot."""
    request = front.request
    results, errors = run.truths.of(request.key), run.truths.errors_of(request.key)
    if front.error:
        if front.error[0] == -32016:
            run.count("compared", "-32016, by its rule")
        elif front.error in errors:
            run.count("compared", "equal error")
        elif errors or results:
            last = [f"{v['body']}" for m in sorted(results)[-2:] for v in results[m].values()]
            run.found("error", request, f"{front.error}", front, [str(e) for e in errors] + last)
        else:
            run.count("compared", "not comparable")
        return
    if errors and not results:
        run.found("result", request, "the node refuses this", front, [str(e) for e in errors])
        return
    same = results.get(front.mark, {})
    if front.parts in same:
        exact = request.encoding != "base64+zstd" and request.method not in ("getVoteAccounts", "getClusterNodes")
        if exact and front.text not in same[front.parts]["texts"]:
            run.found("text", request, f"equal when parsed, other text, at {front.mark}", front, [same[front.parts]["body"]])
        else:
            run.count("compared", "equal at the same slot" if request.kind == "contextual" else "equal at the same mark")
        return
    lead = 0
    if request.kind == "contextual":
        lead += FINALIZED_LEAD_SLOTS if request.commitment == "finalized" else 0
        lead += stretched_lag(request.commitment) if run.within_bound and request.method == "getMultipleAccounts" else 0
    slots = range(front.mark, front.mark + lead + 1)
    if lead:
        near = [parts for slot in slots for parts in results.get(slot, {})]
        if near and all(any(parts[i] == part for parts in near) for i, part in enumerate(front.parts)):
            run.count("compared", "equal to a neighbour slot's" if len(same) else "equal to a neighbour slot's, own slot not met")
            return
    # Only where every slot was met that it may be of, a difference says something.
    met = [slot for slot in slots if slot in results]
    if len(met) < len(slots) or not same:
        run.count("compared", "not comparable")
        return
    wrong = [i for i, part in enumerate(front.parts) if not any(i < len(p) and p[i] == part for s in slots for p in results[s])]
    elsewhere = [s for s in results if any(i < len(p) and p[i] == front.parts[i] for p in results[s] for i in wrong)]
    around = [f"[{s}] polled {v['sent']:.3f}-{v['got']:.3f} {v['body']}" for s in sorted({front.mark - 1, *slots}) for v in results.get(s, {}).values()]
    run.found("value", request, f"at {front.mark}, elements {wrong}; the node had that at {sorted(elsewhere)[-6:]}", front, around[:6])


def same_block(one, other):
    return one.error == other.error and one.parts == other.parts and (one.error is not None or one.text == other.text)

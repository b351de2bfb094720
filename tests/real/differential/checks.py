"""The checks of each answer of slotfront.

- `check_bounds`: conditions, age and lag.
- `check_order`: the slots of one request's answers do not go back, nor those of an account in any form.
- `compare`: the node's answer at the same slot is equal.
- `same_block`: two blocks are equal. Blocks have no context slot.
"""

import json

from bounds import (
    LATENESS_S,
    FINALIZED_LEAD_SLOTS,
    PROBE_S,
    SAMPLES_TTL_S,
    STRETCH,
    TIP,
    TTL_S,
    VOTES_TTL_S,
    stretched_lag,
)
from state import run

# ---- checks on one answer through slotfront ----


def check_bounds(front):
    """Checks the conditions and the bounds of one answer."""
    request, commitment = front.request, front.request.commitment
    source = front.source
    if front.error:
        check_error(front)
        return
    if request.kind == "contextual":
        slot, shown = front.slot, run.slots[commitment]
        if front.wanted is not None and slot < front.wanted:
            run.found("minContextSlot", request, f"answered at {slot}, requested {front.wanted}", front)
        lag = shown.at(front.sent) - slot
        group = "fetched" if source.startswith("fetched") else source
        run.count("lag", (commitment, group, lag))
        ttl_s = LATENESS_S.get(request.method, TTL_S[commitment] * STRETCH[commitment])
        if slot < shown.at(front.sent - ttl_s):
            run.found("age", request, f"slot {slot}, but {ttl_s} s before the call the node was at {shown.at(front.sent - ttl_s)}", front)
        bound = stretched_lag(commitment)
        if request.method not in LATENESS_S and slot + bound < shown.at(front.sent - PROBE_S):
            run.found("lag", request, f"slot {slot}, but {PROBE_S} s before the call the node was at {shown.at(front.sent - PROBE_S)}, bound {bound}", front)
        if source.startswith("fetched") and lag > 0:
            run.found("behind", request, f"fetched, but slot {slot} is below the node's earlier slot {shown.at(front.sent)}", front)
    elif request.method == "getVoteAccounts" and front.mark:
        ttl_s = VOTES_TTL_S[commitment] * STRETCH[commitment]
        before = run.votes[commitment].at(front.sent - ttl_s)
        run.count("votes lag", (commitment, run.votes[commitment].at(front.sent) - front.mark))
        if front.mark < before:
            run.found("age", request, f"lastVote {front.mark}, but {ttl_s} s before the call the node was at {before}", front)
    elif request.method == "getRecentPerformanceSamples" and front.mark:
        before = run.samples.at(front.sent - SAMPLES_TTL_S)
        if front.mark < before:
            run.found("age", request, f"newest sample {front.mark}, but one TTL before the call the node was at {before}", front)


def check_error(front):
    """Checks an error by itself: it is not one of slotfront's, and -32016 fits its slot."""
    code, _, data = front.error
    request = front.request
    if -32096 <= code <= -32090:
        run.found("error of slotfront", request, str(front.error), front)
    if code != -32016:
        return
    at = json.loads(data)["contextSlot"]
    shown = run.slots[request.commitment]
    if front.wanted is None or front.wanted <= at:
        run.found("-32016", request, f"requested {front.wanted}, data.contextSlot {at}", front)
    elif front.wanted <= shown.at(front.sent):
        run.found("-32016", request, f"requested {front.wanted}, the node was at {shown.at(front.sent)} before", front)
    elif at < shown.at(front.sent - PROBE_S):
        run.found("-32016", request, f"data.contextSlot {at}, the node was at {shown.at(front.sent - PROBE_S)} long before", front)


NO_FLOOR = (0, None)


def floor_of(request):
    """Returns the highest answered slots of a request and of each of its accounts."""
    return (
        {own: run.floors.get((request.key, own), NO_FLOOR) for own in (False, True)},
        {account: run.account_floors.get((account, request.commitment), NO_FLOOR) for account in request.accounts},
        run.floors.get(("tip", request.commitment), 0),
    )


def check_order(front, floors):
    """Checks that an answer is not below `floors`, the highest slots that any thread got before the call.

    Answers to calls with a minContextSlot have separate floors.
    """
    floors, account_floors, tip = floors
    request = front.request
    if request.method in TIP and not front.error and front.mark:
        check_tip(front, tip)
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
        for account, (floor, before) in account_floors.items():
            if front.slot < floor:
                kind = "backwards, in another form"
                run.count("went back", f"{request.commitment}: {kind}")
                if request.commitment != "processed":
                    run.found(kind, request, f"{account} at slot {front.slot} after {floor}", front, [before])
                break
    what = f"earlier through slotfront: {front.status} minContextSlot {front.wanted} sent {front.sent:.3f}"
    shown = (front.slot, f"{what} {request.key[:200]} {front.body[:200]}")
    with run.lock:
        keys = [(run.floors, (request.key, front.wanted is not None))]
        keys += [(run.account_floors, (account, request.commitment)) for account in request.accounts]
        for highest, key in keys:
            if front.slot > highest.get(key, NO_FLOOR)[0]:
                highest[key] = shown


def check_tip(front, floor):
    """Checks that the tip is not below what any of its methods has shown before the call."""
    commitment, shown = front.request.commitment, run.slots[front.request.commitment]
    run.count("lag", (commitment, front.request.method, shown.at(front.sent) - front.mark))
    if front.mark < floor:
        run.found("tip went back", front.request, f"slot {front.mark} after {floor}", front)
    if front.mark < shown.at(front.sent - PROBE_S):
        run.found("age", front.request, f"slot {front.mark}, the node was at {shown.at(front.sent - PROBE_S)} long before", front)
    with run.lock:
        run.floors["tip", commitment] = max(front.mark, run.floors.get(("tip", commitment), 0))


# ---- checks against the node's answers ----


def compare(front):
    """Compares an answer with the node's answers at the same slot."""
    request = front.request
    results, errors = run.reference.results(request.key), run.reference.errors_of(request.key)
    if front.error:
        if front.error[0] == -32016:
            run.count("compared", "-32016, checked alone")
        elif front.error in errors:
            run.count("compared", "equal error")
        elif errors or results:
            last = [f"{v['body']}" for m in sorted(results)[-2:] for v in results[m].values()]
            run.found("error", request, f"{front.error}", front, [str(e) for e in errors] + last)
        else:
            run.count("compared", "not comparable")
        return
    if errors and not results:
        run.found("result", request, "the node answers with an error", front, [str(e) for e in errors])
        return
    same = results.get(front.mark, {})
    if front.parts in same:
        exact = request.encoding != "base64+zstd" and request.method not in ("getVoteAccounts", "getClusterNodes", *TIP)
        if exact and front.text not in same[front.parts]["texts"]:
            run.found("text", request, f"equal when parsed, but different text, at {front.mark}", front, [same[front.parts]["body"]])
        else:
            run.count("compared", "equal at the same slot" if request.kind == "contextual" else "equal at the same mark")
        return
    lead = 0
    if request.kind == "contextual":
        lead += FINALIZED_LEAD_SLOTS if request.commitment == "finalized" else 0
    slots = range(front.mark, front.mark + lead + 1)
    if lead:
        near = [parts for slot in slots for parts in results.get(slot, {})]
        if near and all(any(parts[i] == part for parts in near) for i, part in enumerate(front.parts)):
            run.count("compared", "equal at a neighbouring slot" if len(same) else "equal at a neighbouring slot, own slot not observed")
            return
    # A difference is a mismatch only if the node was observed at every possible slot.
    met = [slot for slot in slots if slot in results]
    if len(met) < len(slots) or not same:
        run.count("compared", "not comparable")
        return
    wrong = [i for i, part in enumerate(front.parts) if not any(i < len(p) and p[i] == part for s in slots for p in results[s])]
    later = [parts for slot in slots[1:] for parts in results.get(slot, {})]
    if lead and all(any(parts[i] == after[i] for after in later) for parts in same for i in wrong):
        # The node's answers that were seen at this slot had data of a later one, so those of the slot itself were not.
        run.count("compared", "not comparable")
        return
    elsewhere = [s for s in results if any(i < len(p) and p[i] == front.parts[i] for p in results[s] for i in wrong)]
    around = [f"[{s}] polled {v['sent']:.3f}-{v['got']:.3f} {v['body']}" for s in sorted({front.mark - 1, *slots}) for v in results.get(s, {}).values()]
    run.found("value", request, f"at {front.mark}, elements {wrong}; the node had these values at {sorted(elsewhere)[-6:]}", front, around[:6])


def same_block(one, other):
    return one.error == other.error and one.parts == other.parts and (one.error is not None or one.text == other.text)

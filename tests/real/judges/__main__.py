"""Judges the answers of a server by the public specifications of Solana's RPC: `schemas.py` and the codes in `calls.py`.

usage: python tests/real/judges URL, by a Python that has the package jsonschema

URL takes calls by POST: that of a node, or of slotfront with a key or in the mode `open`. The exit code is 1 if an answer
is not as specified. Each call is sent twice, so that slotfront answers the second from its cache. A method that slotfront
need not have is left out if the server does not know it, or does not allow it.
"""

import json
import re
import sys
import urllib.error
import urllib.request
from collections import Counter

from jsonschema import Draft202012Validator

import calls
import schemas
from calls import LEFT_OUT

PATIENCE_S = 60
# JSON-RPC 2.0, 5 and 5.1.
ERROR = schemas.record({"code": {"type": "integer"}, "message": schemas.STRING}, {"data": {}})
ID = {"id": {"type": ["integer", "null"]}}
# jsonrpc is missing in a node's answer to a call of another version.
ENVELOPE = schemas.one_of(schemas.record({"jsonrpc": schemas.values("2.0"), "result": {}, **ID}),
                          schemas.record({"error": ERROR, **ID}, {"jsonrpc": schemas.values("2.0")}))


def faults(schema, value):
    """Returns where and why a value does not have this schema."""
    found = []
    for error in Draft202012Validator(schema).iter_errors(value):
        deepest = error
        while deepest.context:
            deepest = max(deepest.context, key=lambda one: len(one.absolute_path))
        found.append(f"{deepest.json_path}: {deepest.message[:200]}")
    return found


class Server:
    def __init__(self, url):
        self.url = url

    def send(self, body):
        """Returns the answer to a body, and the faults of its envelope."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(self.url, data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
                answer = json.load(response)
        except urllib.error.HTTPError as refused:
            # slotfront's own errors have an HTTP status.
            answer = json.load(refused)
        return answer, faults(ENVELOPE, answer)

    def ask(self, method, params, **otherwise):
        answer, _ = self.send(calls.call(method, *params))
        if "result" in answer:
            return answer["result"]
        if "missing" in otherwise:
            return otherwise["missing"]
        raise SystemExit(f"{method} {params}: {answer}")


def judge(server):
    """Returns the number of judged answers by method, the methods left out by reason, and each fault with an example."""
    facts = calls.Facts(server.ask)
    judged, left_out, wrong = Counter(), {code: set() for code in LEFT_OUT}, {}
    every = [*calls.account_calls(facts), *calls.block_calls(facts), *calls.other_calls(facts), *calls.optional_calls(facts)]
    for call in [one for one in every for _ in range(2)]:
        answer, found = server.send(calls.call(call.method, *call.params))
        code = answer.get("error", {}).get("code")
        if code in LEFT_OUT and call.method not in calls.REQUIRED:
            left_out[code].add(call.method)
            continue
        judged[call.method] += 1
        if code is None:
            found += faults(call.schema, answer.get("result"))
        elif code not in call.codes:
            found.append(str(answer["error"]))
        for fault in found:
            wrong.setdefault((call.method, re.sub(r"\[\d+\]", "[*]", fault)), json.dumps(call.params))
    for refused in calls.refusals(facts):
        answer, found = server.send(refused.body)
        judged["refusals"] += 1
        code = answer.get("error", {}).get("code")
        if code not in refused.codes:
            found.append(f"{code} instead of {refused.codes}")
        wrong.update({(refused.name, fault): json.dumps(answer) for fault in found})
    return judged, left_out, wrong


def main(arguments):
    if len(arguments) != 1 or not arguments[0].startswith("http"):
        sys.exit(__doc__)
    judged, left_out, wrong = judge(Server(arguments[0]))
    for method, answers in sorted(judged.items()):
        print(f"{answers:6} {method}")
    for code, why in LEFT_OUT.items():
        print(f"{why}:", ", ".join(sorted(left_out[code])) or "none")
    print(f"{judged.total()} answers judged, {len(wrong)} faults")
    for (what, fault), example in wrong.items():
        print(f"{what}: {fault}\n    {example[:300]}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main(sys.argv[1:])

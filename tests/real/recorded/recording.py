"""Recorded answers: the files of a folder."""

import json
from dataclasses import dataclass

from decoding import base58
from exact import compact, members, read

# What stands in the params of a recording in place of an address, a signature or a config that nobody wrote down.
UNKNOWN = "unknown"
OF_ADDRESS = {"getAccountInfo", "getBalance", "getProgramAccounts", "getSignaturesForAddress", "getTokenAccountBalance",
              "getTokenAccountsByDelegate", "getTokenAccountsByOwner", "getTokenLargestAccounts", "getTokenSupply"}


def address(number):
    """Returns an address that no recording has."""
    return base58(b"made up for a test, number " + number.to_bytes(5, "big"))


# What is subscribed to where a notification is recorded without its question.
SUBSCRIPTIONS = {"blockSubscribe": "all", "logsSubscribe": "all", "programSubscribe": address(0)}


ROUNDED = '"rentEpoch":18446744073709552000'


class Unusable(Exception):
    """Why a file cannot be used."""


@dataclass
class Recording:
    method: str
    params: list
    # The result as the node wrote it, and what it says.
    text: str
    result: object


def load(file):
    """Reads a file. Raises `Unusable` if it is no recorded result."""
    try:
        text = file.read_text()
        json.loads(text)
        found = members(text)
    except (OSError, ValueError) as error:
        raise Unusable(f"it cannot be read as JSON: {error}") from error
    if missing := [name for name in ("method", "params", "response") if name not in found]:
        raise Unusable(f"it has no {' and no '.join(missing)}")
    method, params = json.loads(found["method"]), json.loads(found["params"])
    if not isinstance(method, str) or not isinstance(params, list):
        raise Unusable("its method has to be a text, and its params a list")
    # Some gateways in front of nodes have rounded this number, which slotfront puts right.
    response = found["response"].replace(ROUNDED, ROUNDED.replace("9552000", "9551615"))
    if (body := as_object(response)) and "jsonrpc" in body:
        if "error" in body:
            raise Unusable(f"the node refused: {body['error']}")
        # A notification has its result in its params.
        body = members(body["params"]) if "params" in body else body
        response = body["result"]
    result = read(response)
    return Recording(method, known(method, params, result), compact(response), result)


def as_object(text):
    return members(text) if text.startswith("{") else None


def known(method, params, result):
    """Returns the params with made-up addresses where the recording has none. A signature is found in the answer itself."""
    if not params and method in SUBSCRIPTIONS:
        return [SUBSCRIPTIONS[method]]
    if UNKNOWN not in params or method == "getTransaction":
        return params
    if method in OF_ADDRESS:
        subject = [address(0)]
    elif method in ("getMultipleAccounts", "getInflationReward"):
        values = result["value"] if method == "getMultipleAccounts" else result
        subject = [[address(i) for i in range(len(values))]]
    else:
        subject = []
    at = params.index(UNKNOWN)
    return [*params[:at], *subject, *params[at + 1:]]

"""A scene: what one recording lets a node say, and what slotfront has to answer then.

A scene has a `slot`, the newest of its node at every commitment; `answer(method, params)`, the text of the node's result, or
None if it is not recorded; and `checks()`.
"""

from dataclasses import dataclass


@dataclass
class Check:
    """A question to slotfront, and the answer that it has to give."""

    method: str
    params: list
    # The whole answer but its id. None if only a node could answer the question, and the recording cannot.
    expected: dict = None
    # The text of the result, if slotfront has to give it byte for byte as its node does.
    text: str = None
    # What is compared of an answer, as a function of it. By default it is the whole answer.
    view: object = None


def result(tree):
    return {"result": tree}


def error(code, message):
    return {"error": {"code": code, "message": message}}


def config_of(params):
    """Returns the config at the end of the params of a call."""
    return params[-1] if params and isinstance(params[-1], dict) else {}

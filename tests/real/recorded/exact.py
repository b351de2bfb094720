"""JSON without loss. A number that is no integer is kept as the text of its digits, because a float would round it."""

import json
import re
from json.decoder import JSONDecoder, scanstring

# The first character of a text that stands for such a number. No text of a node begins with it.
NUMBER = "\0"
SPACE = re.compile(r"[ \t\r\n]*")
SPACE_OUTSIDE_TEXTS = re.compile(r'("(?:[^"\\]|\\.)*")|[ \t\r\n]+')
# The most characters that are shown of a value that differs.
SHOWN = 160


def read(text):
    return json.loads(text, parse_float=lambda digits: NUMBER + digits, parse_constant=refused)


def refused(word):
    raise ValueError(f"{word} is not JSON")


def write(tree):
    text = json.dumps(tree, separators=(",", ":"), ensure_ascii=False)
    return re.sub(r'"\\u0000([^"]*)"', r"\1", text)


def compact(text):
    """Returns JSON text without the space between its values, as nodes write it."""
    return SPACE_OUTSIDE_TEXTS.sub(lambda found: found[1] or "", text)


def members(text):
    """Returns the members of an object in valid JSON, each as the text that it was written as."""
    after_space = lambda at: SPACE.match(text, at).end()
    at, found = after_space(0), {}
    if text[at] != "{":
        raise ValueError("it is not an object")
    at = after_space(at + 1)
    while text[at] != "}":
        name, end = scanstring(text, at + 1)
        # A colon follows the name, and a comma the value, unless it is the last.
        at = after_space(after_space(end) + 1)
        _, end = JSONDecoder().raw_decode(text, at)
        found[name] = text[at:end]
        at = after_space(end)
        if text[at] == ",":
            at = after_space(at + 1)
    return found


def difference(expected, found, at=""):
    """Returns where two values differ first, in words, or None. The order of an object's members does not count."""
    if not at and write(expected) == write(found):
        return None
    if isinstance(expected, dict) and isinstance(found, dict):
        for name in [*expected, *(name for name in found if name not in expected)]:
            place = f"{at}.{name}" if at else name
            if name not in found:
                return f"{place} is missing, expected {shown(expected[name])}"
            if name not in expected:
                return f"{place} is {shown(found[name])}, expected none"
            if differs := difference(expected[name], found[name], place):
                return differs
        return None
    if isinstance(expected, list) and isinstance(found, list):
        for index, pair in enumerate(zip(expected, found)):
            if differs := difference(*pair, f"{at}[{index}]"):
                return differs
        return None if len(expected) == len(found) else f"{at} has {len(found)} elements, expected {len(expected)}"
    # In Python, True equals 1.
    if type(expected) is type(found) and expected == found:
        return None
    return f"{at or 'the answer'} is {shown(found)}, expected {shown(expected)}"


def shown(value):
    text = write(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"

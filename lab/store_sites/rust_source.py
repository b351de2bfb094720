"""Enough of Rust's syntax to find calls: comments, texts, brackets, attributes and functions."""

import re

# Comments and texts. They are blanked first, because they may hold anything, brackets as well.
NOISE = re.compile(
    r'//[^\n]*|/\*(?:.|\n)*?\*/|b?r(#+)"(?:.|\n)*?"\1|b?"(?:\\(?:.|\n)|[^"\\])*"|b?\'(?:\\[^\n]{1,9}|[^\'\\\n])\''
)
ATTRIBUTE = re.compile(r"#!?\[")
CONDITION = re.compile(r"#!?\[\s*cfg\(\s*(any\()?")
# The conditions under which code is not in a node as it is released.
NOT_A_NODES = {"test", 'feature = "dev-context-only-utils"', 'feature = "conformance"'}
OPEN, CLOSE = "([{", ")]}"


def blanked(text):
    """Returns the text with comments and the content of texts blanked, at the same length. Single words stay, because they
    may name a feature."""
    def blank(match):
        found = match[0]
        if re.fullmatch('"[a-z-]*"', found):
            return found
        keep = (found[0], found[-1]) if found[0] in "\"'" else (" ", " ")
        return keep[0] + re.sub(r"[^\n]", " ", found[1:-1]) + keep[1]
    return NOISE.sub(blank, text)


def closing(text, at):
    """Returns the position behind the bracket that closes the one at `at`."""
    depth = 0
    for position in range(at, len(text)):
        depth += (text[position] in OPEN) - (text[position] in CLOSE)
        if depth == 0:
            return position + 1
    return len(text)


def item_end(text, at):
    """Returns the position behind the item, field, argument or statement that begins at `at`."""
    while match := re.compile(r"\s*#\[").match(text, at):
        at = closing(text, match.end() - 1)
    is_item = re.compile(r"\s*(pub\b|fn\b|mod\b|impl\b|use\b|struct\b|enum\b|trait\b|const\b|static\b|async\b|unsafe\b|type\b|macro_rules)")
    ends_with_braces = bool(is_item.match(text, at))
    position = at
    while position < len(text):
        sign = text[position]
        if sign in ";,":
            return position + 1
        if sign in CLOSE:
            return position
        if sign in OPEN:
            position = closing(text, position)
            if sign == "{" and (ends_with_braces or re.compile(r"\s*\n").match(text, position)):
                return position
            continue
        position += 1
    return position


def is_for_tests(text, at):
    """Returns true if the attribute at `at` means that its item is compiled for tests only."""
    attribute = text[at:closing(text, text.index("[", at))]
    if re.match(r"#\[\s*(test|bench)\b", attribute):
        return True
    condition = CONDITION.match(attribute)
    if not condition:
        return False
    end = closing(attribute, condition.end() - 1)
    listed = attribute[condition.end():end - 1]
    return all(part in NOT_A_NODES for part in arguments(listed) if part)


def product_code(text):
    """Returns the source without comments, texts and what is compiled for tests only, and the names of the modules that are
    compiled for tests only."""
    text, modules = blanked(text), set()
    at = 0
    while match := ATTRIBUTE.search(text, at):
        start = match.start()
        if not is_for_tests(text, start):
            at = closing(text, match.end() - 1)
        elif text.startswith("#!", start):
            return "", modules
        else:
            end = item_end(text, start)
            modules.update(re.findall(r"\bmod (\w+);", text[start:end]))
            text = text[:start] + re.sub(r"[^\n]", " ", text[start:end]) + text[end:]
            at = start + 1
    return text, modules


class Call:
    """A call of a function that stores an account."""

    def __init__(self, name, argument):
        self.argument = argument
        self.text = f"{name}({argument})"

    def position_among(self, params):
        """The position of the account among the params of the function around; None if it is none of them."""
        root = re.match(r"&?(?:mut )?(\w+)$", self.argument)
        return params.index(root[1]) if root and root[1] in params else None


class Function:
    """A function with its body, without the bodies of functions in it."""

    def __init__(self, name, params, body):
        self.name, self.params, self.body = name, params, body

    def calls(self, names, more):
        """The calls of functions of these names, whose first argument is the account, and of those in `more`, which has the
        position of the account among their arguments."""
        for match in re.finditer(r"(?<!fn )\b(\w+)\s*(?:::<[^()]*>)?\(", self.body):
            if match[1] in more or names.fullmatch(match[1]):
                end, position = closing(self.body, match.end() - 1), more.get(match[1], 0)
                given = arguments(self.body[match.end():end - 1])
                yield Call(match[1], given[position] if len(given) > position else "")


def arguments(text):
    """The arguments of a call, each on one line."""
    depth, start, found = 0, 0, []
    for position, sign in enumerate(text + ","):
        depth += (sign in OPEN) - (sign in CLOSE)
        if sign == "," and depth == 0:
            found.append(re.sub(r"\s+", " ", text[start:position]).strip())
            start = position + 1
    return found


def functions(text):
    """The functions of a source that has no comments and texts."""
    found = []
    for match in re.finditer(r"\bfn\s+(\w+)\s*(?:<)?", text):
        opening = text.find("(", match.end() - 1)
        # Type parameters may have brackets of their own: the params follow the last `>` before a bracket.
        if text[match.end() - 1] == "<":
            depth, opening = 0, match.end() - 1
            while opening < len(text):
                depth += (text[opening] == "<") - (text[opening] == ">" and text[opening - 1] != "-")
                if depth == 0:
                    break
                opening += 1
            opening = text.find("(", opening)
        end = closing(text, opening)
        params = re.findall(r"(?:^|[(,])\s*(?:mut\s+)?(\w+)\s*:(?!:)", text[opening:end])
        body = re.compile(r"[{;]").search(text, end)
        if body and body[0] == "{":
            found.append((match[1], params, body.start(), closing(text, body.start())))
    whole = []
    for name, params, start, end in found:
        inner = [(s, e) for _, _, s, e in found if start < s and e <= end]
        body = text[start:end]
        for s, e in inner:
            body = body[: s - start] + re.sub(r"[^\n]", " ", body[s - start : e - start]) + body[e - start :]
        whole.append(Function(name, params, body))
    return whole

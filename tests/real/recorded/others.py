"""All other answers: slotfront gives them back as they are. It also makes one vote account of the list of all, and fewer
performance samples of all."""

from exact import write
from scene import Check, config_of, result

# The newest slot of a node whose recorded answer names none. It is above the slot of every question.
NEWEST = 1_000_000_000
# The members of a config by which one question of a method differs from another.
DISTINCT = ("commitment", "dataSlice", "encoding", "maxSupportedTransactionVersion", "votePubkey")
NOBODY = "Ay1U9DWphDgc7hq58Yj1yHabt91zTzvV2YJbAWkPNbaK"
# The most vote accounts of a list that are asked for one by one.
MOST_VOTES = 200


def newest_slot(method, tree):
    if isinstance(tree, dict):
        return tree.get("context", {}).get("slot", tree.get("absoluteSlot", NEWEST))
    return tree if method == "getSlot" else NEWEST


class Plain:
    """The scene of an answer that slotfront keeps as it is, if it keeps it at all."""

    def __init__(self, recording):
        self.recording, self.slot = recording, newest_slot(recording.method, recording.result)

    def answer(self, method, params):
        if method != self.recording.method:
            return None
        mine, config = config_of(self.recording.params), config_of(params)
        subjects = [param for param in self.recording.params if not isinstance(param, dict)]
        is_it = params[:len(subjects)] == subjects and all(config.get(name) == mine[name] for name in DISTINCT if name in mine)
        return self.recording.text if is_it else None

    def checks(self):
        yield Check(self.recording.method, self.recording.params, result(self.recording.result), self.recording.text)


class Votes(Plain):
    def __init__(self, recording):
        super().__init__(recording)
        self.lists = {name: recording.result[name] for name in ("current", "delinquent")}
        self.keys = [vote["votePubkey"] for votes in self.lists.values() for vote in votes]

    def checks(self):
        yield from super().checks()
        config = config_of(self.recording.params)
        for key in [NOBODY, *self.keys[::len(self.keys) // MOST_VOTES + 1]]:
            chosen = {name: [vote for vote in votes if vote["votePubkey"] == key] for name, votes in self.lists.items()}
            yield Check("getVoteAccounts", [{**config, "votePubkey": key}], result({**self.recording.result, **chosen}))


class Samples(Plain):
    """Performance samples. The node is asked for as many as it has, so it has as many as are recorded."""

    def __init__(self, recording):
        super().__init__(recording)
        self.samples = recording.result
        if not isinstance(self.samples, list):
            raise TypeError("no list")

    def answer(self, method, params):
        if method != self.recording.method:
            return None
        return write(self.samples[:params[0]])

    def checks(self):
        yield from super().checks()
        count = len(self.samples)
        for limit in sorted({0, 1, 2, count // 2, max(count - 1, 0), count}):
            yield Check("getRecentPerformanceSamples", [limit], result(self.samples[:limit]))


def scenes(recording):
    kinds = {"getVoteAccounts": Votes, "getRecentPerformanceSamples": Samples}
    return [kinds.get(recording.method, Plain)(recording)]

"""Compares slotfront with recorded answers of real nodes: it has to give them back, and whatever can be made of them.

usage: python3 tests/real/recorded FOLDER

Each .json file of the folder is one recorded answer:

    {"method": "getBlock", "params": [...], "response": ..., "source": "where it is from"}

`response` is the node's result, or its whole body. Where params are not known, "unknown" may stand for an address or a
signature. docs/testing.md has a line that records an answer.

For each file, the built slotfront is started in front of a scripted node that knows this answer only. It is asked the same
question twice, and the second answer has to be a hit if the first was stored. Then it is asked for every shape that can be
made of the answer: an account in other encodings, slices and lists; a block in other details, encodings and versions, and
each of its transactions; one of many vote accounts. What it has to answer is computed here, without its code. A number has
to have the same digits.

Of the table, `right` is made up of `fetched` (slotfront asked the node), `hit` and `derived`; `asked` are questions that went
to the node, which has no recorded answer to them. The exit code is 1 if an answer is wrong, or no file can be used.

Files: recording.py (reads a file), blocks.py, accounts.py and others.py (scenes: what the node says, and what slotfront has
to say), wire.py (transactions as bytes), node.py (the scripted node), comparison.py (plays a scene), exact.py (JSON).
"""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "differential")]

import accounts  # noqa: E402
import blocks  # noqa: E402
import others  # noqa: E402
from comparison import Tally, play  # noqa: E402
from recording import Unusable, load  # noqa: E402

SCENES = {
    "getBlock": blocks.of_block,
    "getTransaction": blocks.of_transaction,
    "getAccountInfo": accounts.of_accounts,
    "getMultipleAccounts": accounts.of_accounts,
    "getProgramAccounts": accounts.of_scan,
    "getTokenAccountsByOwner": accounts.of_scan,
    "getTokenAccountsByDelegate": accounts.of_scan,
}
# The most wrong answers of a file that are printed, and the most characters of each.
SHOWN, LONGEST = 10, 600


def judge(file):
    """Returns the tally of a file. Raises `Unusable` if it cannot be used."""
    tally = Tally()
    try:
        recording = load(file)
        scenes = SCENES.get(recording.method, others.scenes)(recording)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as fault:
        raise Unusable(f"its response is no answer to its method: {fault!r}") from fault
    for scene in scenes:
        tally.add(play(scene))
    return tally


def row(name, tally):
    counts = (tally.right.total(), tally.right["fetched"], tally.right["hit"], tally.right["derived"], len(tally.wrong), tally.asked)
    print(f"{name:48}" + "".join(f"{count:>9}" for count in counts), flush=True)


def main(arguments):
    if len(arguments) != 1 or arguments[0].startswith("-"):
        sys.exit(__doc__)
    files = sorted(Path(arguments[0]).glob("*.json"))
    print(f"{'':48}{'right':>9}{'fetched':>9}{'hit':>9}{'derived':>9}{'wrong':>9}{'asked':>9}")
    every, unused = Tally(), {}
    for file in files:
        try:
            tally = judge(file)
        except Unusable as why:
            unused[file.name] = why
            continue
        row(file.name, tally)
        for fault in tally.wrong[:SHOWN]:
            print(f"    {fault[:LONGEST]}")
        if len(tally.wrong) > SHOWN:
            print(f"    and {len(tally.wrong) - SHOWN} more")
        every.add(tally)
    row(f"{len(files) - len(unused)} files", every)
    for name, why in unused.items():
        print(f"not used: {name}: {why}")
    if len(unused) == len(files):
        sys.exit(f"{arguments[0]} has no file that can be used")
    sys.exit(bool(every.wrong))


if __name__ == "__main__":
    main(sys.argv[1:])

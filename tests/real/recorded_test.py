"""`recorded/`, the comparison with recorded answers: it passes on what simulated nodes have answered, and notices one wrong
byte.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from gateway import PATIENCE_S, ROOT, Nodes, call

RECORDED = Path(__file__).parent / "recorded"
VOTE_PROGRAM = "Vote111111111111111111111111111111111111111"
VERSION_0 = {"maxSupportedTransactionVersion": 0}


def lines_of_the_page():
    """Returns the commands of docs/testing.md that record a block, without the last, which judges it."""
    section = (ROOT / "docs" / "testing.md").read_text().split("## Answers of real nodes")[1]
    return re.search(r"^```sh\n(.*?)^python3 ", section, re.M | re.S).group(1)


class Recorded(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.answers = self.folder / "answers"
        self.answers.mkdir()
        self.url = self.enterContext(Nodes()).url

    def ask(self, method, params):
        return call(self.url, method, params)[2]

    def record(self, name, method, params, change=lambda text: text):
        """Records the node's answer, and returns its result."""
        body = self.ask(method, params)
        recording = {"method": method, "params": params, "response": body, "source": "a simulated node"}
        (self.answers / name).write_text(change(json.dumps(recording)))
        return body["result"]

    def judge(self):
        """Returns the exit code, the counts by row, and all that is printed."""
        judged = subprocess.run([sys.executable, "-B", RECORDED, self.answers], capture_output=True, text=True, timeout=3 * PATIENCE_S)
        rows = re.findall(r"^(\S.*?)((?: +\d+){6})$", judged.stdout, re.M)
        names = ("right", "fetched", "hit", "derived", "wrong", "asked")
        counts = {name: dict(zip(names, map(int, numbers.split()))) for name, numbers in rows}
        return judged.returncode, counts, judged.stdout + judged.stderr

    def block_with_versions(self):
        """Returns the slot of a final block that has a transaction of version 0, and the block in base64."""
        newest = self.ask("getSlot", [])["result"]
        for slot in range(newest, newest - 200, -1):
            block = self.ask("getBlock", [slot, {"encoding": "base64", **VERSION_0}]).get("result")
            if block and any(one["version"] == 0 for one in block["transactions"]):
                return slot, block
        self.fail("no block has a transaction of version 0")

    def test_answers_of_a_node_are_given_back_in_every_shape(self):
        slot, block = self.block_with_versions()
        shell = lines_of_the_page().replace("250000000", str(slot))
        subprocess.run(["bash", "-e", "-c", shell], cwd=self.folder, env={**os.environ, "NODE_URL": self.url}, check=True)
        self.record("block-json.json", "getBlock", [slot, {"encoding": "json", **VERSION_0}])
        parsed = self.record("block-parsed.json", "getBlock", [slot, {"encoding": "jsonParsed", **VERSION_0}])
        signature = parsed["transactions"][0]["transaction"]["signatures"][0]
        self.record("transaction.json", "getTransaction", [signature, {"encoding": "json", **VERSION_0}])
        votes = self.record("votes.json", "getVoteAccounts", [])
        vote = votes["current"][0]["votePubkey"]
        self.record("account.json", "getAccountInfo", [vote, {"encoding": "base64"}])
        self.record("account-parsed.json", "getAccountInfo", [vote, {"encoding": "jsonParsed"}])
        keys = [key["pubkey"] for key in parsed["transactions"][0]["transaction"]["message"]["accountKeys"]]
        self.record("accounts.json", "getMultipleAccounts", [keys[:3]])
        self.record("samples.json", "getRecentPerformanceSamples", [])
        self.record("program.json", "getProgramAccounts", [VOTE_PROGRAM, {"encoding": "base64", "withContext": True}])
        for name, text in [("bad-1.json", "{"), ("bad-2.json", '{"method": "getBlock"}'), ("bad-3.json", "[]")]:
            (self.answers / name).write_text(text)
        self.ask_for_nothing("refused.json")

        code, counts, printed = self.judge()
        self.assertEqual(code, 0, printed)
        count = len(block["transactions"])
        # Four encodings of full blocks, accounts, signatures and none, each with and without rewards and versions; of these
        # 28, four are the source. The time of the block. Each transaction in four encodings, with and without versions.
        self.assertEqual(counts["block.json"], counts["block-json.json"], printed)
        self.assertEqual(counts["block.json"]["right"], 2 + 28 + 1 + 8 * count, printed)
        self.assertEqual(counts["block.json"]["asked"], 4 + 2 * count, printed)
        self.assertEqual(counts["block-parsed.json"]["right"], 2 + 4 + 1 + 2 * count, printed)
        self.assertEqual(counts["votes.json"]["derived"], len(votes["current"]) + len(votes["delinquent"]) + 1, printed)
        for name in ("account.json", "accounts.json", "program.json", "samples.json", "transaction.json", "account-parsed.json"):
            self.assertGreater(counts[name]["derived"], 0, printed)
        for name, why in [("bad-1.json", "it cannot be read as JSON"), ("bad-2.json", "it has no params and no response"),
                          ("bad-3.json", "it is not an object"), ("refused.json", "the node refused")]:
            self.assertRegex(printed, f"(?m)^not used: {name}: .*{why}")

    def ask_for_nothing(self, name):
        """Records a refusal."""
        body = self.ask("getAccountInfo", ["nobody"])
        self.assertIn("error", body)
        (self.answers / name).write_text(json.dumps({"method": "getAccountInfo", "params": ["nobody"], "response": body}))

    def test_one_wrong_byte_is_noticed(self):
        slot, _ = self.block_with_versions()
        # The node has written a height that slotfront makes of no transaction.
        self.record("block.json", "getBlock", [slot, {"encoding": "json", **VERSION_0}],
                    lambda text: re.sub(r'("programIdIndex": \d+, "stackHeight": )1', r"\g<1>7", text, count=1))
        code, counts, printed = self.judge()
        self.assertEqual(code, 1, printed)
        # The block in json, with and without rewards, and one of its transactions, also without versions if it has none.
        self.assertIn(counts["block.json"]["wrong"], (3, 4), printed)
        self.assertRegex(printed, r'getBlock \[\d+, \{"transactionDetails": "full", "encoding": "json".*stackHeight is 1, expected 7')

    def test_a_folder_without_answers_is_a_failure(self):
        code, _, printed = self.judge()
        self.assertEqual(code, 1)
        self.assertIn("has no file that can be used", printed)


if __name__ == "__main__":
    unittest.main()

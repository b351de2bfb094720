"""Judges from outside: the public specifications of Solana's RPC (`judges/`), over simulated nodes and over a gateway that
needs no key.
"""

import json
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

from gateway import TARGET, Nodes, Serve, get, upstreams

JUDGES = Path(__file__).parent / "judges"
PYTHON = TARGET / "deploy" / "venv" / "bin" / "python"
PATIENCE_S = 300


class Judges(unittest.TestCase):
    def judge(self, url):
        """Judges a server, and returns the methods that it does not know."""
        judged = subprocess.run([PYTHON, "-B", JUDGES, url], capture_output=True, text=True, timeout=PATIENCE_S)
        self.assertEqual(judged.returncode, 0, judged.stdout + judged.stderr)
        return set(re.findall(r"\w+", re.search("^unknown here: (.*)$", judged.stdout, re.M).group(1)))

    def test_every_answer_is_as_the_specifications_say(self):
        with tempfile.TemporaryDirectory() as folder, Nodes(2) as nodes:
            config = Path(folder, "slotfront.toml")
            config.write_text('[server]\nlisten = "127.0.0.1:0"\nadmin_listen = "127.0.0.1:0"\n[auth]\nmode = "open"\nopen_plan = "all"\n'
                              '[plans.all]\nmethods = ["core", "tip", "history", "scans"]\nrps = 100000\n'
                              + upstreams(nodes.ports))
            with Serve(config) as serve:
                url = f"http://{serve.ready().public}/"
                unknown = self.judge(url)
                listed = {method["name"] for method in json.loads(get(url + "openrpc.json")[1])["methods"]}
            # What slotfront lists and its nodes know, it has to know.
            self.assertEqual((listed & unknown) - self.judge(nodes.url), set())


if __name__ == "__main__":
    unittest.main()

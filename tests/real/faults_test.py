"""The faults of `lab/faults` behind the built program: no call fails, and no answer is old."""

import tempfile
import unittest
from pathlib import Path

from gateway import TARGET, Program, Serve, free_port, keys, upstreams

PLAYER = TARGET / "debug" / "examples" / "faults"
# Each fault ends after a number of calls, which may take minutes on a busy machine.
PATIENCE_S = 1200
# No gateway can answer while no node does.
HOPELESS = "HTTP 503 from all"


class Faults(unittest.TestCase):
    def test_single_node_faults_fail_no_call(self):
        folder = self.enterContext(tempfile.TemporaryDirectory())
        nodes = [free_port() for _ in range(3)]
        config = Path(folder, "slotfront.toml")
        # Faults are short, so short intervals detect sooner that a node has recovered. Timeouts suit a busy machine.
        config.write_text(
            '[server]\nlisten = "127.0.0.1:0"\nadmin_listen = "127.0.0.1:0"\n'
            "[plans.standard]\nrps = 1000000\nburst = 1000000\n"
            '[pool]\nattempt_timeout = { default = "5s" }\nprobe_interval = "200ms"\n'
            'breaker = { failures = 5, failure_rate = 0.5, slow = 4.0, open = "300ms" }\n' + upstreams(nodes)
        )
        key = keys(Path(folder, "keys.toml"), "create", "--name", "a")
        with Serve(config) as serve:
            ports = ",".join(map(str, nodes))
            with Program(serve.url(key), "--nodes", ports, "--calls", 200, "--give-up-s", 60, program=PLAYER) as player:
                ended = player.process.wait(PATIENCE_S)
                printed = player.printed()
            self.assertEqual(ended, 0, f"{printed}\n{serve.printed()[-3000:]}")
        lines = printed.splitlines()
        faults = {name: list(map(int, counts)) for name, *counts in (line.split("\t") for line in lines if "\t" in line)}
        self.assertEqual(len(faults), 21, printed)
        for name, (calls, failed, old, _, _) in faults.items():
            self.assertGreaterEqual(calls, 200, f"{name}\n{printed}")
            self.assertEqual(old, 0, f"{name}\n{printed}")
            if name != HOPELESS:
                self.assertEqual(failed, 0, f"{name}\n{printed}")
        # The callers detect failures.
        self.assertGreater(faults[HOPELESS][1], 0, printed)
        remarks = [line for line in lines if line.startswith("#") and not line.startswith(f"# {HOPELESS}")]
        self.assertEqual(remarks, [])


if __name__ == "__main__":
    unittest.main()

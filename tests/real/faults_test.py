"""The faults of `lab/faults.py` behind the built program: no call fails, no answer is old, and what all nodes refuse is refused
at once."""

import subprocess
import tempfile
import unittest
from pathlib import Path

from gateway import TARGET, Program, Serve, free_port, keys, upstreams

PLAYER = TARGET / "debug" / "examples" / "faults"
# Each fault ends after a number of calls, which may take minutes on a busy machine.
PATIENCE_S = 1200
# No gateway can answer while no node does.
HOPELESS = "HTTP 503 from all"
# The rows of a method that all nodes refuse. Its calls fail unless they get an error, with `Retry-After` if the nodes say so.
REFUSED = "calls of this method"
# A refusal that comes at once takes less than any timeout of the gateway, on a busy machine too.
AT_ONCE_US = 4_000_000


class Faults(unittest.TestCase):
    def test_single_node_faults_fail_no_call(self):
        folder = self.enterContext(tempfile.TemporaryDirectory())
        nodes = [free_port() for _ in range(3)]
        port, admin = free_port(), free_port()
        config = Path(folder, "slotfront.toml")
        # Faults are short, so short intervals detect sooner that a node has recovered. Timeouts suit a busy machine.
        config.write_text(
            f'[server]\nlisten = "127.0.0.1:{port}"\nadmin_listen = "127.0.0.1:{admin}"\n'
            "[plans.standard]\nrps = 1000000\nburst = 1000000\n"
            '[passthrough]\nmethods = ["getTokenAccountsByDelegate"]\n'
            '[pool]\nattempt_timeout = { default = "5s" }\nprobe_interval = "200ms"\n'
            'breaker = { failures = 5, failure_rate = 0.5, slow = 4.0, open = "300ms" }\n' + upstreams(nodes)
        )
        key = keys(Path(folder, "keys.toml"), "create", "--name", "a")
        url, ports = f"http://127.0.0.1:{port}/v3/{key}", ",".join(map(str, nodes))
        arguments = url, "--nodes", ports, "--calls", 200, "--give-up-s", 60
        with Program(*arguments, program=PLAYER, stdin=subprocess.PIPE) as player:
            # The first fault is there before the gateway starts.
            player.wait_for("^serving$")
            with Serve(config) as serve:
                serve.ready()
                player.process.stdin.close()
                ended = player.process.wait(PATIENCE_S)
                printed = player.printed()
                self.assertEqual(ended, 0, f"{printed}\n{serve.printed()[-3000:]}")
        lines = printed.splitlines()
        faults = {name: list(map(int, counts)) for name, *counts in (line.split("\t") for line in lines if "\t" in line)}
        self.assertEqual(len(faults), 31, printed)
        for name, (calls, failed, old, p50, *_) in faults.items():
            self.assertGreaterEqual(calls, 60 if ": " in name else 200, f"{name}\n{printed}")
            self.assertEqual(old, 0, f"{name}\n{printed}")
            if name != HOPELESS:
                self.assertEqual(failed, 0, f"{name}\n{printed}")
            if name.endswith(REFUSED):
                self.assertLess(p50, AT_ONCE_US, f"{name}\n{printed}")
        # The callers detect failures.
        self.assertGreater(faults[HOPELESS][1], 0, printed)
        remarks = [line for line in lines if line.startswith("#") and not line.startswith(f"# {HOPELESS}")]
        self.assertEqual(remarks, [])


if __name__ == "__main__":
    unittest.main()

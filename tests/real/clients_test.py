"""The usual Solana client libraries, unmodified, through slotfront in front of a simulated cluster.

Each library has a program in `clients/`, in its own language. The program compares the library's values with the
reference values of `clients/scene.py`. `tests/run clients` installs the libraries at the versions of their lock files.
"""

import subprocess
import unittest
from pathlib import Path

from clients.scene import environment, scene
from gateway import TARGET

CLIENTS = Path(__file__).parent / "clients"
BUILT = TARGET / "clients"
# The slowest program waits for its rate limit.
PATIENCE_S = 300


class Clients(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        context = scene()
        cls.scene = context.__enter__()
        cls.addClassCleanup(context.__exit__, None, None, None)

    def run_client(self, *command, cwd=CLIENTS):
        limited = self.scene.limited()
        ran = subprocess.run(command, cwd=cwd, env=environment(self.scene), capture_output=True, text=True, timeout=PATIENCE_S)
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        self.assertGreater(self.scene.limited(), limited, "the rate limit was never reached")
        return ran.stdout + ran.stderr

    def test_web3_js(self):
        self.assertRegex(self.run_client("node", "--test", "web3js.test.mjs", cwd=CLIENTS / "javascript"), r"(?m)^\S+ fail 0$")

    def test_kit(self):
        self.assertRegex(self.run_client("node", "--test", "kit.test.mjs", cwd=CLIENTS / "javascript"), r"(?m)^\S+ fail 0$")

    def test_solana_py(self):
        self.assertRegex(self.run_client(BUILT / "venv" / "bin" / "python", "python/solana_py.py"), r"(?m)^OK$")

    def test_solana_rpc_client(self):
        self.assertIn("ok: over the rate", self.run_client(BUILT / "rust" / "debug" / "slotfront-clients"))


if __name__ == "__main__":
    unittest.main()

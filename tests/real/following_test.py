"""tests/real/following finds carried answers equal to the node's own, and answers of another chain wrong."""

import subprocess
import sys
import unittest

from gateway import ROOT, GatewayTest, Nodes, Serve, replace, upstreams


class FollowingTest(GatewayTest):
    def compare(self, direct, *options):
        """Runs the comparison of a following gateway with a node."""
        replace(self.config, '[server]\nlisten = "127.0.0.1:0"\nadmin_listen = "127.0.0.1:0"\n[auth]\nmode = "open"\n'
                             '[follow]\nmode = "on"\n' + upstreams(self.nodes))
        serve = self.start(Serve(self.config)).ready()
        program = [sys.executable, ROOT / "tests/real/following", direct, f"http://{serve.public}", "--no-writes", *options]
        done = subprocess.run(program, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    def test_carried_answers_equal_the_nodes(self):
        code, output = self.compare(f"http://127.0.0.1:{self.nodes[0]}", "--carried", "300")
        self.assertEqual(code, 0, output)
        self.assertIn("mismatches: none", output)

    def test_answers_of_another_chain_are_found_wrong(self):
        other = self.start(Nodes(seed=2))
        code, output = self.compare(other.url, "--seconds", "4", "--questions", "20")
        self.assertEqual(code, 1, output)
        self.assertIn("MISMATCH", output)


if __name__ == "__main__":
    unittest.main()

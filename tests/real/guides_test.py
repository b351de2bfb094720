"""The three guides of `deploy/guides.md` and the quick start of a first key in the README, run as written.

The test runs every block of shell in an empty folder with copies of `deploy/` and `dashboards/`. It replaces the
addresses of nodes by those of simulated ones, and the ports by free ones.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import unittest
import urllib.error
from pathlib import Path

from gateway import BINARY, PATIENCE_S, ROOT, Nodes, Program, eventually, free_port, get

GUIDES = ROOT / "deploy" / "guides.md"
README = ROOT / "README.md"
JAVASCRIPT = Path(__file__).parent / "clients" / "javascript"
# A page that follows slots and logs with nothing but the URL. Without a WebSocket of a node, each subscription to logs is
# refused, and the library repeats it at once and for ever.
FOLLOWS = """
import { Connection } from '@solana/web3.js';
const connection = new Connection(process.env.URL, 'confirmed');
const slots = [];
connection.onLogs('all', () => {});
connection.onSlotChange(({ slot }) => {
  if (slots.push(slot) === 8) { console.log(JSON.stringify(slots)); process.exit(); }
});
"""
# The programs that a reader leaves running in another terminal, with a path that answers once they run.
STAYS = {"slotfront": "/livez", "prometheus": "/-/ready"}


def blocks(title, page=GUIDES):
    """Returns the blocks of shell of the guide with this title."""
    text = re.search(rf"^## {title}$(.*?)(?=^## |\Z)", page.read_text(), re.M | re.S).group(1)
    return re.findall(r"^```sh\n(.*?)^```$", text, re.M | re.S)


class Guides(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        (self.folder / "bin").mkdir()
        (self.folder / "bin" / "slotfront").symlink_to(BINARY)
        nodes = [self.enterContext(Nodes()).port for _ in range(2)]
        self.ports = {name: str(free_port()) for name in ("8080", "9899", "9090")}
        self.replaced = [("10.0.0.1:8899", f"127.0.0.1:{nodes[0]}"), ("10.0.0.2:8899", f"127.0.0.1:{nodes[1]}"),
                         ("0.0.0.0:8080", f"127.0.0.1:{self.ports['8080']}")]
        self.replaced += [(f"127.0.0.1:{name}", f"127.0.0.1:{port}") for name, port in self.ports.items()]
        shutil.copytree(ROOT / "deploy", self.folder / "deploy")
        shutil.copytree(ROOT / "dashboards", self.folder / "dashboards")
        scrape = self.folder / "deploy" / "prometheus" / "prometheus.yml"
        scrape.write_text(self.here(scrape.read_text()).replace("15s", "1s"))

    def here(self, text):
        for written, ours in self.replaced:
            text = text.replace(written, ours)
        return text

    def environment(self):
        # The guides use the default address of the admin listener. Only the port differs.
        return {**os.environ, "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
                "SLOTFRONT_SERVER__ADMIN_LISTEN": f"127.0.0.1:{self.ports['9899']}", "SLOTFRONT_SERVER__UNREADY_BEFORE_STOP": "0s"}

    def follow(self, title):
        shell = blocks(title)
        self.assertTrue(shell)
        for block in shell:
            program = re.match(r"(slotfront (?:serve|dev)|prometheus) ", block)
            if program:
                self.leave_running(self.here(block), program.group(1).split()[0])
                continue
            self.run_block(block)

    def run_block(self, block, **environment):
        """Runs commands to their end, and returns what they print."""
        ran = subprocess.run(["bash", "-e", "-o", "pipefail", "-c", self.here(block)], cwd=self.folder,
                             env=self.environment() | environment, capture_output=True, text=True, timeout=PATIENCE_S * 3)
        self.assertEqual(ran.returncode, 0, f"{block}\n{ran.stdout}{ran.stderr}")
        return ran.stdout

    def leave_running(self, block, program):
        process = Program("-c", f"exec {block}", program="bash", cwd=self.folder, env=self.environment())
        self.addCleanup(process.end)
        self.addCleanup(process.stop, signal.SIGTERM)
        url = f"http://127.0.0.1:{self.ports['9899' if program == 'slotfront' else '9090']}{STAYS[program]}"

        def answers():
            try:
                return get(url)[0] == 200
            except (urllib.error.URLError, ConnectionError):
                self.assertTrue(process.is_running(), f"{block}\n{process.printed()}")
                return False

        eventually(answers, lambda: f"{block}\n{process.printed()}")

    def test_first_key_of_the_readme(self):
        five, sixth = blocks("In production", README)[:2]
        build, *before, serve = five.splitlines()
        self.assertTrue(build.startswith("cargo install "), build)
        self.run_block("\n".join(before))
        self.leave_running(self.here(serve), "slotfront")
        (self.folder / "node_modules").symlink_to(JAVASCRIPT / "node_modules")
        self.assertRegex(self.run_block(sixth), r"\A\d+\n\Z")
        url = f"http://127.0.0.1:{self.ports['8080']}/v3/{(self.folder / 'wallet.key').read_text().strip()}"
        slots = json.loads(self.run_block('node --input-type=module -e "$FOLLOWS"', URL=url, FOLLOWS=FOLLOWS))
        self.assertEqual(slots, sorted(set(slots)))
        closed = re.findall(r'^slotfront_ws_closes_total\{reason="(?!client)(\w+)"\} [1-9]', get(f"http://127.0.0.1:{self.ports['9899']}/metrics")[1], re.M)
        self.assertEqual(closed, [], "a refusal closes no connection")

    def test_in_front_of_your_validators(self):
        self.follow("In front of your validators")

    def test_as_an_api_key_gateway(self):
        self.follow("As an API-key gateway")

    def test_on_your_dashboards(self):
        self.follow("On your dashboards")


if __name__ == "__main__":
    unittest.main()

"""A gateway with a key file in front of a simulated node, for tests to start, change and end."""

import json
import re
import subprocess
import tempfile
import time
import unittest
import urllib.request
from pathlib import Path

from running import BINARY, PATIENCE_S, Running, free_port

TOKEN = "an-admin-token"


class Gateway(unittest.TestCase):
    """A simulated node, and a folder with a configuration and keys."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.config, self.keys_file = Path(self.folder.name, "slotfront.toml"), Path(self.folder.name, "keys.toml")
        self.nodes = [free_port()]
        sim = Running("sim", "--listen", f"127.0.0.1:{self.nodes[0]}", "--nodes", "1")
        sim.__enter__()
        self.addCleanup(sim.__exit__)
        sim.wait_for(r"127\.0\.0\.1:\d+")

    def configuration(self, upstreams, rps=100000, burst=100000):
        text = ('[server]\nlisten = "127.0.0.1:0"\nadmin_listen = "127.0.0.1:0"\n'
                f'[auth]\nadmin_token = "{TOKEN}"\n'
                f'[plans.standard]\nrps = {rps}\nburst = {burst}\n')
        for i, port in enumerate(upstreams):
            text += f'[[upstream]]\nname = "node-{i}"\nurl = "http://127.0.0.1:{port}"\n'
        beside = self.config.with_suffix(".new")
        beside.write_text(text)
        beside.rename(self.config)

    def keys(self, *arguments):
        made = subprocess.run([BINARY, "keys", *arguments, "--file", self.keys_file],
                              capture_output=True, text=True, check=True)
        return made.stdout.strip()

    def serve(self):
        serve = Running("serve", "--config", str(self.config))
        serve.__enter__()
        self.addCleanup(serve.__exit__)
        self.public = serve.wait_for(r"server\.listen\W+(127\.0\.0\.1:\d+)").group(1)
        self.admin = serve.wait_for(r"server\.admin_listen\W+(127\.0\.0\.1:\d+)").group(1)
        return serve

    def metric(self, line):
        with urllib.request.urlopen(f"http://{self.admin}/metrics", timeout=PATIENCE_S) as page:
            found = re.search(f"^slotfront_{re.escape(line)} (\\S+)$", page.read().decode(), re.M)
        return float(found.group(1)) if found else 0.0

    def counted(self, line, count):
        deadline = time.monotonic() + PATIENCE_S
        while self.metric(line) != count:
            self.assertLess(time.monotonic(), deadline, f"{line} never became {count}")
            time.sleep(0.05)

    def used(self, key):
        with urllib.request.urlopen(f"http://{self.public}/v3/{key}/usage", timeout=PATIENCE_S) as usage:
            return json.load(usage)["month"]["used"]

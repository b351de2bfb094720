"""With `telemetry.format = "json"` a program can read each line that slotfront writes, however it starts and ends."""

import json
import os
import re
import signal
import socket
import tempfile
import unittest
from pathlib import Path

from gateway import Nodes, Serve, free_port, run

JSON = '[telemetry]\nformat = "json"\n'


def settings(port, admin, nodes, more=""):
    server = f'[server]\nlisten = "127.0.0.1:{port}"\nws_listen = "off"\nadmin_listen = "127.0.0.1:{admin}"\n'
    return server + "".join(f'[[upstream]]\nurl = "{url}"\n' for url in nodes) + more


class JsonLog(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.config = self.folder / "slotfront.toml"

    def lines(self, printed):
        """Returns the lines of a log, each of which has to be an object with a time, a level and a text."""
        lines = []
        for line in printed.splitlines():
            try:
                lines.append(json.loads(line))
            except ValueError:
                self.fail(f"no JSON: {line!r}")
            self.assertLessEqual({"timestamp", "level", "message", "target"}, set(lines[-1]), line)
            self.assertRegex(lines[-1]["timestamp"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z$")
        return lines

    def test_every_line_from_start_to_stop_is_json(self):
        node = self.enterContext(Nodes()).url
        # The second node is the first once more, which is a warning, and so is the key file that is missing.
        text = settings(0, 0, [node, node], JSON)
        self.config.write_text(text)
        serve = self.enterContext(Serve(self.config)).ready()
        self.assertEqual(run("health", "--admin", serve.admin).returncode, 0)
        self.config.write_text(text + "[cache]\ncapacity = \"lots\"\nmax_enrty = 5\n")
        serve.send(signal.SIGHUP)
        serve.wait_for("cache.max_enrty")
        self.config.write_text(text + "[plans.new]\nrps = 5\n")
        serve.send(signal.SIGHUP)
        serve.wait_for("plans")
        (self.folder / "keys.toml").write_text("[[key]]\nid = 5\n")
        serve.wait_for("key file refused")
        self.assertEqual(serve.stop(), 0)
        lines = self.lines(serve.printed())
        self.assertLessEqual({"WARN", "ERROR", "INFO"}, {line["level"] for line in lines})
        for said in ("is also the URL of upstream", "listening on http", "key file does not exist", "pool.genesis_hash is not set"):
            self.assertTrue([line for line in lines if said in line["message"]], said)

    def test_the_line_of_a_start_that_fails_is_json(self):
        node = f"http://127.0.0.1:{free_port()}"
        taken = self.enterContext(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
        variable = {"SLOTFRONT_TELEMETRY__FORMAT": "json"}
        for code, text, env, said in [
            (2, settings(0, 0, [node], JSON + "[cache]\ncapacity = \"lots\"\n"), {}, "expected a size with a unit"),
            (2, settings(0, 0, [node], "[cache]\ncapacity = \"lots\"\n"), variable, "expected a size with a unit"),
            (2, settings(0, 0, [node], JSON + "log = \"slotfront=loud\"\n"), {}, "is not a log filter"),
            (2, "[[upstream]\n", variable, "is not valid TOML"),
            (2, settings(0, 0, [], JSON), {}, "at least one node"),
            (2, settings(0, 0, [node], JSON + "[auth]\nkeys_file = \"slotfront.toml\"\n"), {}, "auth.keys_file"),
            (1, settings(taken, 0, [node], JSON), {}, str(taken)),
        ]:
            with self.subTest(said):
                self.config.write_text(text)
                ended = run("serve", "--config", self.config, env={**os.environ, **env}, timeout=60)
                self.assertEqual((ended.returncode, ended.stdout), (code, ""), ended.stderr)
                last = self.lines(ended.stderr)[-1]
                self.assertEqual(last["level"], "ERROR")
                self.assertIn(said, last["message"])

    def test_people_get_text(self):
        self.config.write_text('[[upstream]]\nurl = "ftp://node"\n')
        ended = run("serve", "--config", self.config)
        self.assertRegex(ended.stderr, r"^slotfront: .*slotfront.toml: 1 problem\n")
        pretty = {**os.environ, "SLOTFRONT_TELEMETRY__FORMAT": "pretty"}
        self.config.write_text(settings(0, 0, ["http://127.0.0.1:1"], '[auth]\nkeys_file = "slotfront.toml"\n'))
        ended = run("serve", "--config", self.config, env=pretty)
        self.assertTrue(re.search("^slotfront: auth.keys_file", ended.stderr, re.M), ended.stderr)


if __name__ == "__main__":
    unittest.main()

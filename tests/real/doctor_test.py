"""`check --probe` of the built program, against healthy and faulty simulated nodes."""

import json
import re
import subprocess
import tempfile
import threading
import time
import unittest
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from gateway import BINARY, PATIENCE_S, Nodes, call, free_port, keys, run


class FaultyNode(BaseHTTPRequestHandler):
    """A proxy in front of a healthy node that can be slow, have a wrong clock, limit calls and replace answers."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        server = self.server
        with server.lock:
            server.under_way += 1
            refused = server.under_way > server.most
        try:
            time.sleep(server.delay)
            method = json.loads(body)["method"]
            status, answer = (429, b"slow down") if refused else (200, self.answer(method, body))
        finally:
            with server.lock:
                server.under_way -= 1
        self.send_response_only(status)
        self.send_header("Date", formatdate(time.time() + server.skew, usegmt=True))
        if status == 429:
            self.send_header("Retry-After", "7")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def answer(self, method, body):
        answer = call(self.server.node, method, json.loads(body).get("params", []))[2]
        answer.update(self.server.instead.get(method, {}))
        if "error" in answer:
            answer.pop("result", None)
        answer["id"] = json.loads(body)["id"]
        return json.dumps(answer).encode()

    def log_message(self, *_):
        pass


class NodeTest(unittest.TestCase):
    """A test with a simulated node and a folder."""

    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.node = self.enterContext(Nodes()).url

    def faulty_node(self, delay=0, most=10**6, skew=0, instead=None):
        """Starts a faulty node, and returns its URL."""
        server = ThreadingHTTPServer(("127.0.0.1", 0), FaultyNode)
        server.node, server.delay, server.most, server.skew, server.instead = self.node, delay, most, skew, instead or {}
        server.lock, server.under_way = threading.Lock(), 0
        server.request_queue_size = 128
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        return f"http://127.0.0.1:{server.server_port}"


class Check(NodeTest):
    def check(self, upstreams, more=""):
        text = '[server]\nlisten = "127.0.0.1:0"\nadmin_listen = "127.0.0.1:0"\nmax_connections = 100\n' + more
        for name, url in upstreams.items():
            text += f'[[upstream]]\nname = "{name}"\nurl = "{url}"\nmax_in_flight = 10\n'
        config = self.folder / "slotfront.toml"
        config.write_text(text)
        config.chmod(0o640)
        ran = run("check", "--config", config, "--probe", timeout=PATIENCE_S * 2)
        return ran.returncode, ran.stdout + ran.stderr

    def test_healthy_setup_has_no_findings(self):
        code, said = self.check({"good": self.node})
        self.assertEqual(code, 0, said)
        self.assertNotIn("fault", said)
        line = re.search('^ +fix: write under \\[pool\\], .*: (genesis_hash = "\\w+")$', said, re.M)
        self.assertTrue(line, said)
        _, said = self.check({"good": self.node}, f"[pool]\n{line.group(1)}\n")
        # The simulated history is short, and a busy machine is slow.
        warnings = re.findall(r"^warning +(.*)$", said, re.M)
        self.assertTrue(all(re.search("holds only the blocks of the last|takes \\d+ ms", one) for one in warnings), said)

    def test_each_fault_is_reported_with_its_fix(self):
        cases = [
            (dict(delay=0.15), 0, r"takes \d{3,} ms", "tier"),
            (dict(skew=-3600), 0, "the clock of upstream faulty is 3[56]", "NTP"),
            (dict(most=5, delay=0.05), 0, r"with HTTP 429 \(Retry-After: 7 s\)", "set upstream.rps"),
            (dict(instead={"getGenesisHash": {"result": "1" * 44}}), 1, "reports the genesis hash", "pool.genesis_hash"),
            (dict(instead={"getHealth": {"error": {"code": -32005, "message": "Node is behind by 300 slots"}}}), 1,
             "Node is behind by 300 slots", "caught up"),
            (dict(instead={"getBlock": {"error": {"code": -32011, "message": "Transaction history is not available"}}}), 0,
             "keeps no transaction history", "--enable-rpc-transaction-history"),
            (dict(instead={"getVersion": {"result": {"solana-core": "2.3.7"}}}), 0, "different versions: 2.3, ", "run one version everywhere"),
            (dict(instead={"getSlot": {"result": 5}}), 1, r"slots \([0-9.]+ s\) behind the others", "pool.max_slot_lag"),
        ]
        for fault, expected, finding, fix in cases:
            with self.subTest(finding):
                code, said = self.check({"good": self.node, "faulty": self.faulty_node(**fault)})
                self.assertEqual(code, expected, said)
                self.assertRegex(said, finding)
                self.assertIn(fix, said)

    def test_unreachable_node_is_reported_beside_healthy_ones(self):
        code, said = self.check({"gone": f"http://127.0.0.1:{free_port()}/secret", "good": self.node})
        self.assertEqual(code, 1, said)
        self.assertIn("upstream gone gives no usable answer: connect", said)
        self.assertRegex(said, r"(?m)^good .* ok ")
        self.assertNotIn("secret", said)

    def test_open_file_permissions_are_reported(self):
        file = self.folder / "keys.toml"
        keys(file, "create", "--name", "x")
        file.chmod(0o666)
        code, said = self.check({"good": self.node})
        self.assertEqual(code, 1, said)
        self.assertIn(f"chmod go-w {file}", said)
        file.chmod(0o644)
        code, said = self.check({"good": self.node})
        self.assertEqual(code, 0, said)
        self.assertIn(f"chmod o-r {file}", said)

    def test_unwritable_usage_file_is_reported(self):
        code, said = self.check({"good": self.node}, '[auth]\nusage_file = "missing/usage.json"\n')
        self.assertEqual(code, 1, said)
        self.assertIn(f"auth.usage_file ({self.folder}/missing/usage.json) cannot be written: ", said)
        self.assertIn(f"fix: create {self.folder}/missing, ", said)
        # Without keys there is no usage.
        code, said = self.check({"good": self.node}, '[auth]\nmode = "open"\nusage_file = "missing/usage.json"\n')
        self.assertEqual(code, 0, said)

    def test_low_open_file_limit_is_reported(self):
        self.check({"good": self.node})
        command = f"ulimit -n 150; exec {BINARY} check --probe --config {self.folder}/slotfront.toml"
        said = subprocess.run(["bash", "-c", command], capture_output=True, text=True).stdout
        self.assertIn("the limit of open files is 150, but the settings need up to 174", said)
        self.assertIn("LimitNOFILE", said)


if __name__ == "__main__":
    unittest.main()

"""The built `slotfront` as a new user runs it, including the lines that it prints."""

import base64
import json
import re
import signal
import socket
import subprocess
import tempfile
import threading
import unittest
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from gateway import PATIENCE_S, Dev, Nodes, Program, Serve, call, eventually, free_port, get, keys, run, upstreams


class DevCommand(unittest.TestCase):
    def test_printed_curl_line_works_and_repeats_hit(self):
        with Dev() as dev:
            line = dev.wait_for(r"^\s*(curl .*)$").group(1)
            statuses = []
            for _ in range(2):
                shell = subprocess.run(["bash", "-c", line + " -si"], capture_output=True, text=True, timeout=PATIENCE_S)
                head, _, body = shell.stdout.replace("\r", "").partition("\n\n")
                self.assertIn("result", json.loads(body), shell.stdout)
                statuses.append(re.search(r"^cache-status: slotfront; (\w+)", head, re.M | re.I).group(1))
            self.assertEqual(statuses[1], "hit")
            self.assertIn("<html", get(dev.page)[1])
            dev.ready()

    def test_all_eight_methods_answer(self):
        with Dev() as dev:
            url = dev.url
            votes = call(url, "getVoteAccounts", [])[2]["result"]
            vote = votes["current"][0]["votePubkey"]
            slot = call(url, "getAccountInfo", [vote, {"encoding": "base64"}])[2]["result"]["context"]["slot"]
            newest = None
            for candidate in range(slot, slot - 30, -1):
                config = {"maxSupportedTransactionVersion": 0}
                answer = call(url, "getBlock", [candidate, config])[2]
                newest = newest or answer.get("result")
            self.assertTrue(newest["transactions"])
            keys = [k["pubkey"] if isinstance(k, dict) else k
                    for k in newest["transactions"][0]["transaction"]["message"]["accountKeys"]]
            self.assertEqual(len(call(url, "getMultipleAccounts", [keys])[2]["result"]["value"]), len(keys))
            self.assertTrue(call(url, "getRecentPerformanceSamples", [1])[2]["result"])
            self.assertEqual(len(call(url, "getClusterNodes", [])[2]["result"]), 3)
            self.assertEqual(call(url, "getTokenAccountBalance", [vote])[2]["error"]["code"], -32602)
            self.assertEqual(call(url, "getFeeForMessage", ["AAAA"])[2]["error"]["code"], -32602)
            self.assertEqual(call(url.replace("/dev", "/nokey"), "getClusterNodes", [])[2]["error"]["code"], -32090)

    def test_forwarded_methods_work_in_dev(self):
        with Dev() as dev:
            url = dev.ready().url
            wallet = re.search(r'"params":\["(\w+)"', dev.printed()).group(1)
            recent = call(url, "getLatestBlockhash", [])[2]["result"]["value"]["blockhash"]
            for method, params in [("getSlot", []), ("getBlockHeight", []), ("getVersion", []), ("getGenesisHash", []),
                                   ("getEpochInfo", []), ("getHealth", []), ("getFirstAvailableBlock", []),
                                   ("minimumLedgerSlot", []), ("getBalance", [wallet]), ("isBlockhashValid", [recent])]:
                self.assertIn("result", call(url, method, params)[2], method)
            self.assertEqual(call(url, "sendTransaction", ["AAAA"])[2]["error"]["code"], -32602)
            self.assertEqual(call(url, "sendBundle", [["AAAA"]])[2]["error"]["code"], -32601)

    def test_signals_end_the_program_cleanly(self):
        for how in (signal.SIGINT, signal.SIGTERM):
            with Dev() as dev:
                self.assertEqual(dev.stop(how), 0, dev.printed())

    def test_port_in_use_is_reported_with_its_address(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            address = "127.0.0.1:%d" % taken.getsockname()[1]
            with Program("dev", "--listen", address, "--admin", "127.0.0.1:0") as dev:
                self.assertEqual(dev.ended(), 1)
                self.assertIn(address, dev.printed())

    def test_metrics_pass_promtool(self):
        with Dev() as dev:
            call(dev.url, "getClusterNodes", [])
            metrics = get(dev.page + "metrics")[1]
            check = subprocess.run(["promtool", "check", "metrics"], input=metrics, capture_output=True, text=True)
            self.assertEqual((check.returncode, check.stderr), (0, ""), check.stdout)


class ServeCommand(unittest.TestCase):
    def test_key_works_until_it_is_revoked(self):
        with tempfile.TemporaryDirectory() as folder, Nodes() as nodes:
            config, file = Path(folder, "slotfront.toml"), Path(folder, "keys.toml")
            config.write_text('[server]\nlisten = "127.0.0.1:0"\nadmin_listen = "127.0.0.1:0"\n' + upstreams(nodes.ports))
            check = run("check", "--config", config, "--probe")
            self.assertEqual(check.returncode, 0, check.stdout + check.stderr)
            self.assertIn("node-0", check.stdout)
            made = keys(file, "create", "--name", "wallet", "--plan", "standard")
            secret = re.search(r"sf_[1-9A-HJ-NP-Za-km-z]+", made).group(0)
            self.assertNotIn(secret, file.read_text())
            with Serve(config) as serve:
                url = serve.url(secret)
                self.assertEqual(call(url, "getClusterNodes", [])[0], 200)
                self.assertTrue(call(url, "getClusterNodes", [])[1].startswith("slotfront; hit"))
                listed = keys(file, "list")
                self.assertIn("wallet", listed)
                key_id = re.search(r"^(\S+)\s.*wallet", listed, re.M).group(1)
                keys(file, "revoke", "--name", key_id)
                eventually(lambda: call(url, "getClusterNodes", [])[0] != 200, "the revoked key is still valid")
                status, _, body = call(url, "getClusterNodes", [])
                self.assertEqual((status, body["error"]["code"]), (401, -32090))
                self.assertNotIn(secret, serve.printed())
                self.assertEqual(serve.stop(), 0)

    def test_check_reports_all_mistakes_at_once(self):
        with tempfile.TemporaryDirectory() as folder:
            config = Path(folder, "slotfront.toml")
            config.write_text('[server]\nmax_bach = 5\n[[upstream]]\nurl = "ftp://node"\n[cache]\ncapacity = "lots"\n')
            check = run("check", "--config", config)
            self.assertEqual(check.returncode, 2)
            for path in ("server.max_bach", "upstream", "cache.capacity"):
                self.assertIn(path, check.stderr)


class Echo(BaseHTTPRequestHandler):
    """A node that answers every call with HTTP 500 and the request's own path and headers."""

    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        text = f"{self.path} {self.headers}".encode()
        try:
            self.send_response(500)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)
        except OSError:
            pass  # slotfront has given up the probe or the attempt.

    def log_message(self, *_):
        pass


class Secrets(unittest.TestCase):
    """Searches all output of the process for secrets, after successful and failed calls."""

    TOKEN, PASSWORD, PATH, QUERY, HEADER = (f"hush-{what}-5f1c" for what in ("token", "pass", "path", "query", "header"))

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.echo = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
        threading.Thread(target=self.echo.serve_forever, daemon=True).start()
        self.addCleanup(self.echo.server_close)
        self.addCleanup(self.echo.shutdown)
        self.seen = []

    def url(self, port, path=""):
        return f"http://user:{self.PASSWORD}@127.0.0.1:{port}/{path}?key={self.QUERY}"

    def configuration(self, upstreams, more=""):
        text = ('[server]\nlisten = "127.0.0.1:0"\nadmin_listen = "127.0.0.1:0"\n'
                f'[auth]\nadmin_token = "{self.TOKEN}"\nfailed_per_minute = 5\n'
                '[telemetry]\nlog = "trace"\nformat = "json"\n' + more)
        for name, url in upstreams.items():
            text += f'[[upstream]]\nname = "{name}"\nurl = "{url}"\nheaders = {{ x-api-key = "{self.HEADER}" }}\n'
        Path(self.folder.name, "slotfront.toml").write_text(text)

    def keys(self, *arguments):
        return keys(Path(self.folder.name, "keys.toml"), *arguments)

    def ask(self, verb, url, body=b"", token=None):
        headers = {"Content-Type": "application/json", "Origin": "https://a.example"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        request = urllib.request.Request(url, body or None, headers, method=verb)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
                status, head, text = response.status, str(response.headers), response.read().decode()
        except urllib.error.HTTPError as refused:
            status, head, text = refused.code, str(refused.headers), refused.read().decode()
        self.seen += [(f"{verb} {status} head", head), (f"{verb} {status} {text[:40]!r}", text)]
        return status, text

    def drive(self, good, bad, upstream_answers):
        with Serve(Path(self.folder.name, "slotfront.toml")) as serve:
            public, admin = serve.public, f"http://{serve.admin}"
            if upstream_answers:
                # Before the first answered probe, slotfront has no usable node.
                serve.ready()
            call = lambda method, params=(): json.dumps(
                {"jsonrpc": "2.0", "id": 1, "method": method, "params": list(params)}).encode()
            bodies = [call("getClusterNodes"), call("getVoteAccounts"), call("nothing"), call("getBlock", [-1]), b"no json",
                      b"[" + call("getClusterNodes") + b"," + call("getHealth") + b"]", b"x" * 60_000]
            unnamed = "sf_" + "8" * 43
            for key in [good, *bad]:
                for body in bodies:
                    self.ask("POST", f"http://{public}/v3/{key}", body)
                for verb, path in [("GET", f"/v3/{key}"), ("GET", f"/v3/{key}/usage"), ("OPTIONS", f"/v3/{key}"),
                                   ("GET", f"/v3/{key}/more"), ("POST", f"/{key}")]:
                    self.ask(verb, f"http://{public}{path}")
                for path in ("/", f"/v3/{key}/", f"/v3/{key}/health", f"/v3?api-key={key}", f"/v3/{unnamed}"):
                    self.ask("POST", f"http://{public}{path}", bodies[0], token=key)
            status, _ = self.ask("POST", f"http://{public}/v3/{good}", bodies[1])
            self.assertEqual(status, 200 if upstream_answers else 502)
            def administer(token):
                for verb, path, body in [("POST", "/api/cache/purge", b""), ("POST", "/api/upstreams/x/drain", b""),
                                         ("GET", "/api/keys", b""), ("POST", f"/api/keys/{good}/revoke", b""),
                                         ("GET", f"/api/keys/{good}/usage", b""), ("POST", "/api/keys", b'{"name":1}')]:
                    self.ask(verb, admin + path, body, token)
            administer(self.TOKEN)
            status, made = self.ask("POST", admin + "/api/keys", b'{"name":"made"}', self.TOKEN)
            # This answer contains the new key, and no other may.
            self.seen.pop()
            self.assertEqual(status, 200, made)
            made = json.loads(made)["key"]
            self.assertEqual(self.ask("POST", f"http://{public}/v3/{made}", bodies[1])[0], status if upstream_answers else 502)
            config = Path(self.folder.name, "slotfront.toml")
            before = config.read_text()
            config.write_text(before.replace("http://user", "ftp://user") + f'secret = "{self.HEADER}"\n')
            self.assertEqual(self.ask("POST", admin + "/api/reload", b"", self.TOKEN)[0], 409)
            check = run("check", "--config", config)
            self.seen.append(("check of a bad configuration", check.stdout + check.stderr))
            config.write_text(before)
            self.assertEqual(self.ask("POST", admin + "/api/reload", b"", self.TOKEN)[0], 200)
            check = run("check", "--config", config, "--probe")
            self.seen.append(("check --probe", check.stdout + check.stderr))
            # These are the last, because ten wrong tokens a minute are too many.
            administer(self.TOKEN[:-1])
            administer(good)
            for path in ("/", "/metrics", "/livez", "/readyz", "/api/status", "/api/upstreams"):
                self.ask("GET", admin + path)
            self.assertIn("key.create", serve.printed())
            serve.stop()
            self.assertIn('"TRACE"', serve.printed())
            self.seen.append(("log", serve.printed()))
        return made

    def test_output_never_contains_secrets(self):
        good = self.keys("create", "--name", "good")
        revoked, expired = self.keys("create", "--name", "revoked"), self.keys("create", "--name", "ends", "--expires", "1s")
        self.keys("revoke", "--name", "revoked")
        unknown = "sf_" + "9" * 43
        made = []
        down = {"gone": self.url(free_port(), self.PATH), "echo": self.url(self.echo.server_port, self.PATH)}
        self.configuration(down)
        made.append(self.drive(good, [revoked, expired, unknown], False))
        with Nodes() as sim:
            self.configuration({**down, "sim": self.url(sim.port)})
            made.append(self.drive(good, [revoked], True))
        secrets = [self.TOKEN, self.PASSWORD, self.PATH, self.QUERY, self.HEADER, good, revoked, expired, unknown, "8" * 43, *made]
        # The user and password in Basic authentication.
        secrets.append(base64.b64encode(f"user:{self.PASSWORD}".encode()).decode())
        self.assertGreater(len(self.seen), 100)
        for what, text in self.seen:
            for secret in secrets:
                at = text.find(secret)
                self.assertEqual(at, -1, f"{what}: {text[max(0, at - 200):at + 80]}")

    def test_log_filter_can_change_at_run_time(self):
        self.configuration({"echo": self.url(self.echo.server_port)})
        config = Path(self.folder.name, "slotfront.toml")
        config.write_text(config.read_text().replace('log = "trace"', 'log = "info"'))
        with Serve(config) as serve:
            public, admin = serve.public, f"http://{serve.admin}"
            self.assertEqual(json.loads(self.ask("GET", admin + "/api/log", token=self.TOKEN)[1]), {"filter": "info"})
            self.ask("POST", f"http://{public}/v3/x", b"{}")
            self.assertNotIn("denied", serve.printed())
            wanted = {"filter": "info,slotfront::http=debug"}
            answer = self.ask("PUT", admin + "/api/log", json.dumps(wanted).encode(), self.TOKEN)
            self.assertEqual((answer[0], json.loads(answer[1])), (200, wanted))
            self.ask("POST", f"http://{public}/v3/x", b"{}")
            serve.wait_for("denied")


if __name__ == "__main__":
    unittest.main()

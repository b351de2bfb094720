"""Every query of the dashboards and rules, against a Prometheus that scrapes two gateways under light load: `slotfront dev`,
and one with a quota, a WebSocket, TLS and a shared store.

Each query must be valid and return data. Panels and series that may be empty are listed with a reason.
"""

import base64
import contextlib
import json
import re
import signal
import socket
import ssl
import subprocess
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.parse
from pathlib import Path

from gateway import PATIENCE_S, ROOT, TARGET, Dev, Nodes, Program, Serve, Store, call, free_port, get, keys

RULES = ROOT / "deploy" / "prometheus"
DASHBOARDS = sorted((ROOT / "dashboards").glob("*.json"))

# Scrapes before the first query, so that ranges of ten seconds are full.
SCRAPES = 15
# Grafana's value of $__rate_interval with one scrape per second.
RATE_INTERVAL = "4s"

# Panels without data on a healthy cluster, with the reasons.
MAY_BE_EMPTY_PANELS = {
    "upstreams: Failed attempts": "no attempt fails, and a series exists from its first event on",
}
# Series of alerts and recording rules without data, with the reasons.
MAY_BE_EMPTY_SERIES = {
    'slotfront_requests_total{outcome="error"}': "no call fails",
    'slotfront_upstream_requests_total{result="status_429"}': "no simulated node refuses a call",
    'slotfront_requests_total{method="sendTransaction",outcome="error"}': "no call fails",
    'slotfront_shared_requests_total{result!~"ok|hit|miss|older"}': "the store does not fail",
}


class Load(threading.Thread):
    """About sixty calls per second, of every kind that the panels distinguish, until it is stopped."""

    def __init__(self, url, wallet):
        super().__init__(daemon=True)
        self.url, self.wallet, self.stopped, self.failed = url, wallet, threading.Event(), None
        votes = call(url, "getVoteAccounts", [])[2]["result"]["current"]
        self.accounts = [wallet, *[key for vote in votes for key in (vote["votePubkey"], vote["nodePubkey"])]]

    def run(self):
        try:
            turn = 0
            while not self.stopped.is_set():
                self.round(turn)
                turn += 1
        except Exception as error:  # The test reports it, because the traceback of a thread would go unnoticed.
            self.failed = error

    def round(self, turn):
        one = self.accounts[turn % len(self.accounts)]
        for commitment in ("processed", "confirmed", "finalized"):
            self.call("getAccountInfo", [self.wallet, {"encoding": "base64", "commitment": commitment}])
            self.call("getAccountInfo", [self.wallet, {"encoding": "base58", "commitment": commitment}])
        slot = self.call("getAccountInfo", [one, {"encoding": "base64"}])["result"]["context"]["slot"]
        self.call("getAccountInfo", [one, {"encoding": "base64"}], {"Cache-Control": "no-cache"})
        self.call("getMultipleAccounts", [self.accounts[:3], {"encoding": "base64"}])
        self.call("getTokenAccountBalance", [self.wallet])
        self.call("getFeeForMessage", [self.message()])
        self.call("getBlock", [slot - turn % 8, {"maxSupportedTransactionVersion": 0}])
        self.call("getBlock", [slot - turn % 8, {"maxSupportedTransactionVersion": 0, "transactionDetails": "signatures"}])
        # The block does not exist yet, so the node's error is passed on.
        self.call("getBlock", [slot + 10_000])
        for method, params in (("getVoteAccounts", []), ("getRecentPerformanceSamples", [5]), ("getClusterNodes", [])):
            self.call(method, params)
        self.call("getHealth", [])
        self.call("getSlot", [])
        # The node refuses the signature, so its error is passed on.
        self.call("sendTransaction", [self.transaction(), {"encoding": "base64"}])
        if turn % 10 == 0:
            call(self.url + "x", "getClusterNodes", [])
        self.together([slot - 20 - turn % 60, {"maxSupportedTransactionVersion": 0, "encoding": "base64"}])
        self.stopped.wait(0.1)

    def call(self, method, params, headers=()):
        return call(self.url, method, params, headers)[2]

    def together(self, params):
        """Sends the same call four times at once, so that three calls join the flight of the first."""
        asking = [threading.Thread(target=self.call, args=("getBlock", params), daemon=True) for _ in range(4)]
        for thread in asking:
            thread.start()
        for thread in asking:
            thread.join()

    def message(self):
        """Returns a message with one signer, no instruction and an unknown blockhash."""
        return base64.b64encode(self.message_bytes()).decode()

    def message_bytes(self):
        return bytes([1, 0, 0, 1]) + bytes(range(32)) + bytes(32) + bytes([0])

    def transaction(self):
        return base64.b64encode(bytes([1]) + bytes(range(64)) + self.message_bytes()).decode()

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.stopped.set()
        self.join(PATIENCE_S)


class Limited:
    """A gateway with what `dev` lacks: a key with a quota, a shared store, a certificate, and an open WebSocket with a
    subscription. `call` uses its quota."""

    def __init__(self, folder, node, store):
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "90", "-subj", "/CN=localhost",
                        "-keyout", folder / "key.pem", "-out", folder / "cert.pem"], check=True, capture_output=True)
        (folder / "key.pem").chmod(0o600)
        self.key = keys(folder / "keys.toml", "create", "--name", "customer")
        config = folder / "slotfront.toml"
        config.write_text(
            '[server]\nlisten = "127.0.0.1:0"\nadmin_listen = "127.0.0.1:0"\n'
            'tls = { cert = "cert.pem", key = "key.pem" }\n'
            '[plans.standard]\ndaily_units = 10_000_000\nmonthly_units = 100_000_000\n'
            f'[[upstream]]\nname = "node"\nurl = "{node}"\n'
            f'[shared]\nurl = "redis://127.0.0.1:{store.port}"\n')
        self.serve = Serve(config)
        self.admin = self.serve.admin

    def connect(self):
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        host, port = self.serve.public.split(":")
        return context.wrap_socket(socket.create_connection((host, int(port)), PATIENCE_S))

    def subscribe(self):
        """Opens a WebSocket with a subscription, and keeps it."""
        self.socket = self.connect()
        self.socket.sendall(
            f"GET /v3/{self.key} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode())
        assert b" 101 " in self.socket.recv(4096)
        text = b'{"jsonrpc":"2.0","id":1,"method":"slotSubscribe"}'
        # One whole text frame, masked by zeros.
        self.socket.sendall(bytes([0x81, 0x80 | len(text), 0, 0, 0, 0]) + text)
        assert b'"result":' in self.socket.recv(4096)
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        with contextlib.suppress(OSError):
            while self.socket.recv(4096):
                pass

    def call(self):
        body = '{"jsonrpc":"2.0","id":1,"method":"getClusterNodes"}'
        with self.connect() as connection:
            connection.sendall(
                f"POST /v3/{self.key} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
                f"Content-Length: {len(body)}\r\n\r\n{body}".encode())
            assert b" 200 " in connection.recv(4096)

    def __enter__(self):
        self.serve.__enter__()
        self.serve.ready()
        self.subscribe()
        return self

    def __exit__(self, *_):
        self.socket.close()
        self.serve.end()


def panels():
    """Yields each panel with queries: its dashboard and title, and its targets."""
    for file in DASHBOARDS:
        for panel in json.loads(file.read_text())["panels"]:
            if panel["type"] != "row":
                yield f"{file.stem}: {panel['title']}", panel["targets"]


def annotations():
    """Yields the annotations of the dashboards: dashboard, name and query of each."""
    for file in DASHBOARDS:
        for annotation in json.loads(file.read_text())["annotations"]["list"]:
            yield file.stem, annotation["name"], annotation["expr"]


def variables():
    """Yields the query variables of the dashboards: the dashboard, the name, the metric and the label of each."""
    for file in DASHBOARDS:
        for variable in json.loads(file.read_text())["templating"]["list"]:
            if variable["type"] == "query":
                metric, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"]).groups()
                yield file.stem, variable["name"], metric, label


def filled_in(query, value=".*"):
    """Returns a query as Grafana sends it, with variables set to `value`."""
    query = query.replace("$__rate_interval", RATE_INTERVAL)
    names = {name for _, name, _, _ in variables()}
    return re.sub(r"\$(\w+)", lambda found: value if found.group(1) in names else found.group(), query)


def selectors(expression):
    """Returns the series that an expression reads."""
    found = re.findall(r"[a-zA-Z_:][\w:]*(?:\{[^}]*\})?", re.sub(r"\b(?:by|on) \([^)]*\)", "", expression))
    return [one for one in found if re.match(r"(\w+:)?slotfront_|process_|up\{", one)]


class CommittedFiles(unittest.TestCase):
    def test_dashboards_match_their_source(self):
        check = [TARGET / "dashboards" / "venv" / "bin" / "python", "-B", ROOT / "dashboards" / "generate.py", "--check"]
        done = subprocess.run(check, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr + "run dashboards/generate.py")

    def test_promtool_accepts_config_and_alert_rules(self):
        for arguments in (["check", "config", "prometheus.yml"], ["test", "rules", "rules.test.yml"]):
            done = subprocess.run(["promtool", *arguments], cwd=RULES, capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


class Queries(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        dev = cls.enterClassContext(Dev())
        wallet = dev.wait_for(r'"params":\["(\w+)"').group(1)
        folder = Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        # The committed configuration, with short intervals and a free address.
        (folder / "limited").mkdir()
        limited = cls.enterClassContext(Limited(
            folder / "limited", cls.enterClassContext(Nodes()).url, cls.enterClassContext(Store(folder))))
        text = (RULES / "prometheus.yml").read_text()
        text = text.replace('"127.0.0.1:9899"', f'"{dev.admin}", "{limited.admin}"')
        text = re.sub(r"_interval: \w+", "_interval: 1s", text)
        text = re.sub(r"- (\w+\.rules\.yml)", lambda found: f"- {RULES / found.group(1)}", text)
        Path(folder, "prometheus.yml").write_text(text)
        port = free_port()
        cls.api = f"http://127.0.0.1:{port}/api/v1"
        cls.prometheus = cls.enterClassContext(Program(
            f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
            f"--web.listen-address=127.0.0.1:{port}", program="prometheus"))
        cls.prometheus.wait_for("Server is ready to receive web requests")
        load = cls.enterClassContext(Load(dev.url, wallet))
        deadline, is_reloaded = time.monotonic() + PATIENCE_S, False
        while (scrapes := cls.value("min(count_over_time(slotfront_build_info[1m]))")) < SCRAPES:
            if scrapes >= 5 and not is_reloaded:
                limited.serve.send(signal.SIGHUP)
                is_reloaded = True
            assert time.monotonic() < deadline, cls.prometheus.printed()
            limited.call()
            time.sleep(0.5)
        assert load.is_alive(), load.failed
        # All queries use the same time, so slow queries see the same data. The load continues.
        cls.now = time.time() - 1

    @classmethod
    def ask(cls, path, **parameters):
        """Returns the data of an API answer. Fails on errors and warnings."""
        status, text = get(f"{cls.api}/{path}?{urllib.parse.urlencode(parameters, doseq=True)}")
        answer = json.loads(text)
        assert status == 200 and answer["status"] == "success" and not answer.get("warnings"), text
        return answer["data"]

    @classmethod
    def value(cls, query):
        result = cls.ask("query", query=query)["result"]
        return float(result[0]["value"][1]) if result else 0.0

    def has_data(self, query, table=False):
        """Returns true if a query has a number, over the last seconds or (for a table) now."""
        try:
            if table:
                result = self.ask("query", query=query, time=self.now)["result"]
                samples = [series["value"] for series in result]
            else:
                result = self.ask("query_range", query=query, start=self.now - 8, end=self.now, step=1)["result"]
                samples = [sample for series in result for sample in series["values"]]
        except urllib.error.HTTPError as refused:
            self.fail(f"{query}: {refused.read().decode()}")
        return any(number != "NaN" for _, number in samples)

    def check_empty(self, empty, listed, asked):
        """Checks that empty queries are listed, and that listed queries still exist."""
        self.assertEqual(sorted(empty - set(listed)), [], "without data")
        self.assertEqual(sorted(set(listed) - asked), [], "listed, but not queried")

    def test_every_panel_of_every_dashboard_has_data(self):
        empty, asked, queries = set(), set(), 0
        for name, targets in panels():
            asked.add(name)
            for target in targets:
                queries += 1
                if not self.has_data(filled_in(target["expr"]), target.get("instant", False)):
                    empty.add(name)
        self.assertGreater(queries, 80)
        self.check_empty(empty, MAY_BE_EMPTY_PANELS, asked)

    def test_every_annotation_marks_its_time(self):
        asked = set()
        for dashboard, name, query in annotations():
            asked.add(name)
            # A gateway that has just started and was reloaded has both marks. No alert fires.
            self.assertEqual(self.has_data(filled_in(query)), name != "Alerts", f"{dashboard}: {name}")
        self.assertEqual(asked, {"Restarts", "Reloads", "Alerts"})

    def test_every_dashboard_variable_has_values(self):
        for dashboard, name, metric, label in variables():
            match = filled_in(metric)
            values = self.ask(f"label/{label}/values", **{"match[]": match})
            self.assertTrue(values, f"{dashboard}: ${name}")
            one = f'count({match.split("{")[0]}{{{label}=~"{re.escape(values[0])}"}})'.replace("\\", "\\\\")
            self.assertGreater(self.value(one), 0, one)

    def test_every_rule_is_healthy_and_has_data(self):
        rules = [rule for group in self.ask("rules")["groups"] for rule in group["rules"]]
        self.assertGreaterEqual({rule["type"] for rule in rules}, {"alerting", "recording"})
        empty, asked = set(), set()
        for rule in rules:
            self.assertEqual((rule["health"], rule.get("lastError")), ("ok", None), rule["name"])
            if rule["type"] == "recording":
                self.assertTrue(self.has_data(rule["name"]), rule["name"])
            else:
                # On a slow machine an alert may become pending.
                self.assertNotEqual(rule["state"], "firing", rule["name"])
                self.has_data(rule["query"])
            read = selectors(rule["query"])
            self.assertTrue(read, rule["query"])
            asked.update(read)
            empty.update(series for series in read if not self.has_data(series))
        self.check_empty(empty, MAY_BE_EMPTY_SERIES, asked)

    def test_metrics_are_scraped_quickly(self):
        self.assertEqual(self.value('up{job="slotfront"}'), 1)
        # A debug build may take a tenth of a scrape interval of five seconds.
        self.assertLess(self.value('max_over_time(scrape_duration_seconds{job="slotfront"}[1m])'), 0.5)


if __name__ == "__main__":
    unittest.main()

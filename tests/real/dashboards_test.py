"""Every query of the dashboards and rules, against a Prometheus that scrapes `slotfront dev` under light load.

Each query must be valid and return data. Panels and series that may be empty are listed with a reason.
"""

import base64
import json
import re
import subprocess
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.parse
from pathlib import Path

from gateway import PATIENCE_S, ROOT, TARGET, Dev, Program, call, free_port, get

RULES = ROOT / "deploy" / "prometheus"
DASHBOARDS = sorted((ROOT / "dashboards").glob("*.json"))

# Scrapes before the first query, so that ranges of ten seconds are full.
SCRAPES = 15
# Grafana's value of $__rate_interval with one scrape per second.
RATE_INTERVAL = "4s"

# Panels without data on a healthy cluster, with the reasons.
MAY_BE_EMPTY_PANELS = {
    "overview: WebSockets and subscriptions": "the load opens no WebSocket, and a method has a series from its first on",
    "upstreams: Failed attempts": "no attempt fails, and a series exists from its first event on",
    "cache: Shared store": "`dev` has no shared store",
    "cache: Shared store, time": "`dev` has no shared store",
}
# Series of alerts and recording rules without data, with the reasons.
MAY_BE_EMPTY_SERIES = {
    'slotfront_requests_total{outcome="error"}': "no call fails",
    'slotfront_upstream_requests_total{result="status_429"}': "no simulated node refuses a call",
    'slotfront_shared_requests_total{result!~"ok|hit|miss|older"}': "`dev` has no shared store",
    "slotfront_shared_requests_total": "`dev` has no shared store",
    "slotfront_tls_certificate_expiry_seconds": "`dev` has no certificate",
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
        return base64.b64encode(bytes([1, 0, 0, 1]) + bytes(range(32)) + bytes(32) + bytes([0])).decode()

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.stopped.set()
        self.join(PATIENCE_S)


def panels():
    """Yields each panel with queries: its dashboard and title, and its targets."""
    for file in DASHBOARDS:
        for panel in json.loads(file.read_text())["panels"]:
            if panel["type"] != "row":
                yield f"{file.stem}: {panel['title']}", panel["targets"]


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
        text = (RULES / "prometheus.yml").read_text().replace("127.0.0.1:9899", dev.admin)
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
        deadline = time.monotonic() + PATIENCE_S
        while cls.value("max(count_over_time(slotfront_build_info[1m]))") < SCRAPES:
            assert time.monotonic() < deadline, cls.prometheus.printed()
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

"""Starts the built programs for tests, waits for the lines that they print, and ends them by their process ids.

Each program keeps its log until its end. `GatewayTest` is the base of tests that change the files and keys of a gateway.
"""

import json
import os
import re
import signal
import subprocess
import tempfile
import time
import unittest
import urllib.error
import urllib.request
from pathlib import Path

from ports import free_port

ROOT = Path(__file__).resolve().parents[2]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
BINARY = TARGET / "debug" / "slotfront"
# The longest time for one event. It ends only what hangs.
PATIENCE_S = 60
TOKEN = "an-admin-token-of-tests"


def eventually(holds, otherwise, patience=PATIENCE_S):
    """Waits until `holds` returns a true value, and returns it. `otherwise` is the failure message, or a function of it."""
    deadline = time.monotonic() + patience
    while not (value := holds()):
        if time.monotonic() > deadline:
            raise AssertionError(otherwise() if callable(otherwise) else otherwise)
        time.sleep(0.02)
    return value


class Program:
    """A running command, by default of slotfront. Its output is kept."""

    def __init__(self, *arguments, program=BINARY, **options):
        self.output = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [program, *map(str, arguments)], stdout=self.output, stderr=subprocess.STDOUT, text=True, **options
        )
        self.pid = self.process.pid
        try:
            self.started()
        except BaseException:
            self.end()
            raise

    def started(self):
        """Waits for the lines that this program prints once it serves."""

    def is_running(self):
        return self.process.poll() is None

    def printed(self):
        # The program shares the position of this file. `pread` leaves it, so that no output is overwritten.
        file = self.output.fileno()
        return os.pread(file, os.fstat(file).st_size, 0).decode()

    def wait_for(self, pattern):
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            ended = not self.is_running()
            if found := re.search(pattern, self.printed(), re.M):
                return found
            if ended:
                break
            time.sleep(0.05)
        raise AssertionError(f"{pattern!r} was not printed:\n{self.printed()}")

    def send(self, which):
        """Sends a signal."""
        self.process.send_signal(which)

    def ended(self):
        """Waits for the end of the program, and returns its exit code."""
        return self.process.wait(PATIENCE_S)

    def stop(self, how=signal.SIGTERM):
        """Stops the program with a signal, and returns its exit code. The log stays readable."""
        self.send(how)
        return self.ended()

    def end(self):
        """Kills the program if it still runs, and closes its log."""
        if self.is_running():
            self.process.kill()
            self.process.wait()
        if self.process.stdin:
            self.process.stdin.close()
        self.output.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()


class Nodes(Program):
    """Simulated nodes, by default at free ports. `urls` and `ports` are of all, `url` and `port` of the first."""

    def __init__(self, count=1, port=0, seed=1):
        self.count = count
        super().__init__("sim", "--listen", f"127.0.0.1:{port}", "--nodes", count, "--seed", seed)

    def started(self):
        self.wait_for(rf"node {self.count - 1}: http\S+\n")
        self.urls = re.findall(r"^node \d+: (http://127\.0\.0\.1:\d+)$", self.printed(), re.M)
        self.ports = [int(url.rsplit(":", 1)[1]) for url in self.urls]
        self.url, self.port = self.urls[0], self.ports[0]


class Serve(Program):
    """A gateway with a configuration file. `public` and `admin` are its addresses. No balancer needs time when it stops,
    unless a test says so."""

    def __init__(self, config, unready="0s"):
        super().__init__("serve", "--config", config,
                         env={**os.environ, "SLOTFRONT_SERVER__UNREADY_BEFORE_STOP": unready})

    def started(self):
        self.wait_for("slotfront is running")
        address = r"(127\.0\.0\.1:\d+)"
        self.public, self.admin = self.wait_for(rf"listening on https?://{address}/v3/.*status on http://{address}/").groups()

    def url(self, key):
        return f"http://{self.public}/v3/{key}"

    def ready(self):
        """Waits until the gateway is ready, which needs the first answered probe."""
        ready(f"http://{self.admin}/")
        return self


class Dev(Program):
    """`slotfront dev` at free ports.

    `url` is for calls and `page` is the status page. `address` and `admin` are their hosts with ports.
    """

    def __init__(self):
        # Client libraries need the next port as well, which `free_port` leaves to slotfront.
        super().__init__("dev", "--listen", f"127.0.0.1:{free_port()}", "--admin", "127.0.0.1:0")

    def started(self):
        self.wait_for("Press Ctrl-C to stop")
        self.url = self.wait_for(r"gateway +(http://127\.0\.0\.1:\d+/v3/dev)$").group(1)
        self.page = self.wait_for(r"status +(http://127\.0\.0\.1:\d+/)$").group(1)
        self.address = self.url.split("/")[2]
        self.admin = self.page.split("/")[2]

    def ready(self):
        ready(self.page)
        return self


class Store(Program):
    """A redis-server with its files in a folder, by default at a free port."""

    def __init__(self, folder, port=None):
        self.port = port or free_port()
        super().__init__("--port", self.port, "--save", "", "--dir", folder, program="redis-server")

    def started(self):
        self.wait_for("Ready to accept connections")


def run(*arguments, **options):
    """Runs a command of slotfront to its end. Returns its exit code and output."""
    return subprocess.run([BINARY, *map(str, arguments)], capture_output=True, text=True, **options)


def keys(file, *arguments):
    """Runs a command of `slotfront keys` on a key file. Returns its output, which is the key for `create`."""
    return run("keys", *arguments, "--file", file, check=True).stdout.strip()


def upstreams(ports):
    """Returns the configuration of upstreams at these ports, named node-0 and so on."""
    entry = '[[upstream]]\nname = "node-{}"\nurl = "http://127.0.0.1:{}"\n'
    return "".join(entry.format(i, port) for i, port in enumerate(ports))


def replace(file, text):
    """Replaces a file atomically."""
    beside = file.with_suffix(".new")
    beside.write_text(text)
    beside.rename(file)


def get(url):
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as response:
        return response.status, response.read().decode()


def ready(admin):
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return get(admin + "readyz")
        except urllib.error.HTTPError as refused:
            if refused.code != 503 or time.monotonic() > deadline:
                raise
        time.sleep(0.05)


def call(url, method, params, headers=()):
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json", **dict(headers)})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
            return response.status, response.headers.get("Cache-Status", ""), json.load(response)
    except urllib.error.HTTPError as refused:
        return refused.code, "", json.load(refused)


def metric(admin, series):
    """Returns the value of a series, named as in /metrics without `slotfront_`. Returns 0 if it does not exist."""
    found = re.search(f"^slotfront_{re.escape(series)} (\\S+)$", get(f"http://{admin}/metrics")[1], re.M)
    return float(found.group(1)) if found else 0.0


class GatewayTest(unittest.TestCase):
    """A test with a simulated node, and a folder for a configuration and keys."""

    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory())
        self.config, self.keys_file = Path(self.folder, "slotfront.toml"), Path(self.folder, "keys.toml")
        self.nodes = self.start(Nodes()).ports

    def start(self, program):
        """Ends a program at the end of the test, and returns it."""
        self.addCleanup(program.end)
        return program

    def configuration(self, ports, rps=100000, burst=100000):
        replace(self.config, '[server]\nlisten = "127.0.0.1:0"\nadmin_listen = "127.0.0.1:0"\n'
                             f'[auth]\nadmin_token = "{TOKEN}"\n'
                             f'[plans.standard]\nrps = {rps}\nburst = {burst}\n' + upstreams(ports))

    def keys(self, *arguments):
        return keys(self.keys_file, *arguments)

    def serve(self):
        serve = self.start(Serve(self.config))
        self.public, self.admin = serve.public, serve.admin
        return serve

    def metric(self, series):
        return metric(self.admin, series)

    def counted(self, series, count):
        """Waits until a series has this value."""
        eventually(lambda: self.metric(series) == count, f"{series} never became {count}")

    def used(self, key):
        """Returns the used units of a key in this month."""
        return json.loads(get(f"http://{self.public}/v3/{key}/usage")[1])["month"]["used"]

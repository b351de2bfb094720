"""What the tests of running programs share: starting one, reading what it prints, calling it, ending it."""

import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BINARY = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "debug" / "slotfront"
PATIENCE_S = 30


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Running:
    """A command, of slotfront unless told otherwise, that runs until it is told to stop; what it prints is kept."""

    def __init__(self, *arguments, cwd=None, program=BINARY):
        self.output = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [program, *arguments], stdout=self.output, stderr=subprocess.STDOUT, text=True, cwd=cwd
        )

    def printed(self):
        self.output.seek(0)
        return self.output.read()

    def wait_for(self, pattern):
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if found := re.search(pattern, self.printed(), re.M):
                return found
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        raise AssertionError(f"{pattern!r} was not printed:\n{self.printed()}")

    def stop(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        return self.process.wait(PATIENCE_S)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.output.close()


def get(url):
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as response:
        return response.status, response.read().decode()


def ready(admin):
    """Waits until the first probe has come back: until then a gateway is up, and not ready."""
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

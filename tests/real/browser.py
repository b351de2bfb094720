"""A headless chromium (Debian package) behind chromedriver, controlled by the W3C WebDriver protocol over plain HTTP.

It has the commands that the tests of the status page need. Every wait has a limit.
"""

import base64
import contextlib
import json
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

from gateway import Program
from ports import free_port

ANSWER_S = 60
# Options for a container without a sandbox, and without traffic to other hosts.
ARGUMENTS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
    "--force-color-profile=srgb", "--hide-scrollbars", "--lang=en",
]
KEYS = {"Tab": "\ue004", "Escape": "\ue00c", "Enter": "\ue007", "ArrowLeft": "\ue012", "ArrowRight": "\ue014",
        "Home": "\ue011", "End": "\ue010", "Space": " "}


class Browser:
    """A browser with one window. It ends with its `with` block."""

    def __init__(self):
        self.profile = tempfile.TemporaryDirectory(prefix="page-test-")
        self.driver, self.session = Program(f"--port={free_port()}", program="chromedriver"), None
        try:
            port = self.driver.wait_for(r"started successfully on port (\d+)").group(1)
            self.address = f"http://127.0.0.1:{port}"
            made = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": {
                "goog:chromeOptions": {
                    "binary": shutil.which("chromium"),
                    "args": [*ARGUMENTS, f"--user-data-dir={self.profile.name}"],
                },
                "goog:loggingPrefs": {"browser": "ALL"},
                "timeouts": {"script": 30_000, "pageLoad": 30_000},
            }}})
            self.session = f"/session/{made['sessionId']}"
        except BaseException:
            self.close()
            raise

    def _ask(self, verb, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.address + path, data, {"Content-Type": "application/json"}, method=verb)
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_S) as response:
                return json.load(response)["value"]
        except urllib.error.HTTPError as refused:
            value = json.load(refused)["value"]
            raise AssertionError(f"{verb} {path}: {value['error']}: {value['message']}") from None

    def _post(self, path, **body):
        return self._ask("POST", self.session + path, body)

    def devtools(self, command, **parameters):
        """Sends a DevTools command, for functions that WebDriver lacks."""
        return self._post("/goog/cdp/execute", cmd=command, params=parameters)

    def open(self, url):
        self._post("/url", url=url)

    def run(self, script, *arguments):
        """Runs a script and returns its value. If the value is a promise, waits for it."""
        return self._post("/execute/sync", script=script, args=list(arguments))

    def until(self, script, *arguments, within, what):
        """Waits until `script` returns a true value. Returns the value and the seconds that it took."""
        start = time.monotonic()
        while (passed := time.monotonic() - start) < within:
            if value := self.run(script, *arguments):
                return value, passed
            time.sleep(0.05)
        shown = self.run("return document.body ? document.body.innerText : location.href")
        raise AssertionError(f"{what}: not within {within} s; the page shows:\n{shown}")

    def press(self, *names):
        """Presses keys one after the other. Their names are those of keyboard events."""
        actions = [{"type": kind, "value": KEYS[name]} for name in names for kind in ("keyDown", "keyUp")]
        self._post("/actions", actions=[{"type": "key", "id": "keyboard", "actions": actions}])

    def width(self, pixels, height=900):
        """Sets the size of the viewport, which may be narrower than any desktop window."""
        self.devtools("Emulation.setDeviceMetricsOverride", width=pixels, height=height, deviceScaleFactor=1, mobile=False)

    def prefers(self, **features):
        """Sets the reader's preferences, such as `prefers(color_scheme="dark", reduced_motion="reduce")`."""
        named = [{"name": "prefers-" + name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.devtools("Emulation.setEmulatedMedia", features=named)

    def screenshot(self, path):
        """Writes a PNG file of the whole page."""
        shot = self.devtools("Page.captureScreenshot", captureBeyondViewport=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def logged_problems(self):
        """Returns the warnings and errors in the browser's log since the last call."""
        lines = self._post("/se/log", type="browser")
        return [f"{line['level']}: {line['message']}" for line in lines if line["level"] in ("WARNING", "SEVERE")]

    def close(self):
        if self.session:
            try:
                self._ask("DELETE", self.session)
            except (AssertionError, OSError):
                pass  # The session may be closed already. The driver is ended below.
        with self.driver, contextlib.suppress(subprocess.TimeoutExpired):
            self.driver.stop()
        self.profile.cleanup()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

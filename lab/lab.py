"""Helpers of the measurements in this folder: servers pinned to cores, loads, and figures from /proc and /metrics."""

import json
import os
import pathlib
import platform
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests" / "real"))
from ports import free_port  # noqa: E402

SERVER_CORE, LOAD_CORE = 0, 1


def install(command, package):
    """Installs a Debian package if its command is missing."""
    if not shutil.which(command):
        root = [] if os.geteuid() == 0 else ["sudo"]
        subprocess.run([*root, "apt-get", "update", "-q"], check=True, stdout=subprocess.DEVNULL)
        subprocess.run([*root, "apt-get", "install", "-y", "-q", package], check=True, stdout=subprocess.DEVNULL)


def require_two_cores():
    if (os.cpu_count() or 1) < 2:
        sys.exit("this measurement needs two cores: one for the servers, one for the load")


def programs(target, *examples, slotfront=True):
    """Returns the folder with the built programs. Builds slotfront and the examples for production if `target` is None."""
    if target:
        return target.resolve()
    build = ["cargo", "build", "--locked", "--profile", "dist"]
    if slotfront:
        # Built separately, because examples turn on features of the dependencies that production builds lack.
        subprocess.run([*build, "--bin", "slotfront"], cwd=ROOT, check=True)
    names = [word for name in examples for word in ("--example", name)]
    subprocess.run([*build, "--package", "slotfront-lab", *names], cwd=ROOT, check=True)
    return ROOT / "target" / "dist"


def add_target_options(parser):
    """Adds the options for the folder of built programs and for an older build to compare with."""
    parser.add_argument("--target", type=pathlib.Path, help="a folder with the built programs (default: build them)")
    parser.add_argument(
        "--against", type=pathlib.Path, metavar="FOLDER",
        help="a folder with the program `slotfront` of an older build to measure in turns with the new one",
    )


def builds(target, against):
    """Returns the folders of the builds to measure, by their names in the tables."""
    return {"slotfront": target} | ({"slotfront, the older build": against.resolve()} if against else {})


def machine():
    """Describes the machine and the commit in one line."""
    model = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return f"{model.group(1) if model else platform.machine()}, {os.cpu_count()} cores, commit {commit.stdout.strip()}"


def make_key(slotfront, file, name="measure"):
    """Creates a key of the plan `standard` in a key file, and returns it."""
    command = [slotfront, "keys", "create", "--file", file, "--name", name]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


class Servers:
    """Server processes, each pinned to a core. They share a log file, and run until `stop`."""

    def __init__(self, folder):
        self.folder, self.running = pathlib.Path(folder), []

    def start(self, core, command, env=None):
        with open(self.folder / "servers.log", "ab") as log:
            process = subprocess.Popen(
                ["taskset", "-c", str(core), *map(str, command)],
                stdout=log, stderr=log, cwd=self.folder, env={**os.environ, **(env or {})},
            )
        self.running.append(process)
        return process

    def stop(self):
        for process in self.running:
            process.terminate()
        for process in self.running:
            process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def node(self, target):
        """Starts a yardstick node and returns its port."""
        port = free_port()
        self.start(LOAD_CORE, [target / "examples" / "yardsticks", "node", port])
        await_port(port)
        return port

    def cluster(self, target, nodes, *arguments):
        """Starts a simulated cluster on the core of the load, and returns the ports of its nodes."""
        self.start(LOAD_CORE, [target / "slotfront", "sim", "--listen", "127.0.0.1:0", "--nodes", nodes, *arguments])
        for _ in range(100):
            found = re.findall(r"^node \d+: http://127.0.0.1:(\d+)$", (self.folder / "servers.log").read_text(), re.M)
            if len(found) == nodes:
                return found
            time.sleep(0.1)
        sys.exit("the simulated cluster did not print its addresses")


class Gateway:
    """A slotfront process in a new folder, in front of nodes. It has one key."""

    def __init__(self, servers, target, name, nodes, config="", cache="", env=None, server="", plan=""):
        folder = servers.folder / name
        folder.mkdir()
        self.port, self.admin, self.nodes = free_port(), free_port(), [int(node) for node in nodes]
        upstreams = "".join(f'[[upstream]]\nurl = "http://127.0.0.1:{node}"\n' for node in nodes)
        (folder / "slotfront.toml").write_text(f"""
[server]
listen = "127.0.0.1:{self.port}"
admin_listen = "127.0.0.1:{self.admin}"
{server}
[plans.standard]
rps = 1000000
burst = 1000000
{plan}
{upstreams}
[telemetry]
log = "warn"
[cache]
{cache}
{config}
""")
        self.key = make_key(target / "slotfront", folder / "keys.toml")
        command = [target / "slotfront", "serve", "--config", folder / "slotfront.toml"]
        self.process = servers.start(SERVER_CORE, command, {"SLOTFRONT_SERVER__UNREADY_BEFORE_STOP": "0s", **(env or {})})
        self.url = f"http://127.0.0.1:{self.port}/v3/{self.key}"
        await_port(self.port, self.process)

    def metrics(self):
        """Returns the value of every metric sample, by its name with labels."""
        text = urllib.request.urlopen(f"http://127.0.0.1:{self.admin}/metrics").read().decode()
        lines = (line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#"))
        return {name: float(value) for name, value in lines}

    def resident(self):
        """Returns the resident memory and its peak, in bytes."""
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return [int(re.search(rf"{field}:\s*(\d+) kB", status).group(1)) * 1024 for field in ("VmRSS", "VmHWM")]

    def descriptors(self):
        """Returns the number of open files and sockets, without the pooled connections to the nodes."""
        waiting = set()
        for line in pathlib.Path(f"/proc/{self.process.pid}/net/tcp").read_text().splitlines()[1:]:
            fields = line.split()
            if int(fields[2].split(":")[1], 16) in self.nodes:
                waiting.add(f"socket:[{fields[9]}]")
        folder = f"/proc/{self.process.pid}/fd"
        return sum(os.readlink(f"{folder}/{name}") not in waiting for name in os.listdir(folder))

    def threads(self):
        return len(os.listdir(f"/proc/{self.process.pid}/task"))


def began(metrics):
    """Returns how often following began anew, by reason."""
    name = "slotfront_follow_restarts_total{reason="
    return {sample.split('"')[1]: int(value) for sample, value in metrics.items() if sample.startswith(name) and value}


def await_port(port, process=None):
    for _ in range(600):
        if process and process.poll() is not None:
            sys.exit(f"a server ended with {process.returncode}: {' '.join(process.args)}")
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            time.sleep(0.1)
    sys.exit(f"nothing listens on port {port}")


def node_calls(port):
    """Returns the number of calls for accounts and lists that a yardstick node has answered."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}", b'{"jsonrpc":"2.0","id":1,"method":"calls"}')
    return json.load(urllib.request.urlopen(request))["result"]


def load_command(target, url, connections, *arguments):
    """Returns the command that runs the example `load` on the core of the load."""
    program = target / "examples" / "load"
    return ["taskset", "-c", LOAD_CORE, program, url, "--connections", connections, *arguments]


def load(target, url, connections, *arguments):
    """Runs the example `load` to its end, and returns the figures that it printed, by name."""
    command = [str(word) for word in load_command(target, url, connections, *arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"the load failed: {done.stderr[:1000]}")
    return read_load(done.stdout)


def read_load(text):
    return {name: float(value) for name, value in (line.split() for line in text.splitlines())}


# Addresses are 32 bytes in base58.
ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"


def address(i):
    number, text = int.from_bytes((0x40000000 + i).to_bytes(4, "big") * 8, "big"), ""
    while number:
        number, digit = divmod(number, 58)
        text = ALPHABET[digit] + text
    return text


def call(i):
    params = [address(i), {"encoding": "base64", "commitment": "finalized"}]
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": "getAccountInfo", "params": params})


def fill(name, url, accounts):
    """Waits for the server, sends each call once, and checks the length of each answer."""
    for i in range(accounts):
        request = urllib.request.Request(
            url, call(i).encode(), {"content-type": "application/json"}
        )
        for attempt in range(100):
            try:
                body = urllib.request.urlopen(request).read()
                break
            except urllib.error.HTTPError as refused:
                # Proxies answer with 5xx until the node listens.
                if refused.code < 500 or attempt == 99:
                    sys.exit(f"{name} answers {refused.code}: {refused.read(300)!r}")
            except OSError:
                if attempt == 99:
                    raise
            time.sleep(0.1)
        if len(body) != 247:
            sys.exit(f"{name} answers {len(body)} bytes: {body[:300]!r}")


def hits(folder, url, seconds, connections, calls):
    """Repeats the calls for some seconds. Returns calls per second and the p99 in microseconds."""
    script = folder / "calls.lua"
    if not script.exists():
        bodies = ",\n".join(f"'{call}'" for call in calls)
        script.write_text(f"""
local bodies = {{ {bodies} }}
local requests, turn = {{}}, 0
function init()
  for i, body in ipairs(bodies) do
    requests[i] = wrk.format("POST", nil, {{ ["content-type"] = "application/json" }}, body)
  end
end
function request()
  turn = turn % #requests + 1
  return requests[turn]
end
function done(summary, latency)
  local errors = summary.errors
  local failed = errors.connect + errors.read + errors.write + errors.status + errors.timeout
  print(string.format("RESULT %f %f %d", summary.requests / summary.duration * 1e6, latency:percentile(99), failed))
end
""")
    command = ["taskset", "-c", str(LOAD_CORE), "wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "-s", script, url]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    rate, p99, failed = re.search(r"RESULT (\S+) (\S+) (\d+)", output).groups()
    if int(failed):
        sys.exit(f"{failed} of the calls to {url.split('/v3/')[0]} failed:\n{output}")
    return float(rate), float(p99)

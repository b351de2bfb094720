"""Measures the hits of a full cache: most calls request one of a thousand hot accounts, and some request a new account.

Each contender has a cache of the same size. Each has its own node, whose call counter gives the hit ratio. The cache is
first filled with other accounts of twice its capacity, so each new account causes an eviction.
"""

import re
import statistics
import subprocess
import sys

import lab

CAPACITY_MIB = 64
# The bytes that slotfront counts for an answer of 247 bytes.
ENTRY_BYTES = 530
FILL = 2 * CAPACITY_MIB * 1024 * 1024 // ENTRY_BYTES
# The number of hot accounts, and the number of calls for each call that requests a new account.
HOT, NEW_EVERY = 1_000, 100
# A round with a lower hit ratio does not count, because it measures misses.
LEAST_RATIO = 0.97

# The addresses have the format of lab/src/sized.rs. Numbers rise from the filling accounts to the hot ones to the new ones.
CALLS = r"""
local letters = { ["0"]="a", ["1"]="b", ["2"]="c", ["3"]="d", ["4"]="e", ["5"]="f", ["6"]="g", ["7"]="h", ["8"]="i", ["9"]="j" }
local hot, hot_count, every, new, turn, head, tail, path = 0, 0, 0, 0, 0
function init(args)
  hot, hot_count, every, new = tonumber(args[1]), tonumber(args[2]), tonumber(args[3]), tonumber(args[4])
  local before = '{"jsonrpc":"2.0","id":1,"method":"getAccountInfo","params":["Sz'
  tail = ("z"):rep(23) .. '",{"encoding":"base64","commitment":"finalized"}]}'
  head = "POST " .. args[5] .. " HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: "
    .. #before + 18 + #tail .. "\r\n\r\n" .. before
end
function request()
  turn = turn + 1
  local number = hot + turn % hot_count
  if every > 0 and turn % every == 0 then number, new = new, new + 1 end
  return head .. ("000003%012d"):format(number):gsub("%d", letters) .. tail
end
function done(summary, latency)
  local errors = summary.errors
  local failed = errors.connect + errors.read + errors.write + errors.status + errors.timeout
  print(string.format("RESULT %f %d %f %d", summary.requests / summary.duration * 1e6, summary.requests, latency:percentile(99), failed))
end
"""


class Contender:
    """A server with a full cache, in front of its own node."""

    def __init__(self, name, port, path, node):
        self.name, self.port, self.path, self.node = name, port, path, node
        self.next_new, self.rounds, self.ratios = FILL + HOT, [], []

    def fill(self, target):
        """Fills the cache with twice its capacity."""
        lab.load(target, f"http://127.0.0.1:{self.port}{self.path}", 16, "fill", "--entries", FILL)

    def warm(self, script, connections):
        """Requests the hot accounts until nearly all calls are hits. A busy machine needs more than one second."""
        for _ in range(30):
            if self.ask(script, 1, connections, every=0) >= LEAST_RATIO:
                return
        sys.exit(f"{self.name} does not keep the hot accounts in its cache")

    def ask(self, script, seconds, connections, every=NEW_EVERY):
        """Measures one round and returns its hit ratio. The round counts if the ratio is at least LEAST_RATIO."""
        before = lab.node_calls(self.node)
        command = ["taskset", "-c", lab.LOAD_CORE, "wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "-s", script]
        command += [f"http://127.0.0.1:{self.port}/", "--", FILL, HOT, every, self.next_new, self.path]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
        found = re.search(r"RESULT (\S+) (\d+) (\S+) (\d+)", done.stdout)
        if done.returncode or not found:
            sys.exit(f"wrk failed: {done.stdout}{done.stderr}")
        rate, calls, p99, failed = map(float, found.groups())
        if failed:
            sys.exit(f"{self.name}: {failed:.0f} of the calls failed:\n{done.stdout}")
        # wrk does not count the calls that were still open when it ended, one on each connection.
        self.next_new += int(calls) // NEW_EVERY + connections
        ratio = 1 - (lab.node_calls(self.node) - before) / calls
        if every:
            self.ratios.append(ratio)
            if ratio >= LEAST_RATIO:
                self.rounds.append((rate, p99))
        return ratio

    def hit_ratio(self):
        return statistics.median(self.ratios)

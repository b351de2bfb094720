"""Hits of a cache that is full: a thousand accounts that everybody asks for, and now and then a new one.

Each contender has a cache of the same size and a node of its own, whose calls tell the hit ratio. The cache is filled with
twice its capacity of other accounts, so that each new account makes it evict.
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
# A thousand accounts that are asked for all the time, and one call in so many that asks for a new one.
HOT, NEW_EVERY = 1_000, 100
# A round with fewer hits measures misses.
LEAST_RATIO = 0.97

# The addresses are those of lab/src/sized.rs. The hot ones follow those that filled the cache, and the new ones them.
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
    """One server with a full cache, in front of a node of its own."""

    def __init__(self, name, port, path, node):
        self.name, self.port, self.path, self.node = name, port, path, node
        self.next_new, self.rounds, self.ratios = FILL + HOT, [], []

    def fill(self, target):
        """Fills the cache with twice its capacity."""
        lab.load(target, f"http://127.0.0.1:{self.port}{self.path}", 16, "fill", "--entries", FILL, "--list", 1)

    def warm(self, script, connections):
        """Asks for the hot accounts until nearly all calls are hits; a busy machine takes more than a second for that."""
        for _ in range(30):
            if self.ask(script, 1, connections, every=0) >= LEAST_RATIO:
                return
        sys.exit(f"{self.name} does not keep the accounts that it is asked for all the time")

    def ask(self, script, seconds, connections, every=NEW_EVERY):
        """One round, which counts if nearly all of its calls were hits; returns their ratio."""
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
        # Calls of connections that were cut at the end are not counted as answered.
        self.next_new += int(calls) // NEW_EVERY + connections
        ratio = 1 - (lab.node_calls(self.node) - before) / calls
        if every:
            self.ratios.append(ratio)
            if ratio >= LEAST_RATIO:
                self.rounds.append((rate, p99))
        return ratio

    def hit_ratio(self):
        return statistics.median(self.ratios)

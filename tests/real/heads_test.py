"""The built `slotfront` and request heads that are short on the wire and long in memory."""

import re
import signal
import unittest
from pathlib import Path

import h2c
from gateway import GatewayTest, call

MIB = 1 << 20
CONNECTIONS, STREAMS = 16, 120
# A name of one byte, an empty value and 32 for the entry: what HTTP/2 counts for a field (RFC 9113, 6.5.2).
FIELD_BYTES = 33


def resident(serve, which="VmRSS"):
    status = Path(f"/proc/{serve.pid}/status").read_text()
    return int(re.search(rf"^{which}:\s+(\d+) kB", status, re.M).group(1)) * 1024


class Heads(GatewayTest):
    def setUp(self):
        super().setUp()
        self.key = self.keys("create", "--name", "a")
        self.configuration(self.nodes)

    def taken_by(self, list_bytes):
        """How much memory calls without a good key and without a body take, each with a header list of so many bytes."""
        serve = self.serve()
        url = serve.url(self.key)
        self.assertEqual(call(url, "getClusterNodes", [])[0], 200)
        fields = (list_bytes - 300) // FIELD_BYTES
        head = h2c.head("/v3/x")
        # The field goes into the connection's table once, and is named by one byte from then on.
        blocks = [h2c.added(b"a", b"") + head + h2c.indexed(h2c.DYNAMIC) * (fields - 1)]
        blocks += [head + h2c.indexed(h2c.DYNAMIC) * fields] * (STREAMS - 1)
        before = resident(serve)
        for _ in range(CONNECTIONS):
            connection = h2c.Connection(self.public)
            self.addCleanup(connection.close)
            connection.send(*(h2c.frame(h2c.HEADERS, h2c.END_HEADERS, connection.next_stream(), block)
                              for block in blocks))
            connection.settled()
        taken = resident(serve, "VmHWM") - before
        self.assertEqual(call(url, "getClusterNodes", [])[0], 200)
        # Without a drain: what is left open would be waited for.
        serve.stop(signal.SIGKILL)
        return taken

    def test_heads_take_no_memory_while_bodies_are_awaited(self):
        for list_bytes in (64 * 1024, 16 * 1024, 8 * 1024):
            with self.subTest(list_bytes=list_bytes):
                taken = self.taken_by(list_bytes)
                self.assertLess(taken, 16 * MIB, f"{taken / MIB:.1f} MiB")


if __name__ == "__main__":
    unittest.main()

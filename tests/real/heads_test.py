"""Memory of the built `slotfront` for HTTP/2 request heads that are short on the wire and long in memory."""

import re
import signal
import unittest
from pathlib import Path

import h2c
from gateway import GatewayTest, call

MIB = 1 << 20
CONNECTIONS, STREAMS = 16, 120
# The size of a field by RFC 9113, 6.5.2: a name of one byte, an empty value, and 32 bytes.
FIELD_BYTES = 33


def resident(serve, which="VmRSS"):
    status = Path(f"/proc/{serve.pid}/status").read_text()
    return int(re.search(rf"^{which}:\s+(\d+) kB", status, re.M).group(1)) * 1024


class Heads(GatewayTest):
    def setUp(self):
        super().setUp()
        self.key = self.keys("create", "--name", "a")
        self.configuration(self.nodes)

    def memory_of_heads(self, list_bytes):
        """Returns the memory of calls with an unknown key and without a body, each with a header list of this size."""
        serve = self.serve()
        url = serve.url(self.key)
        self.assertEqual(call(url, "getClusterNodes", [])[0], 200)
        fields = (list_bytes - 300) // FIELD_BYTES
        head = h2c.head("/v3/x")
        # The field is added to the dynamic table once. One byte refers to it afterwards.
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
        # A graceful stop would wait for the open calls.
        serve.stop(signal.SIGKILL)
        return taken

    def test_awaiting_bodies_keeps_no_heads_in_memory(self):
        for list_bytes in (64 * 1024, 16 * 1024, 8 * 1024):
            with self.subTest(list_bytes=list_bytes):
                taken = self.memory_of_heads(list_bytes)
                self.assertLess(taken, 16 * MIB, f"{taken / MIB:.1f} MiB")


if __name__ == "__main__":
    unittest.main()

"""The memory that one client address without a key makes the built `slotfront` keep."""

import re
import signal
import socket
import unittest
from pathlib import Path

import h2c
from gateway import GatewayTest, call

MIB = 1 << 20
# What the product promises for one address.
MOST = 16 * MIB
# As many as the usual limit of open files allows, and over HTTP/2 half as many.
CONNECTIONS, STREAMS, FRAME = 600, 16, 16 * 1024
HEAD = "POST /v3/nobody HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"


def resident(serve, which="VmRSS"):
    status = Path(f"/proc/{serve.pid}/status").read_text()
    return int(re.search(rf"^{which}:\s+(\d+) kB", status, re.M).group(1)) * 1024


class Strangers(GatewayTest):
    def setUp(self):
        super().setUp()
        self.key = self.keys("create", "--name", "a")

    def over_http1(self, request):
        """Sends bytes on many connections, and leaves them open."""
        host, port = self.public.split(":")
        for _ in range(CONNECTIONS):
            connection = socket.create_connection((host, int(port)))
            self.addCleanup(connection.close)
            try:
                connection.sendall(request)
            except OSError:
                # A connection that has to make room for the next ones may end already.
                pass

    def over_http2(self):
        """Sends bodies without an end on many connections."""
        for _ in range(CONNECTIONS // 2):
            connection = h2c.Connection(self.public)
            self.addCleanup(connection.close)
            try:
                for _ in range(STREAMS):
                    stream = connection.next_stream()
                    connection.send(h2c.frame(h2c.HEADERS, h2c.END_HEADERS, stream, h2c.head("/v3/nobody")))
                    connection.send(h2c.frame(h2c.DATA, 0, stream, b" " * FRAME))
                    connection.settled()
            except OSError:
                pass

    def check(self, name, flood, settings):
        self.configuration(self.nodes)
        self.config.write_text(self.config.read_text().replace("[server]\n", "[server]\n" + settings, 1))
        serve = self.serve()
        try:
            url = serve.url(self.key)
            self.assertEqual(call(url, "getClusterNodes", [])[0], 200)
            before = resident(serve)
            flood()
            taken = resident(serve, "VmHWM") - before
            print(f"\n{name}: {taken / MIB:.1f} MiB")
            self.assertLess(taken, MOST)
            # The same address with a key is served meanwhile.
            self.assertEqual(call(url, "getClusterNodes", [])[0], 200)
        finally:
            # A graceful stop would wait for the open requests.
            serve.stop(signal.SIGKILL)

    def test_strangers_make_it_keep_little(self):
        half = b" " * 49_000
        for name, flood, settings in [
            ("bodies over HTTP/2", self.over_http2, ""),
            ("bodies", lambda: self.over_http1(f"{HEAD}content-length: 49001\r\n\r\n".encode() + half), ""),
            ("long bodies", lambda: self.over_http1(
                f"{HEAD}content-length: 1000000\r\n\r\n".encode() + 10 * half), 'max_body = "16MiB"\n'),
            ("parts of heads", lambda: self.over_http1((HEAD + "x: " + 15_000 * "x").encode()), ""),
        ]:
            with self.subTest(name):
                self.check(name, flood, settings)


if __name__ == "__main__":
    unittest.main()

"""The cost of the OpenRPC document, which anybody can request without a key."""

import gzip
import http.client
import json
import os
import unittest
from pathlib import Path

from gateway import PATIENCE_S, Dev

TIMES = 300


def processor_s(pid):
    """Returns the processor time of a process in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Document(unittest.TestCase):
    def test_openrpc_document_is_rendered_and_compressed_once(self):
        with Dev() as dev:
            connection = http.client.HTTPConnection(dev.ready().address, timeout=PATIENCE_S)
            self.addCleanup(connection.close)

            def get(path, coding):
                connection.request("GET", path, headers={"Accept-Encoding": coding})
                answer = connection.getresponse()
                self.assertEqual(answer.status, 200)
                return answer.headers, answer.read()

            def cost(path, coding):
                get(path, coding)
                before = processor_s(dev.pid)
                for _ in range(TIMES):
                    get(path, coding)
                return processor_s(dev.pid) - before

            health = cost("/health", "identity")
            for coding in ("identity", "gzip", "zstd"):
                taken = cost("/openrpc.json", coding)
                self.assertLess(taken, 4 * health + 0.2, f"{coding}, where {TIMES} of /health take {health:.2f} s")
            head, plain = get("/openrpc.json", "identity")
            self.assertEqual((head["Content-Encoding"], head["Vary"]), (None, "accept-encoding"))
            head, packed = get("/openrpc.json", "gzip")
            self.assertEqual((head["Content-Encoding"], head["Vary"]), ("gzip", "accept-encoding"))
            self.assertEqual(gzip.decompress(packed), plain)
            self.assertTrue(json.loads(plain)["openrpc"].startswith("1."))


if __name__ == "__main__":
    unittest.main()

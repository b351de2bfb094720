"""The cost of the OpenRPC document, which anybody can request without a key."""

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
    def test_openrpc_document_is_rendered_once(self):
        with Dev() as dev:
            connection = http.client.HTTPConnection(dev.ready().address, timeout=PATIENCE_S)
            self.addCleanup(connection.close)

            def get(path):
                connection.request("GET", path)
                answer = connection.getresponse()
                self.assertEqual(answer.status, 200)
                return answer.read()

            def cost(path):
                get(path)
                before = processor_s(dev.pid)
                for _ in range(TIMES):
                    get(path)
                return processor_s(dev.pid) - before

            health = cost("/health")
            taken = cost("/openrpc.json")
            self.assertLess(taken, 4 * health + 0.2, f"where {TIMES} of /health take {health:.2f} s")
            text = get("/openrpc.json")
            self.assertTrue(json.loads(text)["openrpc"].startswith("1."))


if __name__ == "__main__":
    unittest.main()

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

            def get(path, **headers):
                connection.request("GET", path, headers=headers)
                answer = connection.getresponse()
                return answer.status, answer.getheader("etag"), answer.read()

            def cost(path):
                get(path)
                before = processor_s(dev.pid)
                statuses = {get(path)[0] for _ in range(TIMES)}
                return processor_s(dev.pid) - before, statuses

            status, tag, text = get("/openrpc.json")
            self.assertTrue(status == 200 and json.loads(text)["openrpc"].startswith("1."))
            health, _ = cost("/health")
            taken, statuses = cost("/openrpc.json")
            self.assertLess(taken, 4 * health + 0.2, f"where {TIMES} of /health take {health:.2f} s")
            self.assertEqual(statuses, {200, 429})
            self.assertEqual(get("/openrpc.json", **{"If-None-Match": tag})[::2], (304, b""))


if __name__ == "__main__":
    unittest.main()

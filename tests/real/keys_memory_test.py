"""The memory that changes of the key file take in the built `slotfront`."""

import hashlib
import json
import re
import threading
import unittest
import urllib.request
from pathlib import Path

from gateway import PATIENCE_S, TOKEN, GatewayTest

# Enough keys for the parsed file to take many MiB. What following takes meanwhile is less than the allowed rest.
KEYS, AT_ONCE, MAX_MORE_MIB = 3_000, 24, 40
ENTRY = '[[key]]\nid = "key-{0}"\nname = "customer {0}"\nplan = "standard"\nsha256 = "{1}"\ncreated = "2026-11-01T00:00:00Z"\n\n'


def resident_mib(serve):
    return int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{serve.pid}/status").read_text())[1]) / 1024


class Memory(GatewayTest):
    def create(self):
        head = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
        request = urllib.request.Request(f"http://{self.admin}/api/keys", json.dumps({"name": "x"}).encode(), head)
        with urllib.request.urlopen(request, timeout=10 * PATIENCE_S) as answer:
            return json.load(answer)["in_force"]

    def test_creations_at_once_keep_the_memory_of_one(self):
        self.keys_file.write_text("".join(ENTRY.format(i, hashlib.sha256(str(i).encode()).hexdigest()) for i in range(KEYS)))
        self.configuration(self.nodes)
        serve = self.serve()
        self.assertTrue(self.create())
        one, made = resident_mib(serve), []
        threads = [threading.Thread(target=lambda: made.append(self.create())) for _ in range(AT_ONCE)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(made, [True] * AT_ONCE)
        self.assertLess(resident_mib(serve) - one, MAX_MORE_MIB)
        self.assertEqual(self.keys_file.read_text().count("[[key]]"), KEYS + 1 + AT_ONCE, "none is lost")


if __name__ == "__main__":
    unittest.main()

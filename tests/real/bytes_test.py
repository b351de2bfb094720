"""The memory and the processor time that answers take, measured at the built program from outside."""

import json
import os
import socket
import threading
import unittest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from gateway import PATIENCE_S, GatewayTest, eventually

ACCOUNTS = 15
SPACE = 64 * 1024
# Addresses in base58: 31 ones and another digit.
KEYS = ["1" * 31 + digit for digit in "123456789ABCDEF"]
SLOT = 1000
MIB = 1 << 20
# Long texts are compressed at a low priority, with about a tenth of the time of a busy core.
COMPRESSION_S = 10 * PATIENCE_S


def account():
    data = "A" * (SPACE // 3 * 4) + "AA=="
    return {"data": [data, "base64"], "executable": False, "lamports": 1, "owner": "1" * 32, "rentEpoch": 0,
            "space": SPACE}


def answer(method, params):
    if method == "getMultipleAccounts":
        return {"context": {"apiVersion": "4.0.0", "slot": SLOT}, "value": [account()] * len(params[0])}
    if method == "getBlock":
        # The texts compress about as well as real blocks.
        transactions = [{"signature": f"{i * 7919:x}" * 12, "meta": {"fee": 5000 + i}} for i in range(50_000)]
        return {"blockhash": "1" * 32, "previousBlockhash": "1" * 32, "parentSlot": params[0] - 1,
                "blockHeight": params[0], "blockTime": 1, "transactions": transactions}
    return {"getVersion": {"solana-core": "4.0.0", "feature-set": 1}, "getGenesisHash": "1" * 32,
            "getFirstAvailableBlock": 0, "getSlot": SLOT, "getHealth": "ok"}[method]


class Node(BaseHTTPRequestHandler):
    """A node with long accounts and a long block, always at the same slot."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        call = json.loads(self.rfile.read(int(self.headers["content-length"])))
        result = answer(call["method"], call.get("params", []))
        body = json.dumps({"jsonrpc": "2.0", "result": result, "id": call["id"]}, separators=(",", ":")).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Bytes(GatewayTest):
    """A test with a gateway in front of a node with long answers."""

    def setUp(self):
        super().setUp()
        node = ThreadingHTTPServer(("127.0.0.1", 0), Node)
        self.addCleanup(node.server_close)
        self.addCleanup(node.shutdown)
        threading.Thread(target=node.serve_forever, daemon=True).start()
        self.node = node.server_address[1]

    def gateway(self, settings):
        """Starts a gateway in front of the node with long answers, and returns a key."""
        self.configuration([self.node])
        # On a busy machine, an answer may wait long until its test reads it.
        settings += 'write_timeout = "10m"\n'
        text = self.config.read_text().replace("[server]\n", "[server]\n" + settings, 1)
        # The slot of the node never changes, so only the TTL limits freshness.
        text += '[cache.ttl]\naccount = { finalized = "1h" }\n'
        self.config.write_text(text)
        key, self.other = self.keys("create", "--name", "reader"), self.keys("create", "--name", "other")
        self.process = self.serve().ready().pid
        return key

    def resident(self):
        with open(f"/proc/{self.process}/status") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS"))

    def processor(self):
        """Returns the processor time of the gateway in seconds, over all threads."""
        with open(f"/proc/{self.process}/stat") as stat:
            fields = stat.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def post(self, key, calls, headers=""):
        """Sends `calls` on a new connection and returns it. The answer is not read yet."""
        body = json.dumps(calls, separators=(",", ":")).encode()
        host, port = self.public.split(":")
        connection = socket.socket()
        # The small buffer blocks the sender soon if the client does not read.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect((host, int(port)))
        connection.settimeout(PATIENCE_S)
        self.addCleanup(connection.close)
        head = (f"POST /v3/{key} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n{headers}"
                f"content-length: {len(body)}\r\n\r\n")
        connection.sendall(head.encode() + body)
        return connection

    def read(self, connection):
        """Reads the answer, and returns its head and body."""
        received = b""
        while b"\r\n\r\n" not in received:
            received += self.receive(connection)
        head, body = received.split(b"\r\n\r\n", 1)
        length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.startswith(b"content-length"))
        while len(body) < length:
            body += self.receive(connection)
        connection.close()
        return head.decode(), body

    def receive(self, connection):
        part = connection.recv(1 << 16)
        self.assertTrue(part, "the connection ended before the end of the answer")
        return part

    def until(self, what, holds, patience=PATIENCE_S):
        eventually(holds, f"timed out waiting until {what}", patience)


def lists(count, **form):
    call = {"jsonrpc": "2.0", "method": "getMultipleAccounts", "params": [KEYS, {"encoding": "base64", **form}]}
    return [{"id": i, **call} for i in range(count)]


SLICED = {"dataSlice": {"offset": 1, "length": SPACE - 1}}


class Memory(Bytes):
    def test_unread_answers_stay_within_max_outgoing(self):
        key = self.gateway('max_outgoing = "128MiB"\nmax_body = "64KiB"\n')
        self.read(self.post(key, lists(1)))
        before = self.resident()
        # Each batch is 60 MB of texts that are rendered only for it.
        waiting = [self.post(key, lists(46, **SLICED)) for _ in range(12)]
        self.until("all are answered", lambda: self.answered("hit", "derived", "miss", "error") == 1 + 12 * 46)
        self.assertGreater(self.answered("error"), 0)
        self.assertLess(self.metric("outgoing_bytes"), 128 * MIB)
        self.assertGreater(self.metric("outgoing_bytes"), 64 * MIB)
        grown = self.resident() - before
        self.assertLess(grown, (128 + 64) * MIB, f"{grown >> 20} MiB for answers that are not read")
        # Another key still has its share. Calls of the first key are refused until its answers are read.
        head, _ = self.read(self.post(self.other, lists(1, **SLICED)[0]))
        self.assertTrue(head.startswith("HTTP/1.1 200"), head)
        head, body = self.read(self.post(key, lists(1, **SLICED)[0]))
        self.assertTrue(head.startswith("HTTP/1.1 503") and "retry-after: 1" in head, head)
        self.assertEqual(json.loads(body)["error"]["code"], -32094)
        for connection in waiting:
            connection.close()
        self.until("all memory is released", lambda: self.metric("outgoing_bytes") == 0)
        self.assertTrue(self.read(self.post(key, lists(1, **SLICED)[0]))[0].startswith("HTTP/1.1 200"))

    def answered(self, *outcomes):
        labels = 'commitment="finalized",method="getMultipleAccounts"'
        return sum(self.metric(f'requests_total{{{labels},outcome="{outcome}"}}') for outcome in outcomes)


class ProcessorTime(Bytes):
    def test_cached_answer_is_compressed_once_for_all_batches(self):
        key = self.gateway("")
        call = {"jsonrpc": "2.0", "id": 1, "method": "getBlock",
                "params": [SLOT, {"maxSupportedTransactionVersion": 0}]}
        gzip = "accept-encoding: gzip\r\n"
        # A caller that would wait over a second for the compression gets the plain text.
        begun = self.processor()
        self.until("the compressed form is cached",
                   lambda: "content-encoding: gzip" in self.read(self.post(key, call, gzip))[0], COMPRESSION_S)
        compression = self.processor() - begun
        for batch in [call], [call, call]:
            begun = self.processor()
            for _ in range(40):
                head, _ = self.read(self.post(key, batch, gzip))
                self.assertIn("content-encoding: gzip", head)
            took = self.processor() - begun
            self.assertLess(took / 40, compression / 5, f"a batch of {len(batch)}")

    def test_compression_does_not_block_other_calls(self):
        key = self.gateway("")
        gzip = "accept-encoding: gzip\r\n"
        self.read(self.post(key, lists(1)[0]))
        waiting = [self.post(key, lists(1, **SLICED)[0], gzip) for _ in range(200)]
        # On a busy machine no compression may end within the second for which its caller waits.
        plain = sum("content-encoding: gzip" not in self.read(connection)[0] for connection in waiting)
        self.assertGreater(plain, 0, "some are sent uncompressed, because concurrent compressions are limited")
        # The compressed form of the cached list is kept, so one that comes too late for its caller serves the next.
        self.until("an answer is compressed",
                   lambda: "content-encoding: gzip" in self.read(self.post(key, lists(1)[0], gzip))[0], COMPRESSION_S)


if __name__ == "__main__":
    unittest.main()

"""Plays a scene: slotfront in front of a scripted node is asked every question of it, and each answer is compared."""

import http.client
import json
import socket
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from exact import difference, members, read
from frames import frame, texts
from gateway import PATIENCE_S, Serve, upstreams
from node import Node
from recording import Unusable
from scene import Check

# Every method is open, and no answer ages while the scene is played.
CONFIG = """
[server]
listen = "127.0.0.1:0"
ws_listen = "off"
admin_listen = "127.0.0.1:0"
[auth]
mode = "open"
open_plan = "all"
usage_file = "off"
[plans.all]
methods = ["core", "tip", "history", "owners", "scans", "subscriptions"]
rps = 1000000
burst = 1000000
[pool]
probe_interval = "100ms"
[cache.ttl]
account = { processed = "1h", confirmed = "1h", finalized = "1h" }
fee = { processed = "1h", confirmed = "1h", finalized = "1h" }
vote_accounts = { processed = "1h", confirmed = "1h", finalized = "1h" }
block.confirmed = "1h"
performance_samples = "1h"
scan = "1h"
cluster_nodes = "1h"
"""
# Codes by which slotfront says that it does not know a method, or does not open it.
NOT_SERVED = (-32601, -32091)
EPOCHS = Check("getEpochSchedule", [])


@dataclass
class Tally:
    """What came of the comparisons. `right` counts answers by their source."""

    right: Counter = field(default_factory=Counter)
    # Questions that went on to the node because no recorded answer serves them.
    asked: int = 0
    # A line for each wrong answer.
    wrong: list = field(default_factory=list)

    def add(self, other):
        self.right += other.right
        self.asked += other.asked
        self.wrong += other.wrong


class Front:
    """A connection to slotfront."""

    def __init__(self, address):
        self.address, self.connection = address, http.client.HTTPConnection(address, timeout=PATIENCE_S)

    def ask(self, check):
        """Returns the body of the answer, and its header Cache-Status."""
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": check.method, "params": check.params})
        if check.method.endswith("Subscribe"):
            return self.notified(body), ""
        self.connection.request("POST", "/", body.encode(), {"Content-Type": "application/json"})
        response = self.connection.getresponse()
        return response.read().decode(), response.getheader("Cache-Status", "")

    def notified(self, call):
        """Subscribes, and returns the first notification as if it were an answer, or the refusal of the call."""
        host, port = self.address.split(":")
        with socket.create_connection((host, int(port)), PATIENCE_S) as connection, connection.makefile("rb") as stream:
            connection.sendall(f"GET / HTTP/1.1\r\nHost: {self.address}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
                               f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {'A' * 22}==\r\n\r\n".encode())
            while stream.readline().strip():
                pass
            connection.sendall(frame(call, masked=True))
            for text in texts(stream):
                message = members(text)
                if "params" in message:
                    return f'{{"result":{members(message["params"])["result"]}}}'
                if "error" in message:
                    return text
        raise AssertionError(f"no notification for {call}")


def play(scene):
    """Returns the tally of a scene. Raises `Unusable` if slotfront does not serve what is recorded."""
    tally = Tally()
    with tempfile.TemporaryDirectory() as folder, Node(scene) as node:
        config = Path(folder, "slotfront.toml")
        config.write_text(CONFIG + upstreams([node.port]) + f'ws_url = "ws://127.0.0.1:{node.port}"\n')
        with Serve(config) as serve:
            front = Front(serve.ready().public)
            # An answer that lives for an epoch gets another key once the epochs are known.
            front.ask(EPOCHS)
            for check in scene.checks():
                status = compare(front, node, check, tally)
                if "stored" in status:
                    again = compare(front, node, check, tally)
                    if "; hit" not in again:
                        tally.wrong.append(line(check, f"it was stored, but asked again it was no hit: {again}"))
    return tally


def compare(front, node, check, tally):
    """Asks a question, and counts what comes of it. Returns the Cache-Status of the answer."""
    node.refused.clear()
    body, status = front.ask(check)
    answer = read(body)
    code = answer.get("error", {}).get("code")
    if check.text is not None and code in NOT_SERVED:
        raise Unusable("slotfront does not answer this method")
    if node.refused:
        if check.text is not None:
            raise Unusable(f"slotfront asks a node for another form of it: {node.refused[0]}")
        tally.asked += 1
        return status
    if check.expected is None:
        tally.wrong.append(line(check, "it is made of nothing: the recording does not have it"))
        return status
    view = check.view or (lambda answer: answer)
    found = {name: value for name, value in answer.items() if name not in ("jsonrpc", "id")}
    differs = difference(view(check.expected), view(found))
    if differs is None and check.text is not None and members(body)["result"] != check.text:
        differs = "the text is another than the node's"
    if differs:
        tally.wrong.append(line(check, f"{differs} ({status})"))
    else:
        source = "hit" if "; hit" in status else "fetched"
        tally.right["derived" if "detail=derived" in status else source] += 1
    return status


def line(check, fault):
    return f"{check.method} {json.dumps(check.params)}: {fault}"

"""A scripted node: it says what a scene has recorded, and refuses the rest."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from frames import frame, proof, texts

GENESIS = "5eykt4UsFv8P8NJdTREpY1vzqKqZKvdpKuc147dw2N9d"
EPOCHS = '{"firstNormalEpoch":0,"firstNormalSlot":0,"leaderScheduleSlotOffset":432000,"slotsPerEpoch":432000,"warmup":false}'
NOT_RECORDED = '{"code":-32602,"message":"Invalid params: this is not recorded"}'
# Notifications are repeated at this interval, because a client may not listen yet when the first is sent.
NOTIFY_S = 0.1


class Node:
    """A node at a free port. `refused` are the questions that it could not answer, beside those about itself."""

    def __init__(self, scene):
        self.scene, self.refused = scene, []
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.node, self.server.daemon_threads = self, True
        self.port = self.server.server_port
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def about_itself(self, method):
        """Returns the answer to a question by which slotfront gets to know a node, or None."""
        return {
            "getHealth": '"ok"',
            "getVersion": '{"feature-set":1,"solana-core":"4.0.0"}',
            "getGenesisHash": f'"{GENESIS}"',
            "getEpochSchedule": EPOCHS,
            "getFirstAvailableBlock": "0",
            "getSlot": str(self.scene.slot),
            "getRecentPerformanceSamples": "[]",
        }.get(method)

    def reply(self, call):
        method, params = call["method"], call.get("params", [])
        result = self.scene.answer(method, params) or self.about_itself(method)
        if result is None:
            self.refused.append((method, params))
        member = f'"error":{NOT_RECORDED}' if result is None else f'"result":{result}'
        return f'{{"jsonrpc":"2.0",{member},"id":{call["id"]}}}\n'.encode()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def handle(self):
        try:
            super().handle()
        except ConnectionError:
            pass  # slotfront was ended.

    def do_POST(self):
        body = self.server.node.reply(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        """Serves a WebSocket. The scene's notification goes to whoever subscribes to it, and a slot to everybody."""
        self.close_connection = True
        self.send_response(101)
        self.send_header("Connection", "Upgrade")
        self.send_header("Upgrade", "websocket")
        self.send_header("Sec-WebSocket-Accept", proof(self.headers["sec-websocket-key"]))
        self.end_headers()
        scene = self.server.node.scene
        slot = f'{{"parent":{max(scene.slot - 1, 0)},"root":0,"slot":{scene.slot}}}'
        # By their ids.
        notifications, lock = {}, threading.Lock()

        def send(text):
            with lock:
                self.wfile.write(frame(text, masked=False))

        def notify():
            try:
                while not self.rfile.closed:
                    for subscription, (kind, result) in list(notifications.items()):
                        params = f'{{"result":{result},"subscription":{subscription}}}'
                        send(f'{{"jsonrpc":"2.0","method":"{kind}Notification","params":{params}}}')
                    time.sleep(NOTIFY_S)
            except (OSError, ValueError):
                pass  # The connection has ended.

        threading.Thread(target=notify, daemon=True).start()
        for call in map(json.loads, texts(self.rfile)):
            result = slot if call["method"] == "slotSubscribe" else scene.answer(call["method"], call["params"])
            if result is None:
                send(f'{{"jsonrpc":"2.0","error":{NOT_RECORDED},"id":{call["id"]}}}')
                continue
            subscription = len(notifications)
            send(f'{{"jsonrpc":"2.0","result":{subscription},"id":{call["id"]}}}')
            notifications[subscription] = (call["method"].removesuffix("Subscribe"), result)

    def log_message(self, *_):
        """Logs nothing: a test prints its own lines."""

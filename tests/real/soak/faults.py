"""What goes wrong: a proxy before each node, and a director who draws what happens next.

A fault of the shared store belongs into `Director.EVENTS` as one more row, as soon as there is one: its server is stopped
with SIGSTOP, or ended and started again, and no answer may fail or be wrong for it.
"""

import asyncio
import contextlib
import json
import re
import signal
import subprocess
import sys
from pathlib import Path

from wire import Connection, read_message

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from running import BINARY, PATIENCE_S  # noqa: E402


def plain(status, text, more=""):
    return f"HTTP/1.1 {status}\r\n{more}Content-Type: text/html\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode()


class Proxy:
    """A node's address that is well or not, as `mode` says."""

    MODES = ["reset", "refuse", "hang", "slow", "half", "trickle", "502", "429", "503", "wrong-id", "unhealthy", "no-json", "internal"]

    def __init__(self, node):
        self.node, self.mode, self.server, self.port = node, None, None, None

    async def start(self):
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", self.port or 0, limit=1 << 26)
        self.port = self.server.sockets[0].getsockname()[1]

    async def serve(self, reader, writer):
        node = Connection("127.0.0.1", self.node)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while message := await read_message(reader):
                if not await self.answer(node, message[1].decode(), writer):
                    break
        await node.close()
        with contextlib.suppress(OSError):
            writer.close()

    async def answer(self, node, body, writer):
        """Whether the connection goes on."""
        mode = self.mode
        if mode in ("reset", "refuse"):
            writer.transport.abort()
            return False
        if mode == "hang":
            while self.mode == "hang":
                await asyncio.sleep(0.1)
            writer.transport.abort()
            return False
        instead = {
            "502": lambda: plain("502 Bad Gateway", "<html>502 Bad Gateway</html>"),
            "429": lambda: plain("429 Too Many Requests", "slow down", "Retry-After: 1\r\n"),
            "503": lambda: plain("503 Service Unavailable", ""),
            "no-json": lambda: plain("200 OK", '{"jsonrpc":"2.0","result":{"context":'),
            "unhealthy": lambda: self.error(body, -32005, "Node is unhealthy"),
            "internal": lambda: self.error(body, -32603, "Internal error"),
        }.get(mode)
        if instead:
            writer.write(instead())
            await writer.drain()
            return True
        _, headers, text = await node.post("/", body)
        if mode == "wrong-id":
            text = re.sub(rb'"id":\d+', b'"id":987654321', text)
        whole = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n".encode() + text
        if mode == "slow":
            await asyncio.sleep(0.3)
        if mode == "half":
            writer.write(whole[:len(whole) - len(text) // 2 - 1])
            await writer.drain()
            return False
        pieces = 5 if mode == "trickle" else 1
        for i in range(pieces):
            writer.write(whole[len(whole) * i // pieces:len(whole) * (i + 1) // pieces])
            await writer.drain()
            if mode == "trickle":
                await asyncio.sleep(0.1)
        return True

    @staticmethod
    def error(body, code, message):
        call = json.loads(body)
        one = lambda call: {"jsonrpc": "2.0", "error": {"code": code, "message": message}, "id": call.get("id")}
        return plain("200 OK", json.dumps([one(c) for c in call] if isinstance(call, list) else one(call)))


class Director:
    """Draws what happens, one thing after the other, and puts everything right at the end."""

    def __init__(self, rng, proxies, laggard, gateway, keys):
        self.rng, self.proxies, self.laggard, self.gateway, self.keys = rng, proxies, laggard, gateway, keys
        self.counted, self.leaving = {}, False

    async def direct(self, until):
        loop = asyncio.get_running_loop()
        weights = [weight for _, weight in self.EVENTS]
        running = set()
        while loop.time() < until:
            event = self.rng.choices([event for event, _ in self.EVENTS], weights)[0]
            self.counted[event.__name__] = self.counted.get(event.__name__, 0) + 1
            task = asyncio.create_task(event(self))
            running.add(task)
            task.add_done_callback(running.discard)
            await asyncio.sleep(self.rng.uniform(0.3, 1.5))
            for done in [task for task in running if task.done()]:
                done.result()
        for task in list(running):
            await task
        self.gateway.configure()
        self.gateway.signal(signal.SIGHUP)

    async def node_fault(self):
        # One is well whatever happens: two at once at most.
        well = [proxy for proxy in self.proxies if proxy.mode is None]
        if len(well) < 2:
            return
        proxy = self.rng.choice(well)
        proxy.mode = self.rng.choice(Proxy.MODES)
        if proxy.mode == "refuse":
            proxy.server.close()
        await asyncio.sleep(self.rng.uniform(0.2, 4))
        if proxy.mode == "refuse":
            await proxy.start()
        proxy.mode = None

    async def laggard_stands_still(self):
        """A node of its own process: it hangs, and is further behind for ever after."""
        self.laggard.send_signal(signal.SIGSTOP)
        await asyncio.sleep(self.rng.uniform(0.1, 2))
        self.laggard.send_signal(signal.SIGCONT)

    async def good_reload(self):
        self.gateway.configure(rps=self.rng.randrange(50_000, 100_000), retries=self.rng.choice([3, 4]))
        if self.rng.random() < 0.5:
            self.gateway.signal(signal.SIGHUP)

    async def a_node_leaves_and_comes_back(self):
        # Never one of the three that are counted on to be well.
        if self.leaving:
            return
        self.leaving = True
        self.gateway.configure(laggard=False)
        await asyncio.sleep(self.rng.uniform(1, 3))
        self.gateway.configure()
        self.gateway.signal(signal.SIGHUP)
        # It is known again once that is read.
        await asyncio.sleep(2)
        self.leaving = False

    async def bad_reload(self):
        self.gateway.config.write_text(self.rng.choice(["no configuration", "[server]\nlisten = 7\n", ""]))
        self.gateway.signal(signal.SIGHUP)
        await asyncio.sleep(self.rng.uniform(0.1, 1.5))
        self.gateway.configure()

    async def key_change(self):
        """A key is made, used once it is known, and the oldest is taken back."""
        name = f"key-{self.counted['key_change']}"
        made = await self.keys.change("create", "--name", name)
        await self.keys.until(made, 200)
        self.keys.live.append((name, made))
        old, secret = self.keys.live.pop(0)
        # Calls with it are on their way.
        await asyncio.sleep(2)
        await self.keys.change("revoke", "--name", old)
        await self.keys.until(secret, 401)

    async def drain_and_restore(self):
        """The laggard, for one of the three must stay that is well."""
        if self.leaving:
            return
        await self.gateway.admin("/api/upstreams/node-3/drain")
        self.leaving = True
        await asyncio.sleep(self.rng.uniform(0.2, 1))
        await self.gateway.admin("/api/upstreams/node-3/restore")
        self.leaving = False

    EVENTS = [(node_fault, 10), (laggard_stands_still, 2), (good_reload, 2), (a_node_leaves_and_comes_back, 1),
              (bad_reload, 1), (key_change, 2), (drain_and_restore, 1)]


class Keys:
    """The key file, changed by the command, and which keys hold just now."""

    def __init__(self, file, port):
        self.file, self.port, self.live = file, port, []
        self.changing = asyncio.Lock()

    async def change(self, *arguments):
        async with self.changing:
            made = await asyncio.create_subprocess_exec(BINARY, "keys", *arguments, "--file", self.file,
                                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            out, error = await made.communicate()
        assert made.returncode == 0, error.decode()
        return out.decode().strip()

    async def until(self, key, expected):
        """Waits until the gateway knows, which takes a second."""
        connection, body = Connection("127.0.0.1", self.port), '{"jsonrpc":"2.0","id":1,"method":"getClusterNodes"}'
        for _ in range(PATIENCE_S * 10):
            status, _, _ = await connection.post(f"/v3/{key}", body)
            if status == expected:
                return await connection.close()
            await asyncio.sleep(0.1)
        raise AssertionError(f"a key's change to {expected} never came into force")

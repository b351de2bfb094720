"""What goes wrong: a proxy before each node, a store that can be stopped, and a director who draws what happens next."""

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
import gateway as starter  # noqa: E402
from gateway import BINARY, PATIENCE_S  # noqa: E402


def plain(status, text, more=""):
    return f"HTTP/1.1 {status}\r\n{more}Content-Type: text/html\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode()


class Proxy:
    """A node's address that is well or not, as `mode` says."""

    MODES = ["reset", "refuse", "hang", "slow", "half", "trickle", "502", "429", "503", "wrong-id", "unhealthy", "no-json", "internal"]

    def __init__(self, node):
        self.node, self.mode, self.well, self.server, self.port = node, None, True, None, None
        self.serving = set()

    async def start(self):
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", self.port or 0, limit=1 << 26)
        self.port = self.server.sockets[0].getsockname()[1]

    async def serve(self, reader, writer):
        # asyncio holds it no longer than the gateway's end is open.
        self.serving.add(asyncio.current_task())
        node = Connection("127.0.0.1", self.node)
        # Cancelled once all is over.
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while message := await read_message(reader):
                if not await self.answer(node, message[1].decode(), writer):
                    break
        await node.close()
        with contextlib.suppress(OSError):
            writer.close()
        self.serving.discard(asyncio.current_task())

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


class Store:
    """The redis-server that the gateways have in common; one thing at a time goes wrong with it."""

    # Values change places, are cut short, or have a byte altered at ARGV[1]; they live on as long as they would have.
    RUBBISH = """local keys = redis.call('KEYS', '*:cache1:*')
        for i, key in ipairs(keys) do
          local value = redis.call('GET', keys[i % #keys + 1])
          if i % 4 == 0 then redis.call('SET', key, value, 'KEEPTTL')
          elseif i % 4 == 1 then redis.call('SETRANGE', key, ARGV[1], '7')
          elseif i % 4 == 2 then redis.call('SET', key, string.sub(value, 1, ARGV[1]), 'KEEPTTL') end
        end"""

    def __init__(self, folder):
        self.folder, self.port, self.running, self.trouble = folder, starter.free_port(), None, asyncio.Lock()

    def start(self):
        """As it is with nothing in it, or with what it last saved."""
        self.running = starter.Store(self.folder, self.port)

    def end(self):
        self.running.end()

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.end()

    async def tell(self, *words):
        told = await asyncio.create_subprocess_exec("redis-cli", "-e", "-p", str(self.port), *words,
                                                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        said, _ = await told.communicate()
        assert told.returncode == 0, f"{words}: {said.decode()}"


class Director:
    """Draws what happens, one thing after the other, and puts everything right at the end."""

    def __init__(self, rng, proxies, laggard, store, gateways, keys):
        self.rng, self.proxies, self.laggard, self.store, self.keys = rng, proxies, laggard, store, keys
        self.gateways, self.counted, self.running = gateways, {}, set()

    def a_gateway(self):
        return self.rng.choice(self.gateways)

    async def direct(self, over):
        weights = [weight for _, weight in self.EVENTS]
        async with asyncio.TaskGroup() as group:
            while not over():
                event = self.rng.choices([event for event, _ in self.EVENTS], weights)[0]
                self.counted[event.__name__] = self.counted.get(event.__name__, 0) + 1
                task = group.create_task(event(self), name=event.__name__)
                self.running.add(task)
                task.add_done_callback(self.running.discard)
                await asyncio.sleep(self.rng.uniform(0.3, 1.5))
        for gateway in self.gateways:
            gateway.configure()
            gateway.signal(signal.SIGHUP)

    def trouble(self):
        """What goes wrong just now."""
        nodes = [f"node-{i} {proxy.mode}" for i, proxy in enumerate(self.proxies) if proxy.mode]
        return nodes + [task.get_name() for task in self.running if task.get_name() != "node_fault"]

    async def node_fault(self):
        # One is well whatever happens: two at once at most.
        well = [proxy for proxy in self.proxies if proxy.well]
        if len(well) < 2:
            return
        proxy = self.rng.choice(well)
        proxy.mode, proxy.well = self.rng.choice(Proxy.MODES), False
        if proxy.mode == "refuse":
            proxy.server.close()
        await asyncio.sleep(self.rng.uniform(0.2, 4))
        if proxy.mode == "refuse":
            await proxy.start()
        proxy.mode = None
        # To the gateways it is well once a probe of theirs says so; one that hung may still have to break.
        await asyncio.sleep(0.5)
        for gateway in self.gateways:
            up = f'upstream_up{{upstream="node-{self.proxies.index(proxy)}"'
            await eventually(f"{up} never became 1", lambda: gateway.metric(up))
        proxy.well = True

    async def laggard_stands_still(self):
        """A node of its own process: it hangs, and is further behind for ever after."""
        self.laggard.send(signal.SIGSTOP)
        await asyncio.sleep(self.rng.uniform(0.1, 2))
        self.laggard.send(signal.SIGCONT)

    async def good_reload(self):
        gateway = self.a_gateway()
        gateway.configure(rps=self.rng.randrange(50_000, 100_000), retries=self.rng.choice([3, 4]))
        if self.rng.random() < 0.5:
            gateway.signal(signal.SIGHUP)

    async def a_node_leaves_and_comes_back(self):
        # Never one of the three that are counted on to be well.
        gateway = self.a_gateway()
        if gateway.leaving:
            return
        gateway.leaving = True
        gateway.configure(laggard=False)
        await asyncio.sleep(self.rng.uniform(1, 3))
        gateway.configure()
        gateway.signal(signal.SIGHUP)
        gateway.leaving = False

    async def bad_reload(self):
        gateway = self.a_gateway()
        gateway.config.write_text(self.rng.choice(["no configuration", "[server]\nlisten = 7\n", ""]))
        gateway.signal(signal.SIGHUP)
        await asyncio.sleep(self.rng.uniform(0.1, 1.5))
        gateway.configure()

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
        gateway = self.a_gateway()
        if gateway.leaving:
            return
        gateway.leaving = True
        # It may be on its way back still.
        await eventually("node-3 was never drained", lambda: gateway.admin("/api/upstreams/node-3/drain"))
        await asyncio.sleep(self.rng.uniform(0.2, 1))
        await eventually("node-3 was never restored", lambda: gateway.admin("/api/upstreams/node-3/restore"))
        gateway.leaving = False

    async def store_stands_still(self):
        async with self.store.trouble:
            self.store.running.send(signal.SIGSTOP)
            await asyncio.sleep(self.rng.uniform(0.05, 3))
            self.store.running.send(signal.SIGCONT)

    async def store_dies(self):
        """It comes back empty, or with what it held a while ago."""
        async with self.store.trouble:
            if self.rng.random() < 0.5:
                await self.store.tell("SAVE")
                await asyncio.sleep(self.rng.uniform(0, 2))
            self.store.end()
            await asyncio.sleep(self.rng.uniform(0, 2))
            await asyncio.to_thread(self.store.start)

    async def store_is_slow(self):
        async with self.store.trouble:
            for _ in range(self.rng.randrange(2, 12)):
                # Below the gateways' patience, and above.
                pause = self.rng.randrange(5, 500)
                await self.store.tell("CLIENT", "PAUSE", str(pause))
                await asyncio.sleep(pause / 1000)

    async def store_is_full(self):
        """It refuses what is new, or throws out what it has."""
        async with self.store.trouble:
            await self.store.tell("CONFIG", "SET", "maxmemory-policy", self.rng.choice(["noeviction", "allkeys-lru"]))
            await self.store.tell("CONFIG", "SET", "maxmemory", "1")
            await asyncio.sleep(self.rng.uniform(0.2, 3))
            await self.store.tell("CONFIG", "SET", "maxmemory", "0")

    async def store_forgets(self):
        async with self.store.trouble:
            await self.store.tell(*self.rng.choice(["FLUSHALL", "SCRIPT FLUSH", "CLIENT KILL TYPE normal"]).split())

    async def store_holds_rubbish(self):
        async with self.store.trouble:
            await self.store.tell("EVAL", Store.RUBBISH, "0", str(self.rng.randrange(200)))

    EVENTS = [(node_fault, 20), (laggard_stands_still, 4), (good_reload, 4), (a_node_leaves_and_comes_back, 2),
              (bad_reload, 2), (key_change, 4), (drain_and_restore, 2), (store_stands_still, 3), (store_dies, 2),
              (store_is_slow, 2), (store_is_full, 2), (store_forgets, 2), (store_holds_rubbish, 2)]


class Keys:
    """The key file, changed by the command, and which keys hold just now."""

    def __init__(self, file, ports):
        self.file, self.ports, self.live = file, ports, []
        self.changing = asyncio.Lock()

    async def change(self, *arguments):
        async with self.changing:
            made = await asyncio.create_subprocess_exec(BINARY, "keys", *arguments, "--file", self.file,
                                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            out, error = await made.communicate()
        assert made.returncode == 0, error.decode()
        return out.decode().strip()

    async def until(self, key, expected):
        """Waits until all gateways know, which takes a second."""
        body = '{"jsonrpc":"2.0","id":1,"method":"getClusterNodes"}'
        for port in self.ports:
            async def is_known():
                status, _, _ = await connection.post(f"/v3/{key}", body)
                return status == expected
            connection = Connection("127.0.0.1", port)
            await eventually(f"a key's change to {expected} never came into force", is_known)
            await connection.close()


async def eventually(otherwise, holds):
    """Waits until something holds; by turns instead of time, for the machine may stand still."""
    for _ in range(PATIENCE_S * 10):
        if await holds():
            return
        await asyncio.sleep(0.1)
    raise AssertionError(otherwise)

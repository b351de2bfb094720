"""The faults: a proxy in front of each node, a store that can be stopped, and an injector of random faults."""

import asyncio
import contextlib
import json
import re
import signal
import subprocess
import sys
from pathlib import Path

from connection import Connection, read_message

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import gateway as starter  # noqa: E402
from gateway import BINARY, PATIENCE_S  # noqa: E402


def plain(status, text, more=""):
    return f"HTTP/1.1 {status}\r\n{more}Content-Type: text/html\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode()


class Proxy:
    """A proxy in front of a node. `mode` is its current fault, or `None`."""

    MODES = ["reset", "refuse", "hang", "slow", "half", "trickle", "502", "429", "503", "wrong-id", "unhealthy", "no-json", "internal"]

    def __init__(self, node):
        self.node, self.mode, self.healthy, self.server, self.port = node, None, True, None, None
        self.serving = set()

    async def start(self):
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", self.port or 0, limit=1 << 26)
        self.port = self.server.sockets[0].getsockname()[1]

    async def serve(self, reader, writer):
        # asyncio drops a task without a reference once the gateway closes the connection.
        self.serving.add(asyncio.current_task())
        node = Connection("127.0.0.1", self.node)
        # The task is cancelled at the end of the test.
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while message := await read_message(reader):
                if not await self.answer(node, message[1].decode(), writer):
                    break
        await node.close()
        with contextlib.suppress(OSError):
            writer.close()
        self.serving.discard(asyncio.current_task())

    async def answer(self, node, body, writer):
        """Answers one call by the current mode. Returns true if the connection stays open."""
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
    """The redis-server that the gateways share. It has one fault at a time."""

    # Swaps values, cuts them or changes the byte at ARGV[1]. Expiry times stay the same.
    CORRUPT = """local keys = redis.call('KEYS', '*:cache2:*')
        for i, key in ipairs(keys) do
          local value = redis.call('GET', keys[i % #keys + 1])
          if i % 4 == 0 then redis.call('SET', key, value, 'KEEPTTL')
          elseif i % 4 == 1 then redis.call('SETRANGE', key, ARGV[1], '7')
          elseif i % 4 == 2 then redis.call('SET', key, string.sub(value, 1, ARGV[1]), 'KEEPTTL') end
        end"""

    def __init__(self, folder):
        self.folder, self.port, self.running, self.fault_lock = folder, starter.free_port(), None, asyncio.Lock()

    def start(self):
        """Starts the server with its saved data, if there is any."""
        self.running = starter.Store(self.folder, self.port)

    def end(self):
        self.running.end()

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.end()

    async def command(self, *words):
        client = await asyncio.create_subprocess_exec("redis-cli", "-e", "-p", str(self.port), *words,
                                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        output, _ = await client.communicate()
        assert client.returncode == 0, f"{words}: {output.decode()}"


class FaultInjector:
    """Injects random faults, and ends all of them at the end."""

    def __init__(self, rng, proxies, laggard, store, gateways, keys):
        self.rng, self.proxies, self.laggard, self.store, self.keys = rng, proxies, laggard, store, keys
        self.gateways, self.counted, self.running = gateways, {}, set()

    def random_gateway(self):
        return self.rng.choice(self.gateways)

    async def run(self, over):
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

    def active_faults(self):
        """Returns the names of the current faults."""
        nodes = [f"node-{i} {proxy.mode}" for i, proxy in enumerate(self.proxies) if proxy.mode]
        return nodes + [task.get_name() for task in self.running if task.get_name() != "node_fault"]

    async def node_fault(self):
        # At least one of the three nodes stays healthy.
        healthy = [proxy for proxy in self.proxies if proxy.healthy]
        if len(healthy) < 2:
            return
        proxy = self.rng.choice(healthy)
        proxy.mode, proxy.healthy = self.rng.choice(Proxy.MODES), False
        if proxy.mode == "refuse":
            proxy.server.close()
        await asyncio.sleep(self.rng.uniform(0.2, 4))
        if proxy.mode == "refuse":
            await proxy.start()
        proxy.mode = None
        # The gateways use the node again after a successful probe. Calls to a hanging node may still have to fail first.
        await asyncio.sleep(0.5)
        for gateway in self.gateways:
            up = f'upstream_up{{upstream="node-{self.proxies.index(proxy)}"'
            await eventually(f"{up} never became 1", lambda: gateway.metric(up))
        proxy.healthy = True

    async def laggard_hangs(self):
        """Stops the process of the lagging node for a while. Its lag stays larger afterwards."""
        self.laggard.send(signal.SIGSTOP)
        await asyncio.sleep(self.rng.uniform(0.1, 2))
        self.laggard.send(signal.SIGCONT)

    async def good_reload(self):
        gateway = self.random_gateway()
        gateway.configure(rps=self.rng.randrange(50_000, 100_000), retries=self.rng.choice([3, 4]))
        if self.rng.random() < 0.5:
            gateway.signal(signal.SIGHUP)

    async def node_is_removed_and_added(self):
        # The lagging node, because one of the other three must stay healthy.
        gateway = self.random_gateway()
        if gateway.leaving:
            return
        gateway.leaving = True
        gateway.configure(laggard=False)
        await asyncio.sleep(self.rng.uniform(1, 3))
        gateway.configure()
        gateway.signal(signal.SIGHUP)
        gateway.leaving = False

    async def bad_reload(self):
        gateway = self.random_gateway()
        gateway.config.write_text(self.rng.choice(["no configuration", "[server]\nlisten = 7\n", ""]))
        gateway.signal(signal.SIGHUP)
        await asyncio.sleep(self.rng.uniform(0.1, 1.5))
        gateway.configure()

    async def key_change(self):
        """Creates a key, waits until it is accepted, and revokes the oldest one."""
        name = f"key-{self.counted['key_change']}"
        key = await self.keys.change("create", "--name", name)
        await self.keys.until(key, 200)
        self.keys.live.append((name, key))
        old, secret = self.keys.live.pop(0)
        # Waits for open calls with the oldest key.
        await asyncio.sleep(2)
        await self.keys.change("revoke", "--name", old)
        await self.keys.until(secret, 401)

    async def drain_and_restore(self):
        """Drains and restores the lagging node, because one of the other three must stay healthy."""
        gateway = self.random_gateway()
        if gateway.leaving:
            return
        gateway.leaving = True
        # The node may not have been added again yet.
        await eventually("node-3 was never drained", lambda: gateway.admin("/api/upstreams/node-3/drain"))
        await asyncio.sleep(self.rng.uniform(0.2, 1))
        await eventually("node-3 was never restored", lambda: gateway.admin("/api/upstreams/node-3/restore"))
        gateway.leaving = False

    async def store_hangs(self):
        async with self.store.fault_lock:
            self.store.running.send(signal.SIGSTOP)
            await asyncio.sleep(self.rng.uniform(0.05, 3))
            self.store.running.send(signal.SIGCONT)

    async def store_dies(self):
        """Restarts the store, empty or with the data of a while ago."""
        async with self.store.fault_lock:
            if self.rng.random() < 0.5:
                await self.store.command("SAVE")
                await asyncio.sleep(self.rng.uniform(0, 2))
            self.store.end()
            await asyncio.sleep(self.rng.uniform(0, 2))
            await asyncio.to_thread(self.store.start)

    async def store_is_slow(self):
        async with self.store.fault_lock:
            for _ in range(self.rng.randrange(2, 12)):
                # Pauses are shorter and longer than the timeout of the gateways.
                pause = self.rng.randrange(5, 500)
                await self.store.command("CLIENT", "PAUSE", str(pause))
                await asyncio.sleep(pause / 1000)

    async def store_is_full(self):
        """Makes the store refuse new values or evict old ones."""
        async with self.store.fault_lock:
            await self.store.command("CONFIG", "SET", "maxmemory-policy", self.rng.choice(["noeviction", "allkeys-lru"]))
            await self.store.command("CONFIG", "SET", "maxmemory", "1")
            await asyncio.sleep(self.rng.uniform(0.2, 3))
            await self.store.command("CONFIG", "SET", "maxmemory", "0")

    async def store_loses_data(self):
        async with self.store.fault_lock:
            await self.store.command(*self.rng.choice(["FLUSHALL", "SCRIPT FLUSH", "CLIENT KILL TYPE normal"]).split())

    async def store_has_corrupt_values(self):
        async with self.store.fault_lock:
            await self.store.command("EVAL", Store.CORRUPT, "0", str(self.rng.randrange(200)))

    EVENTS = [(node_fault, 20), (laggard_hangs, 4), (good_reload, 4), (node_is_removed_and_added, 2),
              (bad_reload, 2), (key_change, 4), (drain_and_restore, 2), (store_hangs, 3), (store_dies, 2),
              (store_is_slow, 2), (store_is_full, 2), (store_loses_data, 2), (store_has_corrupt_values, 2)]


class Keys:
    """The key file, which `slotfront keys` changes, and the keys that are valid now."""

    def __init__(self, file, ports):
        self.file, self.ports, self.live = file, ports, []
        self.changing = asyncio.Lock()

    async def change(self, *arguments):
        async with self.changing:
            command = await asyncio.create_subprocess_exec(BINARY, "keys", *arguments, "--file", self.file,
                                                           stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            out, error = await command.communicate()
        assert command.returncode == 0, error.decode()
        return out.decode().strip()

    async def until(self, key, expected):
        """Waits until all gateways answer calls with this key with the HTTP status `expected`."""
        body = '{"jsonrpc":"2.0","id":1,"method":"getClusterNodes"}'
        for port in self.ports:
            async def is_known():
                status, _, _ = await connection.post(f"/v3/{key}", body)
                return status == expected
            connection = Connection("127.0.0.1", port)
            await eventually(f"a gateway never answered {expected} to a changed key", is_known)
            await connection.close()


async def eventually(otherwise, holds):
    """Waits until `holds` returns true. The limit is a number of tries, because the machine may stall."""
    for _ in range(PATIENCE_S * 10):
        if await holds():
            return
        await asyncio.sleep(0.1)
    raise AssertionError(otherwise)

"""Starts and stops of the built `slotfront`: behind a load balancer, by a second signal, without a node, and by a kill."""

import http.client
import itertools
import json
import os
import re
import select
import signal
import socket
import threading
import time
import unittest
import urllib.error
import urllib.request
from pathlib import Path

import lossless
from gateway import PATIENCE_S, TOKEN, GatewayTest, Nodes, Program, Serve, call, eventually, free_port, get, metric, upstreams

# The number of restarts.
RESTARTS = int(os.environ.get("STOP_RESTARTS", "2"))
BODIES = [json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}) for method, params in [
    ("getClusterNodes", []),
    ("getVoteAccounts", []),
    ("getAccountInfo", ["11111111111111111111111111111111"]),
    ("getRecentPerformanceSamples", [5]),
]]


class Balancer:
    """A load balancer in front of two instances.

    It checks the readiness of each four times per second and sends requests in turn to the ready ones. It keeps its
    connections and never retries a request.
    """

    def __init__(self, instances):
        self.instances, self.ready, self.over = instances, [], threading.Event()
        self.turn, self.watcher = itertools.count(), threading.Thread(target=self.watch)
        self.watcher.start()

    def watch(self):
        while not self.over.wait(0.25):
            self.ready = [public for public, admin in self.instances if self.is_ready(admin)]

    @staticmethod
    def is_ready(admin):
        try:
            return get(f"http://{admin}/readyz")[0] == 200
        except OSError:
            return False

    def post(self, kept, path, body):
        """Sends a POST. Returns the status and the text of the answer. `kept` has the caller's open connections."""
        public = self.ready[next(self.turn) % len(self.ready)]
        connection = kept.pop(public, None)
        # A readable idle connection has been closed by the server.
        if connection and select.select([connection.sock], [], [], 0)[0]:
            connection.close()
            connection = None
        connection = connection or http.client.HTTPConnection(public, timeout=PATIENCE_S)
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
        if answer.will_close:
            connection.close()
        else:
            kept[public] = connection
        return answer.status, text

    def end(self):
        self.over.set()
        self.watcher.join()


class RestartTest(GatewayTest):
    """A test with gateways that keep their addresses over restarts."""

    def configure(self, name, ports, server=""):
        public, admin = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        config = self.config.with_name(f"{name}.toml")
        text = (f'[server]\nlisten = "{public}"\nadmin_listen = "{admin}"\n{server}\n'
                f'[auth]\nusage_file = "{name}-usage.json"\nadmin_token = "{TOKEN}"\n'
                '[plans.standard]\nrps = 100000\nburst = 100000\n')
        config.write_text(text + upstreams(ports))
        return config, public, admin

    def until(self, holds, what):
        eventually(holds, f"timed out waiting until {what}", 2 * PATIENCE_S)


class Restarts(RestartTest):
    def test_rolling_restart_fails_no_call(self):
        key = self.keys("create", "--name", "a")
        # The balancer checks readiness four times per second.
        made = [self.configure(name, self.nodes) for name in ("one", "two")]
        running = [self.start(Serve(config, "4s")).ready() for config, _, _ in made]
        balancer, over = Balancer([(public, admin) for _, public, admin in made]), threading.Event()
        self.addCleanup(balancer.end)
        self.until(lambda: len(balancer.ready) == 2, "both are ready")
        calls, failed = [0] * 8, []

        def caller(i):
            kept = {}
            while not over.is_set():
                try:
                    status, text = balancer.post(kept, f"/v3/{key}", BODIES[calls[i] % len(BODIES)])
                    if status != 200 or b'"result"' not in text:
                        failed.append((status, text[:200]))
                except Exception as error:
                    failed.append(repr(error))
                calls[i] += 1
            for connection in kept.values():
                connection.close()

        callers = [threading.Thread(target=caller, args=(i,)) for i in range(len(calls))]
        for thread in callers:
            thread.start()
        try:
            for i, (config, public, _) in enumerate(made):
                self.assertEqual(running[i].stop(), 0, running[i].printed())
                running[i] = self.start(Serve(config, "4s"))
                self.until(lambda: public in balancer.ready, "the instance is ready again")
                enough = sum(calls) + 100
                self.until(lambda: sum(calls) > enough, "calls go on")
        finally:
            over.set()
            for thread in callers:
                thread.join()
        self.assertEqual(failed, [])
        self.assertTrue(all(calls), calls)

    def test_restarts_lose_no_call_of_keep_alive_clients(self):
        key = self.keys("create", "--name", "a")
        config, public, _ = self.configure("one", self.nodes)
        serve = self.start(Serve(config, "2s")).ready()
        clients = lossless.Clients(public, key, of_each=20)
        self.addCleanup(clients.end)
        for _ in range(RESTARTS):
            enough = clients.calls + 5 * len(clients.threads)
            self.until(lambda: clients.calls > enough, "all clients call")
            self.assertEqual(serve.stop(), 0, serve.printed())
            serve = self.start(Serve(config, "2s"))
        clients.end()
        self.assertEqual((len(clients.lost), clients.lost), (0, []), f"of {clients.calls} calls")

    def test_second_signal_stops_at_once(self):
        # A node that accepts calls and never answers.
        with socket.create_server(("127.0.0.1", 0)) as mute:
            key = self.keys("create", "--name", "a")
            config, public, admin = self.configure("one", [mute.getsockname()[1]], 'drain_timeout = "10m"\nrequest_timeout = "10m"')
            serve = self.start(Serve(config))
            with socket.create_connection(public.split(":")) as caller:
                body = BODIES[0]
                caller.sendall(f"POST /v3/{key} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                               f"Content-Length: {len(body)}\r\n\r\n{body}".encode())
                # A probe, or a call that waits for the first one.
                self.until(lambda: metric(admin, "requests_in_flight") == 1, "the call is in flight")
                serve.send(signal.SIGTERM)
                serve.wait_for("requests in flight finish first")
                for _ in range(20):
                    # After one signal, slotfront waits for the call.
                    self.assertEqual(get(f"http://{admin}/livez")[0], 200)
                self.assertEqual(serve.stop(), 0)
                self.assertIn("second signal", serve.printed())

    def test_readiness_fails_with_a_reason_until_a_node_answers(self):
        port, key = free_port(), self.keys("create", "--name", "a")
        config, public, admin = self.configure("one", [port], 'drain_timeout = "1s"')
        serve = self.start(Serve(config))
        with self.assertRaises(urllib.error.HTTPError) as refused:
            get(f"http://{admin}/readyz")
        readiness = json.load(refused.exception)
        self.assertEqual((refused.exception.code, readiness["state"]), (503, "unready"))
        self.assertIn("node-0", readiness["reasons"][0])
        self.assertEqual(get(f"http://{admin}/livez")[0], 200)
        status, _, body = call(f"http://{public}/v3/{key}", "getClusterNodes", [])
        self.assertEqual((status, body["error"]["code"]), (502, -32095))
        self.assertEqual(body["error"]["data"]["attempts"][0]["upstream"], "node-0")
        with Nodes(port=port):
            serve.ready()
            self.assertEqual(call(f"http://{public}/v3/{key}", "getClusterNodes", [])[0], 200)
        self.assertEqual(serve.stop(), 0)


class SharedUsageFile(RestartTest):
    """A second process with the usage file of the first."""

    def setUp(self):
        super().setUp()
        self.key = self.keys("create", "--name", "a")

    def configured(self, name, ports, drain="1s"):
        """Returns a configuration at its own addresses whose usage file is the same for all."""
        config, public, _ = self.configure(name, ports, f'drain_timeout = "{drain}"\nrequest_timeout = "10m"')
        config.write_text(config.read_text().replace(f"{name}-usage.json", "usage.json"))
        return config, public

    def waiting(self, config, first):
        """Starts a second process, and waits until it names the first."""
        second = self.start(Program("serve", "--config", config))
        second.wait_for(rf"process {first.pid} on {re.escape(socket.gethostname())}")
        self.assertNotIn("listening on", second.printed())
        return second

    def test_second_process_with_one_usage_file_is_refused(self):
        config, public = self.configured("one", self.nodes)
        first = self.start(Serve(config)).ready()
        second = self.waiting(self.configured("two", self.nodes)[0], first)
        self.assertEqual(second.ended(), 1, second.printed())
        self.assertIn("give each process a file of its own", second.printed())
        self.assertEqual(call(f"http://{public}/v3/{self.key}", "getClusterNodes", [])[0], 200)
        self.assertEqual(first.stop(), 0)
        self.assertEqual(Path(self.folder, "usage.json.lock").read_text(), "", "the lock is left as it was found")

    def test_second_process_waits_for_a_draining_one_and_continues_its_counts(self):
        config, public = self.configured("one", self.nodes, "10m")
        first = self.start(Serve(config, unready="10m")).ready()
        for _ in range(3):
            self.assertEqual(call(f"http://{public}/v3/{self.key}", "getClusterNodes", [])[0], 200)
        # Readiness fails first, for ten minutes.
        first.send(signal.SIGTERM)
        first.wait_for("requests in flight finish first")
        config, self.public = self.configured("two", self.nodes, "10m")
        second, stopped = self.waiting(config, first), self.waiting(self.configured("three", self.nodes, "10m")[0], first)
        self.assertEqual(stopped.stop(), 0, "a process that waits can be stopped")
        usage_file = Path(self.folder, "usage.json")
        self.until(lambda: usage_file.exists() and ',3.0],"calls"' in usage_file.read_text(), "the counts are written")
        self.assertEqual(first.stop(), 0, "the second signal ends the drain")
        second.wait_for("slotfront is running")
        self.assertEqual(self.used(self.key), 3.0)
        second.stop(signal.SIGKILL)
        third = self.start(Serve(config)).ready()
        self.assertEqual(self.used(self.key), 3.0, "the lock of a dead process is free")
        self.assertNotIn("usage file", third.printed())


class Killed(RestartTest):
    def test_kill_loses_no_acknowledged_key(self):
        config, public, admin = self.configure("one", self.nodes, 'drain_timeout = "1s"')
        config.write_text(config.read_text().replace("[auth]", '[auth]\nkeys_file = "keys.toml"'))
        for round in range(3):
            serve, made = self.start(Serve(config)), []

            def create():
                for i in itertools.count():
                    body = json.dumps({"name": f"k{round}-{i}", "plan": "standard"}).encode()
                    request = urllib.request.Request(f"http://{admin}/api/keys", body, {"Authorization": f"Bearer {TOKEN}"})
                    try:
                        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                            made.append(json.load(answer)["key"])
                    except (OSError, http.client.HTTPException, ValueError):
                        return  # slotfront was killed.

            creating = threading.Thread(target=create)
            creating.start()
            deadline = time.monotonic() + PATIENCE_S
            while len(made) < 5 + round:
                self.assertLess(time.monotonic(), deadline, serve.printed())
                time.sleep(0.003)
            serve.stop(signal.SIGKILL)
            creating.join()
            serve = self.start(Serve(config)).ready()
            for key in made:
                self.assertEqual(call(f"http://{public}/v3/{key}", "getClusterNodes", [])[0], 200)
            self.assertEqual(serve.stop(), 0)


if __name__ == "__main__":
    unittest.main()

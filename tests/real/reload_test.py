"""Reloads of the built `slotfront`, its audit log, and the loss of usage when it is killed."""

import http.client
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
import unittest
import urllib.error
import urllib.request
from pathlib import Path

from gateway import BINARY, PATIENCE_S, TOKEN, GatewayTest, Program, call, eventually


class Reload(GatewayTest):
    def test_reloads_disturb_no_keep_alive_connection(self):
        key = self.keys("create", "--name", "a")
        self.configuration(self.nodes)
        serve = self.serve()
        over, calls, wrong = threading.Event(), [0] * 8, []

        def caller(i):
            connection = http.client.HTTPConnection(self.public, timeout=PATIENCE_S)
            connection.connect()
            # A closed connection is an error instead of a silent reconnect.
            connection.auto_open = 0
            body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "getVoteAccounts", "params": []})
            try:
                while not over.is_set():
                    connection.request("POST", f"/v3/{key}", body, {"Content-Type": "application/json"})
                    answer = connection.getresponse()
                    if answer.status != 200 or b'"result"' not in answer.read():
                        wrong.append(answer.status)
                    calls[i] += 1
            except Exception as error:
                wrong.append(repr(error))
            finally:
                connection.close()

        def admin():
            request = urllib.request.Request(f"http://{self.admin}/api/reload", b"", {"Authorization": f"Bearer {TOKEN}"})
            try:
                with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                    return answer.status
            except urllib.error.HTTPError as refused:
                return refused.code

        callers = [threading.Thread(target=caller, args=(i,)) for i in range(len(calls))]
        for thread in callers:
            thread.start()
        applied, rejected = 'config_reloads_total{result="applied"}', 'config_reloads_total{result="rejected"}'
        try:
            # slotfront detects the changed file.
            self.configuration(self.nodes, rps=90000)
            self.counted(applied, 1)
            self.config.write_text("no configuration")
            self.counted(rejected, 1)
            serve.send(signal.SIGHUP)
            self.counted(rejected, 2)
            self.assertEqual(admin(), 409)
            self.configuration([*self.nodes, self.nodes[0]], rps=80000)
            self.counted(applied, 2)
            serve.send(signal.SIGHUP)
            self.counted(applied, 3)
            self.configuration(self.nodes)
            self.assertEqual(admin(), 200)
            # Six commands at once change the key file while slotfront uses it.
            making = [subprocess.Popen([BINARY, "keys", "create", "--name", f"k{i}", "--file", self.keys_file],
                                       stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) for i in range(6)]
            made = [process.communicate(timeout=PATIENCE_S)[0].strip() for process in making]
            for late in made:
                eventually(lambda: call(serve.url(late), "getClusterNodes", [])[0] == 200, "a key was lost")
            good = self.keys_file.read_text()
            self.keys_file.write_text(good + good)
            self.counted('key_file_reads_total{result="rejected"}', 1)
            self.assertEqual(call(f"http://{self.public}/v3/{late}", "getClusterNodes", [])[0], 200)
        finally:
            over.set()
            for thread in callers:
                thread.join()
        self.assertEqual(wrong, [])
        self.assertTrue(all(calls), calls)
        self.assertEqual(serve.stop(), 0)


class KeyFile(GatewayTest):
    def test_a_restless_key_file_revokes_and_takes_keys(self):
        key = self.keys("create", "--name", "leaked")
        self.configuration(self.nodes)
        serve = self.serve()
        self.assertEqual(call(serve.url(key), "getClusterNodes", [])[0], 200)
        over, made = threading.Event(), []

        def restless():
            while not over.is_set():
                made.append(self.keys("create", "--name", "new"))
                over.wait(0.3)

        maker = threading.Thread(target=restless)
        maker.start()
        try:
            eventually(lambda: len(made) > 3, "no key was made")
            self.keys("revoke", "--name", "leaked")
            eventually(lambda: call(serve.url(key), "getClusterNodes", [])[0] == 401, "the revoked key stays valid")
            new = made[-1]
            eventually(lambda: call(serve.url(new), "getClusterNodes", [])[0] == 200, "the new key is never valid")
            self.assertTrue(maker.is_alive())
        finally:
            over.set()
            maker.join()

    @unittest.skipUnless(os.geteuid() == 0, "only root can give files to another user")
    def test_keys_of_root_leave_the_folder_to_its_user(self):
        nobody, home, binary = 65534, Path(self.folder, "state"), Path(self.folder, "slotfront")
        home.mkdir()
        os.chown(home, nobody, nobody)
        shutil.copy(BINARY, binary)
        os.chmod(self.folder, 0o755)
        self.configuration(self.nodes)
        self.config.write_text(self.config.read_text().replace("[auth]", '[auth]\nkeys_file = "state/keys.toml"\nusage_file = "off"'))
        self.keys_file = home / "keys.toml"

        def create(name):
            request = urllib.request.Request(f"http://{admin}/api/keys", json.dumps({"name": name}).encode(),
                                             {"Authorization": f"Bearer {TOKEN}"})
            try:
                with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                    return answer.status, json.load(answer)
            except urllib.error.HTTPError as refused:
                return refused.code, json.load(refused)

        self.keys("create", "--name", "a")
        serve = self.start(Program("serve", "--config", self.config, program=binary, user=nobody, group=nobody, extra_groups=[]))
        admin = serve.wait_for(r"status on http://(127\.0\.0\.1:\d+)/").group(1)
        self.assertEqual(create("b")[0], 200)
        self.keys("revoke", "--name", "a")
        self.assertEqual(create("c")[0], 200)
        # What refuses is named.
        os.chown(home / "keys.toml.lock", 0, 0)
        status, answer = create("d")
        self.assertEqual(status, 500)
        self.assertIn("keys.toml.lock: permission denied; it belongs to user 0", answer["error"])


class Audit(GatewayTest):
    def test_every_admin_call_is_in_the_audit_log(self):
        self.configuration(self.nodes)
        serve = self.serve()

        def admin(verb, path, body=None):
            text = b"" if body is None else json.dumps(body).encode()
            request = urllib.request.Request(f"http://{self.admin}{path}", text or None,
                                             {"Authorization": f"Bearer {TOKEN}"}, method=verb)
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                return json.load(answer)

        made = admin("POST", "/api/keys", {"name": "a"})["id"]
        for verb, path, body, action in [
            ("GET", "/api/keys", None, "key.list"),
            ("GET", f"/api/keys/{made}/usage", None, "key.usage"),
            ("POST", f"/api/keys/{made}/rotate", None, "key.rotate"),
            ("POST", f"/api/keys/{made}/revoke", None, "key.revoke"),
            ("POST", "/api/cache/purge", None, "cache.purge"),
            ("POST", "/api/upstreams/node-0/drain?force=true", None, "upstream.drain"),
            ("POST", "/api/upstreams/node-0/restore", None, "upstream.restore"),
            ("POST", "/api/reload", None, "reload"),
            ("GET", "/api/log", None, "log.read"),
            ("PUT", "/api/log", {"filter": "info"}, "log.set"),
        ]:
            admin(verb, path, body)
            serve.wait_for(r"audit\.action\W+" + re.escape(action))
        serve.wait_for(r"audit\.action\W+key\.create")


class Killed(GatewayTest):
    def test_kill_loses_at_most_one_second_of_usage(self):
        key = self.keys("create", "--name", "a")
        self.configuration(self.nodes)
        serve = self.serve()
        usage_file, made = Path(self.folder, "usage.json"), itertools.count(1)

        def seconds_until_saved():
            """Makes a call, and waits until its usage is written."""
            made_at, calls = time.monotonic(), next(made)
            self.assertEqual(call(serve.url(key), "getClusterNodes", [])[0], 200)
            eventually(lambda: usage_file.exists() and f',{calls}.0],"calls"' in usage_file.read_text(), "usage is not saved")
            return time.monotonic() - made_at

        # A call right after its predecessor was saved waits for the next save, and for a busy machine.
        seconds_until_saved()
        shortest, deadline = seconds_until_saved(), time.monotonic() + PATIENCE_S
        while shortest > 2:
            self.assertLess(time.monotonic(), deadline, f"saved once in {shortest} s")
            shortest = min(shortest, seconds_until_saved())
        serve.stop(signal.SIGKILL)
        self.serve()
        self.assertEqual(self.used(key), next(made) - 1)

    def test_graceful_stop_loses_no_usage(self):
        key = self.keys("create", "--name", "a")
        self.configuration(self.nodes)
        serve = self.serve()
        for _ in range(7):
            call(f"http://{self.public}/v3/{key}", "getClusterNodes", [])
        self.assertEqual(serve.stop(), 0)
        self.serve()
        self.assertEqual(self.used(key), 7.0)


if __name__ == "__main__":
    unittest.main()

"""Files and shared values of a former version in the hands of today's, and what today's version writes in the hands of that one.

The former version's files are in tests/fixtures/upgrade. It cannot be run here, so its readers are written down as the members
that they accept: all of them refuse a file with any other member.
"""

import base64
import json
import re
import shutil
import socket
import time
import tomllib
import unittest
from datetime import datetime, timezone
from pathlib import Path

from gateway import PATIENCE_S, ROOT, TOKEN, GatewayTest, Store, call, eventually, run

FORMER = ROOT / "tests" / "fixtures" / "upgrade"
SECRETS = json.loads((FORMER / "secrets.json").read_text())
SHARED_SECRET = "a-secret-of-the-test"
# What the readers of the former version accept.
KEY_MEMBERS = {"id", "name", "plan", "sha256", "created", "expires", "revoked", "origins", "addresses", "methods", "previous"}
USAGE_MEMBERS, USAGE_OF_KEY = {"date", "keys"}, {"day_units", "month_units"}
UNITS_MEMBERS = {"day", "day_units", "month", "month_units", "last"}
# The settings that are gone, each of which its example file sets to what slotfront does anyway.
GONE = {"pool.hedge", "pool.merge", "server.client_ip_header"}
LATER = "2099-01-01T00:00:00Z"


def today():
    return datetime.now(timezone.utc)


class Redis:
    """A connection to a store, for the few commands of this test."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        self.file = self.socket.makefile("rb")

    def __call__(self, *words):
        words = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        self.socket.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words))
        return self.answer()

    def answer(self):
        line = self.file.readline()
        kind, rest = line[:1], line[1:-2]
        if kind == b"$":
            return None if rest == b"-1" else self.file.read(int(rest) + 2)[:-2]
        if kind == b"*":
            return [self.answer() for _ in range(int(rest))]
        assert kind != b"-", line
        return rest

    def hash(self, name):
        found = [part.decode() for part in self("HGETALL", name)]
        return dict(zip(found[::2], found[1::2]))

    def close(self):
        self.file.close()
        self.socket.close()


class Upgrade(GatewayTest):
    def setUp(self):
        super().setUp()
        shutil.copy(FORMER / "keys.toml", self.keys_file)
        # The old secret of the rotated key was valid for a day.
        text = re.sub(r'until = "[^"]*"', f'until = "{LATER}"', self.keys_file.read_text())
        self.keys_file.write_text(text)
        self.given = text
        self.usage_file = Path(self.folder, "usage.json")

    def give_usage(self):
        """Writes the former version's usage file, as it would have written it today."""
        text = re.sub(r'"date":"[^"]*"', f'"date":"{today():%Y-%m-%d}"', (FORMER / "usage.json").read_text())
        self.usage_file.write_text(text)
        return text

    def configure(self, more=""):
        self.config.write_text('[server]\nlisten = "127.0.0.1:0"\nadmin_listen = "127.0.0.1:0"\ndrain_timeout = "1s"\n'
                               f'[auth]\nusage_file = "usage.json"\nadmin_token = "{TOKEN}"\n'
                               '[plans.standard]\nrps = 1000\nmonthly_units = 100000\n' + more
                               + f'[[upstream]]\nname = "a"\nurl = "http://127.0.0.1:{self.nodes[0]}"\n')

    def refused(self):
        """Starts slotfront, which must not start. Returns its exit code and what it says."""
        ran = run("serve", "--config", self.config, timeout=PATIENCE_S)
        return ran.returncode, ran.stdout + ran.stderr

    def test_former_example_configuration_is_read(self):
        config = Path(self.folder, "example.toml")
        shutil.copy(FORMER / "example.toml", config)
        check = run("check", "--config", config)
        self.assertEqual(check.returncode, 0, check.stdout + check.stderr)
        named = set(re.findall(r"^warning  (\S+) is no longer a setting, and says what slotfront does anyway$", check.stdout, re.M))
        self.assertEqual(named, GONE)
        self.assertEqual(check.stdout.count("warning"), len(GONE), check.stdout)
        self.assertEqual(config.read_text(), (FORMER / "example.toml").read_text())

    def test_former_setting_that_asks_for_what_is_gone_is_named(self):
        config = Path(self.folder, "example.toml")
        config.write_text((FORMER / "example.toml").read_text().replace('hedge = "off"', 'hedge = "p95"'))
        check = run("check", "--config", config)
        self.assertEqual(check.returncode, 2, check.stdout)
        self.assertRegex(check.stderr, r"(?s)1 problem\n.*pool\.hedge = .p95. \(line \d+\)\n    is no longer a setting\n    fix: ")

    def test_former_keys_work_and_are_changed_in_their_form(self):
        self.configure()
        serve = self.serve().ready()
        statuses = {name: call(serve.url(secret), "getClusterNodes", [])[0] for name, secret in SECRETS.items()}
        self.assertEqual(statuses, {"plain": 200, "scoped": 403, "rotated": 200, "rotated-new": 200, "gone": 401})
        self.assertEqual(self.keys_file.read_text(), self.given, "reading the file leaves it as it is")
        self.assertEqual(self.keys("list").count("\n"), 4)

        made = self.keys("create", "--name", "later", "--expires", "90d", "--origin", "https://a.example", "--address", "10.0.0.1",
                         "--method", "getBlock")
        again = self.keys("rotate", "--name", "plain")
        self.keys("revoke", "--name", "rotated")
        eventually(lambda: call(serve.url(again), "getClusterNodes", [])[0] == 200, "the rotated key is read")
        # The unknown key above may have used up what an address may try.
        eventually(lambda: call(serve.url(made), "getClusterNodes", [])[0] == 403, "the restricted key is read")
        before, after = tomllib.loads(self.given)["key"], tomllib.loads(self.keys_file.read_text())["key"]
        for key in after:
            self.assertLessEqual(set(key), KEY_MEMBERS)
            self.assertTrue(all(set(one) == {"sha256", "until"} for one in key.get("previous", [])), key)
            self.assertRegex(key["sha256"], "^[0-9a-f]{64}$")
            for member in ("created", "expires", "revoked"):
                self.assertRegex(key.get(member, LATER), r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
        # The other keys are as they were, letter by letter.
        self.assertEqual([key for key in after if key["name"] in ("scoped", "gone")], [key for key in before if key["name"] in ("scoped", "gone")])
        self.assertIn(self.given.split("[[key]]")[2], self.keys_file.read_text())

    def test_former_usage_goes_on(self):
        self.give_usage()
        self.configure()
        serve = self.serve().ready()
        self.assertEqual(self.used(SECRETS["plain"]), 45.0)
        self.assertEqual(call(serve.url(SECRETS["plain"]), "getClusterNodes", [])[0], 200)
        self.assertEqual(serve.stop(), 0)
        written = json.loads(self.usage_file.read_text())
        self.assertEqual(set(written), USAGE_MEMBERS)
        self.assertTrue(all(set(used) == USAGE_OF_KEY for used in written["keys"].values()), written)
        self.assertEqual(sorted(used["month_units"] for used in written["keys"].values()), [4.0, 46.0])

    def test_unknown_members_are_named_and_the_files_kept(self):
        """What a later version may have added: nothing starts that would drop it."""
        self.configure()
        later = json.loads(self.give_usage())
        later["keys"] = {id: {**used, "hour_units": 1.0} for id, used in later["keys"].items()}
        self.usage_file.write_text(json.dumps(later))
        code, said = self.refused()
        self.assertEqual(code, 2, said)
        self.assertRegex(said, r"auth\.usage_file: \S+usage\.json: unknown field `hour_units`")
        self.assertEqual(json.loads(self.usage_file.read_text()), later)

        self.give_usage()
        self.keys_file.write_text(self.given + 'tier = "gold"\n')
        code, said = self.refused()
        self.assertEqual(code, 2, said)
        self.assertRegex(said, r"auth\.keys_file: \S+keys\.toml: .*\btier\b")
        changed = run("keys", "create", "--name", "x", "--file", self.keys_file)
        self.assertNotEqual(changed.returncode, 0, changed.stdout)
        self.assertIn("tier", changed.stderr)
        self.assertEqual(self.keys_file.read_text(), self.given + 'tier = "gold"\n')

    def test_shared_values_of_both_versions_stand_side_by_side(self):
        store = self.start(Store(self.folder))
        redis = Redis(store.port)
        self.addCleanup(redis.close)
        given = json.loads((FORMER / "store.json").read_text())
        now = today()
        period = {"day": int(time.time()) // 86400, "month": (now.year - 1970) * 12 + now.month - 1}
        for entry in given:
            if "value" in entry:
                redis("SET", entry["name"], base64.b64decode(entry["value"]))
            else:
                # As if it had been written today.
                redis("HSET", entry["name"], *(word for pair in {**entry["hash"], **period}.items() for word in pair))
        self.configure(f'[shared]\nurl = "redis://127.0.0.1:{store.port}"\nsecret = "{SHARED_SECRET}"\n')
        serve = self.serve().ready()
        ask = lambda method: call(serve.url(SECRETS["plain"]), method, [])
        # The store has the former version's answers to these, which are not read.
        for method in ("getClusterNodes", "getVoteAccounts"):
            self.assertIn("fwd=miss", ask(method)[1])
        eventually(lambda: ask("getVoteAccounts")[0] == 200 and self.used(SECRETS["plain"]) > 45.0, "the shared units do not go on")
        own = lambda: {name.decode() for name in redis("KEYS", "*")} - {entry["name"] for entry in given}
        eventually(lambda: any(":cache2:" in name for name in own()), "today's version shares no answer")
        self.assertEqual(self.metric('shared_requests_total{operation="get",result="foreign"}'), 0)
        eventually(lambda: any(int(redis.hash(entry["name"])["month_units"]) > int(entry["hash"]["month_units"])
                               for entry in given if "hash" in entry), "the units are not written")
        self.assertEqual(serve.stop(), 0)
        for entry in given:
            if "value" in entry:
                self.assertEqual(redis("GET", entry["name"]), base64.b64decode(entry["value"]), entry["name"])
            else:
                units = redis.hash(entry["name"])
                self.assertEqual(set(units), UNITS_MEMBERS)
                self.assertGreaterEqual(int(units["month_units"]), int(entry["hash"]["month_units"]))
        # None of today's names is one that the former version reads, but for the units.
        strangers = [name for name in own() if re.search(r":(cache1|purges1|limit):", name)]
        self.assertEqual(strangers, [])


if __name__ == "__main__":
    unittest.main()

"""The image: what is in it, a life of it, and what it says when it is run in a wrong way."""

import json
import os
import signal
import stat
import threading
from pathlib import Path

import container
from scene import ADMIN, BINARY, CONFIG, IMAGE, USER, ImageTest, build, eventually, metric, read_only

MIB = container.MIB


class Contents(ImageTest):
    def test_image_has_the_program_its_papers_and_no_shell(self):
        config = IMAGE.config
        self.assertEqual((config["User"], config["StopSignal"], config["WorkingDir"]), ("65532:65532", "SIGTERM", "/var/lib/slotfront"))
        self.assertEqual(set(config["ExposedPorts"]), {"8080/tcp", "8081/tcp", "9899/tcp"})
        self.assertEqual(self.ended(["--version"], mounts=[]), (0, f"slotfront 0.1.0 ({build.REVISION})\n"))
        labels = config["Labels"]
        self.assertEqual(labels["org.opencontainers.image.revision"], build.REVISION)
        sbom = json.loads((IMAGE.root / labels["org.cyclonedx.sbom"].lstrip("/")).read_text())
        self.assertEqual((sbom["bomFormat"], sbom["metadata"]["component"]["name"]), ("CycloneDX", "slotfront"))
        self.assertIn("tokio", {part["name"] for part in sbom["components"]})
        for licence in ("LICENSE-MIT", "LICENSE-APACHE"):
            self.assertTrue((IMAGE.root / "usr/share/slotfront" / licence).is_file())
        self.assertTrue((IMAGE.root / "usr/local/share/man/man1/slotfront.1").is_file())
        found = {path.name for path in IMAGE.root.rglob("*") if path.is_file() and os.access(path, os.X_OK)}
        self.assertEqual(found & {"sh", "bash", "dash", "busybox", "apt", "apt-get", "dpkg", "python3", "perl"}, set())
        state = (IMAGE.root / "var/lib/slotfront").stat()
        self.assertEqual((state.st_uid, state.st_gid, list((IMAGE.root / "var/lib/slotfront").iterdir())), (USER, USER, []))
        # Nobody but root can change the program.
        self.assertEqual((BINARY.stat().st_uid, stat.S_IMODE(BINARY.stat().st_mode) & 0o022), (0, 0))
        whole = sum(path.lstat().st_size for path in IMAGE.root.rglob("*") if path.is_file() and not path.is_symlink())
        rest = whole - BINARY.stat().st_size
        print(f"\n  the image has {whole / MIB:.0f} MiB, {rest / MIB:.0f} MiB of them beside the program", flush=True)
        self.assertLess(rest, 40 * MIB)


class Life(ImageTest):
    def test_container_serves_reloads_and_drains(self):
        # The gateway is there before its node, and before its first key.
        serve = self.container()
        serve.wait_for("slotfront is running")
        health = IMAGE.config["Healthcheck"]["Test"]
        self.assertEqual(health[0], "CMD")
        early = serve.execute(*health[1:])
        self.assertEqual(early.returncode, 1, early)
        self.assertRegex(early.stdout, "^unready\n")
        self.nodes()
        self.healthy(serve)
        key = self.key()
        eventually(lambda: self.call(key)[0] == 200, "the key is read")
        account = ["11111111111111111111111111111111", {"encoding": "base64"}]
        self.assertIn("fwd=miss", self.call(key, "getAccountInfo", account)[1])
        self.assertIn("; hit", self.call(key, "getAccountInfo", account)[1])

        status = serve.execute("/usr/local/bin/slotfront", "--version")
        self.assertEqual(status.returncode, 0, status.stderr)
        inside = json.loads(serve.runtime("state", serve.name).stdout)["pid"]
        facts = dict(line.split(":\t", 1) for line in Path(f"/proc/{inside}/status").read_text().splitlines() if ":\t" in line)
        self.assertEqual((facts["Uid"].split()[0], facts["CapEff"], facts["NoNewPrivs"]), (str(USER), "0" * 16, "1"))
        mounts = [line.split() for line in Path(f"/proc/{inside}/mountinfo").read_text().splitlines()]
        self.assertEqual([mount[5].split(",")[0] for mount in mounts if mount[4] == "/"], ["ro"])

        # A mounted file is changed in place, because a rename would leave the old one mounted.
        self.config.write_text(CONFIG.replace("rps = 1000", "rps = 2000"))
        serve.send(signal.SIGHUP)
        applied = 'config_reloads_total{result="applied"}'
        eventually(lambda: metric(ADMIN, applied) >= 1, serve.printed)
        self.config.write_text("no configuration")
        serve.send(signal.SIGHUP)
        eventually(lambda: metric(ADMIN, 'config_reloads_total{result="rejected"}') >= 1, serve.printed)
        self.assertEqual(self.call(key)[0], 200)

        failed, calls, over = [], [], threading.Event()

        def caller():
            while not over.is_set():
                try:
                    calls.append(self.call(key)[0])
                except ConnectionRefusedError:
                    return
                except OSError as error:
                    # urllib wraps a refused connection. Any other failure is a call that was lost.
                    if not isinstance(getattr(error, "reason", None), ConnectionRefusedError):
                        failed.append(repr(error))
                    return

        callers = [threading.Thread(target=caller) for _ in range(4)]
        for thread in callers:
            thread.start()
        eventually(lambda: len(calls) > 50, "calls arrive")
        try:
            serve.send(signal.SIGTERM)
            serve.wait_for("requests in flight finish first")
            self.assertEqual(serve.ended(), 0, serve.printed())
        finally:
            over.set()
            for thread in callers:
                thread.join()
        self.assertEqual((failed, set(calls)), ([], {200}))
        usage = self.volume.path / "usage.json"
        self.assertEqual(usage.stat().st_uid, USER)
        self.assertGreater(json.loads(usage.read_text().splitlines()[-1])["used"][1], 50)


class WrongUse(ImageTest):
    """Each of these ends with a message that says what to do, or works."""

    def test_without_a_configuration(self):
        code, said = self.ended(mounts=[self.volume.mount()])
        self.assertEqual(code, 2, said)
        self.assertIn("/etc/slotfront/slotfront.toml: 1 problem", said)
        self.assertRegex(said, r"(?s)it does not exist.*fix: name a readable file.*container needs it mounted")

    def test_with_an_unreadable_configuration(self):
        self.config.chmod(0o600)
        code, said = self.ended()
        self.assertEqual(code, 2, said)
        self.assertIn("cannot be read: permission denied; it belongs to user 0 with mode 600, and slotfront runs as user 65532", said)

    def test_with_a_folder_in_place_of_the_configuration(self):
        # Docker makes a folder where the file of a bind mount is missing.
        self.config.unlink()
        self.config.mkdir()
        code, said = self.ended()
        self.assertEqual((code, "cannot be read: is a directory" in said), (2, True), said)

    def test_with_a_key_file_of_another_owner(self):
        file = self.volume.path / "keys.toml"
        file.write_text("")
        file.chmod(0o600)
        code, said = self.ended()
        self.assertEqual(code, 2, said)
        self.assertRegex(said, r"auth\.keys_file: \S+keys\.toml: cannot be read: permission denied; it belongs to user 0")
        code, said = self.ended(["keys", "create", "--name", "a", "--file", "/var/lib/slotfront/keys.toml"])
        self.assertEqual((code, file.read_text()), (1, ""))
        self.assertRegex(said, "keys.toml: permission denied; it belongs to user 0 with mode 600")

    def test_with_a_usage_file_of_another_owner(self):
        file = self.volume.path / "usage.json"
        file.write_text('{"date":"2026-01-01","keys":{}}')
        file.chmod(0o600)
        code, said = self.ended()
        self.assertEqual(code, 2, said)
        self.assertRegex(said, r"auth\.usage_file: \S+usage\.json: cannot be read: permission denied; it belongs to user 0")

    def test_with_64_mib_of_memory(self):
        self.nodes()
        key = self.key()
        serve = self.container(memory=64 * MIB)
        serve.wait_for(r"the memory limit is 64 MiB, but with a full cache \(cache.capacity\) slotfront takes 674 MiB")
        self.healthy(serve)
        eventually(lambda: self.call(key)[0] == 200, serve.printed)
        self.assertEqual(serve.stop(), 0)
        small = '[cache]\ncapacity = "2MiB"\n[pool]\nmax_buffered = "4MiB"\n[server]\nmax_outgoing = "4MiB"\n'
        self.config.write_text(small + CONFIG.replace("[server]\n", "").replace('listen = "0.0.0.0:8080"\n', "", 1))
        serve = self.container(memory=64 * MIB, environment={"SLOTFRONT_SERVER__LISTEN": "0.0.0.0:8080"})
        self.healthy(serve)
        self.assertNotIn("memory limit", serve.printed())
        # Blocks are the largest answers.
        slot = self.call(key, "getAccountInfo", ["11111111111111111111111111111111"])[2]["result"]["context"]["slot"]
        for back in range(40, 240):
            status, _, answer = self.call(key, "getBlock", [slot - back, {"maxSupportedTransactionVersion": 0}])
            self.assertEqual(status, 200, answer)
        self.assertLessEqual(metric(ADMIN, "cache_bytes"), 2 * MIB)
        self.assertEqual(serve.stop(), 0)

    def test_with_a_clock_of_1970(self):
        library = next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))))
        self.nodes()
        key = self.key()
        clock = {"LD_PRELOAD": "/faketime.so", "FAKETIME": "@1970-01-01 00:00:05", "FAKETIME_DONT_FAKE_MONOTONIC": "1",
                 "DONT_FAKE_MONOTONIC": "1", "FAKETIME_NO_CACHE": "1"}
        mounts = [self.volume.mount(), read_only(self.config, "/etc/slotfront/slotfront.toml"), read_only(library, "/faketime.so")]
        usage = self.volume.path / "usage.json"
        usage.write_text('{"day":"2026-11-01","key":"key-1","name":"a","used":[1.0,5.0],"calls":{}}\n')
        os.chown(usage, USER, USER)
        before = usage.read_text()
        serve = self.container(mounts=mounts, environment=clock)
        serve.wait_for("the clock says 1970-01-01T00:00")
        self.healthy(serve)
        eventually(lambda: self.call(key)[0] == 200, serve.printed)
        self.assertIn("; hit", self.call(key)[1])
        self.assertEqual(serve.stop(), 0)
        # The counts of the month outlast the wrong clock.
        self.assertEqual(usage.read_text(), before)

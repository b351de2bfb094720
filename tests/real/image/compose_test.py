"""deploy/compose/compose.yaml, acted out: the image for slotfront's services, Debian's programs for those of others.

The file is read, not imitated: commands, environment, mounts, ports, users and health checks are taken from it. All services
share one network here, in which each name has an address of its own; a test of its own checks that a service that names another
one shares a network with it.
"""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

from gateway import PATIENCE_S, ROOT, TARGET, Program
from scene import ImageTest, eventually, get, read_only, secret

COMPOSE = ROOT / "deploy" / "compose"
TOOLS = ROOT / "tests" / "real" / "deploy"
# Debian's name of a program, where it is not that of the image. Valkey answers to the commands of Redis.
DEBIAN = {"valkey-server": "redis-server", "valkey-cli": "redis-cli"}
# What the images of others run if the file gives no command, by their documentation.
COMMANDS = {"prometheus": ["prometheus", "--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/prometheus"]}


def program(name):
    found = shutil.which(name) or shutil.which(DEBIAN.get(name, name))
    assert found, f"{name} is missing"
    return found


def read_yaml(*files):
    ran = subprocess.run([TARGET / "deploy/venv/bin/python", TOOLS / "read.py", "yaml", *files], capture_output=True, text=True,
                         timeout=4 * PATIENCE_S, check=True)
    return json.loads(ran.stdout)


def substituted(text):
    """Returns a value with the defaults of its variables."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", str(text))


class ComposeTest(ImageTest):
    @classmethod
    def setUpClass(cls):
        cls.document, = read_yaml(COMPOSE / "compose.yaml")
        cls.services = cls.document["services"]
        # A file of the test's own mount namespace.
        hosts = "".join(f"127.0.1.{i} {name}\n" for i, name in enumerate(cls.services, 1))
        own = Path(TARGET / "image" / "hosts")
        own.write_text(f"127.0.0.1 localhost\n{hosts}")
        subprocess.run(["mount", "--bind", own, "/etc/hosts"], check=True)
        cls.addClassCleanup(subprocess.run, ["umount", "/etc/hosts"], check=True)

    def setUp(self):
        super().setUp()
        self.volumes = {"slotfront": self.volume}

    def service(self, name, arguments=None):
        """Starts a service that runs the image."""
        service = self.services[name]
        self.assertTrue(service["image"].startswith("slotfront:"))
        mounts = []
        for source, inside in (volume.split(":")[:2] for volume in service.get("volumes", [])):
            mounts.append(read_only(COMPOSE / source, inside) if source.startswith(".") else self.volumes[source].mount())
        environment = {key: substituted(value) for key, value in service.get("environment", {}).items()}
        return self.container(service.get("command") if arguments is None else arguments, mounts, entrypoint=service.get("entrypoint"),
                              environment=environment, workdir=service.get("working_dir"))

    def debian(self, name):
        """Starts a service of others with Debian's program, in a folder that has what the file mounts."""
        service = self.services[name]
        root = self.folder / name
        root.mkdir()
        inside = {volume.split(":")[1]: volume.split(":")[0] for volume in service.get("volumes", [])}
        for target, source in inside.items():
            place = root / target.lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            if source.startswith("."):
                place.symlink_to((COMPOSE / source).resolve())
            else:
                place.mkdir()
        command = [substituted(word) for word in service.get("command") or COMMANDS[name]]
        # A path of the container is the same path below the folder.
        command = [re.sub(r"(?<==)/", f"{root}/", word) for word in command]
        options = {}
        if "user" in service:
            options["user"], options["group"] = map(int, service["user"].split(":"))
            os.chown(root, options["user"], options["group"])
            options["extra_groups"] = []
        started = Program(*command[1:], program=program(command[0]), cwd=root, **options)
        self.addCleanup(started.end)
        return started

    def check_health(self, name, running):
        kind, *command = self.services[name]["healthcheck"]["test"]
        self.assertEqual(kind, "CMD")
        asked = lambda: subprocess.run([program(command[0]), *command[1:]], capture_output=True, text=True)
        eventually(lambda: asked().returncode == 0, running.printed)


class Compose(ComposeTest):
    def test_demo_serves_shares_and_is_watched(self):
        valkey = self.debian("valkey")
        self.check_health("valkey", valkey)
        self.service("sim").wait_for("node 2: http")
        serve = self.service("slotfront")
        serve.wait_for("slotfront is running")
        self.healthy(serve)
        made = self.service("keys", ["create", "--name", "wallet"])
        self.assertEqual(made.ended(), 0, made.printed())
        key = secret(made.printed())
        listed = self.service("keys")
        self.assertEqual((listed.ended(), "wallet" in listed.printed()), (0, True), listed.printed())
        # Published ports are those on which the containers listen.
        ports = [port.rsplit(":", 1) for port in self.services["slotfront"]["ports"]]
        self.assertEqual([inside for _, inside in ports], ["8080", "8081", "9899"])
        eventually(lambda: self.call(key)[0] == 200, serve.printed)
        # An answer that lives for two seconds or more is in the store.
        eventually(lambda: self.call(key, "getVoteAccounts")[0] == 200 and self.stored() > 0, "the store stays empty")
        self.assertEqual(self.call(key)[2]["jsonrpc"], "2.0")
        prometheus = self.debian("prometheus")
        self.check_prometheus(prometheus)
        self.assertEqual((serve.stop(), prometheus.stop(), valkey.stop()), (0, 0, 0))

    def stored(self):
        asked = subprocess.run([program("valkey-cli"), "-h", "valkey", "dbsize"], capture_output=True, text=True)
        return int(re.search(r"\d+", asked.stdout).group())

    def check_prometheus(self, prometheus):
        """Checks that Prometheus scrapes slotfront by its name in the file, and evaluates both files of rules."""
        port = self.services["prometheus"]["ports"][0].split(":")[-1]
        self.assertEqual(port, "9090")
        ask = lambda path: json.loads(get(f"http://127.0.0.1:{port}/api/v1/{path}")[1])["data"]

        def answers():
            try:
                return ask("query?query=up%7Bjob%3D%22slotfront%22%7D")["result"]
            except OSError:
                return None

        up = eventually(answers, prometheus.printed, patience=3 * PATIENCE_S)
        self.assertEqual((up[0]["value"][1], up[0]["metric"]["instance"]), ("1", "slotfront:9899"))
        version = ask("query?query=slotfront_build_info")["result"]
        self.assertEqual(len(version), 1)
        files = {group["file"].rsplit("/", 1)[1] for group in ask("rules")["groups"]}
        self.assertEqual(files, {"recording.rules.yml", "alerts.rules.yml"})
        evaluated = lambda: all(rule["health"] == "ok" for group in ask("rules")["groups"] for rule in group["rules"])
        eventually(evaluated, lambda: json.dumps(ask("rules"))[:3000], patience=3 * PATIENCE_S)

    def test_services_that_name_each_other_share_a_network(self):
        names = "|".join(self.services)
        texts = {name: json.dumps(service.get("environment", {})) for name, service in self.services.items()}
        texts["prometheus"] += (COMPOSE / "prometheus.yml").read_text()
        texts["grafana"] += (ROOT / "deploy/grafana/provisioning/datasources/slotfront.yaml").read_text()
        links = {(name, other) for name, text in texts.items() for other in re.findall(rf"(?:http://|redis://|\")({names}):\d+", text)}
        self.assertEqual(links, {("slotfront", "sim"), ("slotfront", "valkey"), ("prometheus", "slotfront"), ("grafana", "prometheus")})
        for name, other in links:
            shared = set(self.services[name]["networks"]) & set(self.services[other]["networks"])
            self.assertTrue(shared, f"{name} cannot reach {other}")
        self.assertEqual(self.services["keys"]["network_mode"], "none")

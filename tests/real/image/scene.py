"""What the tests of the image share: the built image, a folder, a configuration, keys, simulated nodes."""

import pickle
import re
import tempfile
import unittest
from pathlib import Path

import build
from container import Container, Volume, read_only
from gateway import call, eventually, get, metric

IMAGE = pickle.loads((build.WORK / "built.pickle").read_bytes())
BINARY = IMAGE.root / "usr/local/bin/slotfront"
USER = 65532
PUBLIC, ADMIN = "127.0.0.1:8080", "127.0.0.1:9899"
CONFIG = '[server]\nlisten = "0.0.0.0:8080"\n[auth]\nkeys_file = "/var/lib/slotfront/keys.toml"\n' \
         '[plans.standard]\nrps = 1000\n[[upstream]]\nname = "node"\nurl = "http://127.0.0.1:8001"\n'


def secret(printed):
    """Returns the key that `keys create` has printed, between lines for people."""
    return re.search(r"sf_\w{40,}", printed).group()


class ImageTest(unittest.TestCase):
    def setUp(self):
        # On the file system of the image, of which containers have linked copies.
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory(dir=build.WORK)))
        self.volume = Volume(IMAGE, self.folder / "state")
        self.config = self.folder / "slotfront.toml"
        self.config.write_text(CONFIG)
        self.config.chmod(0o644)

    def container(self, arguments=None, mounts=None, **options):
        """Starts a container, by default with the configuration and the volume, and ends it with the test."""
        if mounts is None:
            mounts = [self.volume.mount(), read_only(self.config, "/etc/slotfront/slotfront.toml")]
        container = Container(IMAGE, self.folder, arguments, mounts=mounts, **options)
        self.addCleanup(container.end)
        return container

    def ended(self, *arguments, **options):
        """Runs a container to its end. Returns its exit code and its output."""
        container = self.container(*arguments, **options)
        return container.ended(), container.printed()

    def nodes(self):
        nodes = self.container(["sim", "--listen", "127.0.0.1:8001"], mounts=[])
        nodes.wait_for("node 0: http")
        return nodes

    def key(self):
        code, printed = self.ended(["keys", "create", "--name", "wallet", "--file", "/var/lib/slotfront/keys.toml"])
        self.assertEqual(code, 0, printed)
        return secret(printed)

    def healthy(self, container):
        eventually(lambda: container.execute(*IMAGE.config["Healthcheck"]["Test"][1:]).returncode == 0, container.printed)

    def call(self, key, method="getClusterNodes", params=()):
        return call(f"http://{PUBLIC}/v3/{key}", method, list(params))


__all__ = ["ADMIN", "BINARY", "CONFIG", "IMAGE", "PUBLIC", "USER", "ImageTest", "build", "eventually", "get", "metric", "read_only", "secret"]

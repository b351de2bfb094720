"""Runs an image with crun, as a careful engine does: read-only root, no capability, no new privileges, a process tree of its own.

The network is that of the test, which has one of its own, so the ports are those of the image.
"""

import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from gateway import Program

MIB = 1024 * 1024
# The number of the compose file, where the machine allows that many.
FILES = min(65536, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
RUNTIME = next((path for name in ("runc", "crun") if (path := shutil.which(name))), None)


class Volume:
    """A named volume: a folder that begins with the contents and the owner of the folder that it is mounted over."""

    def __init__(self, image, folder, inside="/var/lib/slotfront"):
        self.path, self.inside = Path(folder), inside
        shutil.copytree(image.root / inside.lstrip("/"), self.path)
        owner = (image.root / inside.lstrip("/")).stat()
        os.chown(self.path, owner.st_uid, owner.st_gid)

    def mount(self):
        return {"destination": self.inside, "source": str(self.path), "options": ["bind", "rw"]}


def read_only(source, inside):
    """Mounts a file of this machine."""
    return {"destination": inside, "source": str(Path(source).resolve()), "options": ["bind", "ro"]}


def specification(image, root, arguments, entrypoint, environment, mounts, memory, workdir):
    """Returns the configuration of the runtime for one container, from that of the image."""
    config = image.config
    command = [*(config["Entrypoint"] if entrypoint is None else entrypoint), *(config["Cmd"] if arguments is None else arguments)]
    user, group = map(int, config["User"].split(":"))
    process = {"terminal": False, "user": {"uid": user, "gid": group}, "args": [str(word) for word in command],
               "env": [*config["Env"], *(f"{name}={value}" for name, value in environment.items())],
               "cwd": workdir or config["WorkingDir"], "noNewPrivileges": True,
               "capabilities": {kind: [] for kind in ("bounding", "effective", "permitted", "inheritable", "ambient")},
               "rlimits": [{"type": "RLIMIT_NOFILE", "hard": FILES, "soft": FILES}]}
    system = [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755", "size=65536k"]},
        {"destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup", "options": ["nosuid", "noexec", "nodev", "ro"]},
        {"destination": "/etc/hosts", "source": "/etc/hosts", "options": ["bind", "ro"]},
    ]
    spaces = [{"type": kind} for kind in ("pid", "mount", "ipc", "uts")]
    resources = {"memory": {"limit": memory, "swap": memory}} if memory else {}
    return {"ociVersion": "1.0.2", "process": process, "root": {"path": str(root), "readonly": True}, "hostname": "slotfront",
            "mounts": system + [{"type": "bind", **mount} for mount in mounts],
            "linux": {"namespaces": spaces, "resources": resources}}


def linked(source, target):
    os.link(source, target, follow_symlinks=False)


class Container(Program):
    """A running container. Its output is that of its program, and so is its exit code."""

    count = 0

    def __init__(self, image, folder, arguments=None, *, entrypoint=None, environment=(), mounts=(), memory=None, workdir=None):
        Container.count += 1
        self.name = f"slotfront-{os.getpid()}-{Container.count}"
        bundle = Path(folder, self.name)
        bundle.mkdir()
        # The runtime makes the mount points, which must not stay in the image.
        root = shutil.copytree(image.root, bundle / "root", symlinks=True, copy_function=linked)
        spec = specification(image, root, arguments, entrypoint, dict(environment), mounts, memory, workdir)
        (bundle / "config.json").write_text(json.dumps(spec))
        self.state = Path(folder, "state")
        super().__init__("--root", self.state, "run", "--bundle", bundle, self.name, program=RUNTIME)

    def runtime(self, *arguments):
        return subprocess.run([RUNTIME, "--root", self.state, *map(str, arguments)], capture_output=True, text=True)

    def send(self, which):
        sent = self.runtime("kill", self.name, which.value)
        assert sent.returncode == 0, sent.stderr

    def execute(self, *command):
        """Runs a command in the container, such as its health check."""
        return self.runtime("exec", self.name, *command)

    def end(self):
        self.runtime("delete", "--force", self.name)
        super().end()

"""Builds deploy/Dockerfile and unpacks the image.

A container engine builds it where there is one. Elsewhere Debian's buildah does, as root, without an engine. It then has no
registry to get base images from, so two stand-ins take their names, made of Debian packages by debootstrap:

- `rust:*-slim-*` is a minimal Debian with a C compiler. The Rust toolchain is that of this machine, mounted.
- `gcr.io/distroless/cc-debian12:nonroot` has glibc, libgcc, the certificates and the users, unpacked without their scripts.

Third-party crates that this machine has compiled already are not compiled again: the build folder of the image begins with
links to them. Whatever is made lies in target/image, so the second run is quicker.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from gateway import ROOT, TARGET

WORK = TARGET / "image"
DOCKERFILE = ROOT / "deploy" / "Dockerfile"
TAG = "slotfront:test"
REVISION = "0123456789ab"
SUITE = re.search(r"^ARG DEBIAN=(\w+)$", DOCKERFILE.read_text(), re.M).group(1)
RUST = re.search(r"^ARG RUST=([\d.]+)$", DOCKERFILE.read_text(), re.M).group(1)
BUILD_BASE = f"docker.io/library/rust:{RUST}-slim-{SUITE}"
FINAL_BASE = re.search(r"^FROM (gcr\.io/\S+)$", DOCKERFILE.read_text(), re.M).group(1)
# What distroless/cc consists of.
FINAL_PACKAGES = ("base-files", "netbase", "tzdata", "libc6", "libgcc-s1", "libstdc++6", "gcc-12-base", "ca-certificates", "libssl3")
USERS = "root:x:0:0:root:/root:/sbin/nologin\nnobody:x:65534:65534:nobody:/nonexistent:/sbin/nologin\n" \
        "nonroot:x:65532:65532:nonroot:/home/nonroot:/sbin/nologin\n"
# A cold build on two busy cores. With an engine, the base images are downloaded as well.
LONGEST_S = 1800


@dataclass
class Image:
    """A built image: its unpacked root file system, its configuration as `docker inspect` shows it, and its builder."""
    root: Path
    config: dict
    builder: str


def engine():
    """Returns the command of a container engine that runs, or None."""
    for name in ("docker", "podman"):
        if shutil.which(name) and subprocess.run([name, "info"], capture_output=True, timeout=60).returncode == 0:
            return name
    return None


def run(*command, **options):
    """Runs a command, and returns its output. A failure shows the end of what it printed."""
    ran = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=LONGEST_S, **options)
    if ran.returncode:
        sys.exit(f"{' '.join(map(str, command))}: exit code {ran.returncode}\n{(ran.stdout + ran.stderr)[-4000:]}")
    return ran.stdout.strip()


def buildah(*arguments, **options):
    # The layers of vfs are plain folders, which work on any file system.
    return run("buildah", "--storage-driver", "vfs", "--root", WORK / "storage", "--runroot", WORK / "run", *arguments, **options)


def new(base):
    """Returns a new container of a base and the folder of its root file system."""
    container = buildah("from", "--pull-never", base)
    return container, Path(buildah("mount", container))


def cargo_home():
    return Path(os.environ.get("CARGO_HOME", Path.home() / ".cargo"))


def make_stand_ins():
    made = buildah("images", "--format", "{{.Name}}:{{.Tag}}").splitlines()
    if {BUILD_BASE, FINAL_BASE} <= set(made):
        return
    build, root = new("scratch")
    run("debootstrap", "--variant=minbase", "--include=gcc,libc6-dev,ca-certificates,python3,netbase,tzdata,libssl3", SUITE, root)
    final, bare = new("scratch")
    for package in FINAL_PACKAGES:
        file, = (root / "var/cache/apt/archives").glob(f"{package}_*.deb")
        run("dpkg-deb", "--extract", file, bare)
    certificates = sorted((bare / "usr/share/ca-certificates").rglob("*.crt"))
    (bare / "etc/ssl/certs").mkdir(parents=True, exist_ok=True)
    (bare / "etc/ssl/certs/ca-certificates.crt").write_text("".join(file.read_text() for file in certificates))
    (bare / "etc/passwd").write_text(USERS)
    (bare / "tmp").mkdir(exist_ok=True)
    shutil.rmtree(root / "var/cache/apt/archives")
    # Cargo knows a compiled crate again only if its source has the same path.
    if cargo_home() != Path("/usr/local/cargo"):
        inside = root / cargo_home().relative_to("/")
        inside.mkdir(parents=True)
        (inside / "registry").symlink_to("/usr/local/cargo/registry")
    path = "/usr/local/rust/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    buildah("config", "--env", f"PATH={path}", "--env", f"CARGO_HOME={cargo_home()}", build)
    buildah("config", "--user", "65532", "--env", "SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt", final)
    for container, name in ((build, BUILD_BASE), (final, FINAL_BASE)):
        buildah("commit", "--rm", container, name)


def warm_cache():
    """Fills the cache folders that the build mounts: cargo's registry, and the compiled crates of others."""
    caches = WORK / "tmp" / "buildah-cache"
    registry = caches / "usr/local/cargo/registry"
    registry.parent.mkdir(parents=True, exist_ok=True)
    if not registry.is_symlink():
        registry.symlink_to(cargo_home() / "registry")
    ours, theirs = caches / "build/target/debug", TARGET / "debug"
    if ours.exists() or not theirs.exists():
        return
    own = re.compile(r"(lib)?slotfront")
    for folder in ("deps", "build", ".fingerprint"):
        # Cargo writes into its fingerprints, so these are copies.
        shutil.copytree(theirs / folder, ours / folder, copy_function=shutil.copy2 if folder == ".fingerprint" else os.link,
                        ignore=lambda _, names: [name for name in names if own.match(name)])


def by_buildah():
    # What the last run has left.
    for container in buildah("containers", "--quiet").split():
        buildah("rm", container)
    buildah("rmi", "--prune", "--force")
    make_stand_ins()
    warm_cache()
    toolchain = run("rustc", "--print", "sysroot")
    environment = {**os.environ, "TMPDIR": str(WORK / "tmp")}
    buildah("build-using-dockerfile", "--isolation", "chroot", "--format", "docker", "--pull-never", "--layers=false",
            "--volume", f"{toolchain}:/usr/local/rust:ro",
            # This machine may trust a certificate authority of its own.
            "--volume", "/etc/ssl/certs:/etc/ssl/certs:ro", "--build-arg", f"REVISION={REVISION}", "--build-arg", "PROFILE=dev",
            "--file", DOCKERFILE, "--tag", TAG, ROOT, env=environment)
    container, root = new(f"localhost/{TAG}")
    inspected = json.loads(buildah("inspect", "--type", "image", f"localhost/{TAG}"))
    return Image(root, inspected["Docker"]["config"], "buildah")


def by_engine(name):
    run(name, "build", "--file", DOCKERFILE, "--build-arg", f"REVISION={REVISION}", "--build-arg", "PROFILE=dev", "--tag", TAG, ROOT,
        env={**os.environ, "DOCKER_BUILDKIT": "1", "BUILDAH_FORMAT": "docker"})
    root = WORK / "root"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    container = run(name, "create", TAG)
    archive = WORK / "root.tar"
    run(name, "export", "--output", archive, container)
    run("tar", "--extract", "--numeric-owner", "--same-permissions", "--file", archive, "--directory", root)
    archive.unlink()
    run(name, "rm", container)
    return Image(root, json.loads(run(name, "image", "inspect", TAG))[0]["Config"], name)


def image():
    for folder in ("storage", "run", "tmp"):
        (WORK / folder).mkdir(parents=True, exist_ok=True)
    name = engine()
    return by_engine(name) if name else by_buildah()

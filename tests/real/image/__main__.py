"""Builds the image, runs it as a careful cluster does, and acts out deploy/compose/compose.yaml with Debian's programs.

usage: python3 tests/real/image [--skip] [UNITTEST ARGUMENTS...]

build.py says what builds it and what stands in for the base images, container.py how it is run. All of it needs root on Linux,
because it mounts file systems, and takes a network of its own so that the ports may be those of the files. Where that is not
possible, the test fails and says why; --skip (or IMAGE_TEST=skip) leaves it out.
"""

import os
import pickle
import subprocess
import sys
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import build

BUILT = build.WORK / "built.pickle"
INSIDE = "IMAGE_TEST_INSIDE"


def hindrance():
    """Returns why the tests cannot run on this machine, or None."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "it needs root on Linux"
    tried = subprocess.run(["unshare", "--net", "--mount", "true"], capture_output=True, text=True)
    return f"no namespaces can be made: {tried.stderr.strip()}" if tried.returncode else None


def main():
    arguments = sys.argv[1:]
    if "--skip" in arguments or os.environ.get("IMAGE_TEST") == "skip":
        return print("the image is not tested, as you asked")
    if os.environ.get(INSIDE):
        return unittest.main(module=None, argv=["image", *(arguments or ["discover", "--start-directory", str(HERE), "--pattern", "*_test.py", "--verbose"])])
    if why := hindrance():
        sys.exit(f"the image cannot be tested here: {why}. IMAGE_TEST=skip leaves it out.")
    image = build.image()
    BUILT.write_bytes(pickle.dumps(image))
    print(f"built with {image.builder}", flush=True)
    # The build needs the network, and the tests need one that nobody else has.
    os.environ[INSIDE] = "1"
    os.execvp("unshare", ["unshare", "--net", "--mount", "sh", "-c", 'ip link set lo up && exec "$@"', "sh",
                          sys.executable, str(HERE), *arguments])


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Makes the pictures of the status page for the README: docs/status-light.png and docs/status-dark.png.

    tests/real/picture.py [--seconds S]

slotfront runs in front of three simulated nodes, and readers with three keys send calls. Half a minute before the end,
one node is killed. Needs a built slotfront, chromium and chromedriver. All traffic stays on the loopback interface.
"""

import argparse
import base64
import contextlib
import hashlib
import http.client
import json
import random
import struct
import sys
import tempfile
import threading
import zlib
from collections import Counter
from pathlib import Path

sys.dont_write_bytecode = True
from browser import Browser
from gateway import PATIENCE_S, ROOT, Nodes, Serve, run

WIDTH = 1400
MAX_BYTES = 200_000
ACCOUNTS = 400
KILLED_BEFORE_END_S = 30
# The plan of each key and the calls per second of its reader.
READERS = {"wallet": ("standard", 70), "indexer": ("standard", 40), "trial": ("trial", 14)}
CONFIG = """
[server]
listen = "127.0.0.1:0"
admin_listen = "127.0.0.1:0"

[cache]
capacity = "8MiB"
max_entry = "1MiB"

[plans.trial]
rps = 12
burst = 12
"""
ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"


def address(number):
    """Returns the address of a made-up account."""
    value = int.from_bytes(hashlib.sha256(str(number).encode()).digest(), "big")
    text = ""
    while value:
        value, digit = divmod(value, 58)
        text = ALPHABET[digit] + text
    return text


class Reader(threading.Thread):
    """A thread that sends calls with one key at a steady rate. A few accounts get most of the calls."""

    def __init__(self, public, key, per_second, ended):
        super().__init__(daemon=True)
        self.public, self.key, self.per_second, self.ended = public, key, per_second, ended
        self.random = random.Random(key)
        self.start()

    def query(self):
        account = address(int(self.random.paretovariate(0.7)) % ACCOUNTS)
        commitment = self.random.choice(["processed", "confirmed", "confirmed", "finalized", "finalized"])
        config = {"encoding": "base64", "commitment": commitment}
        kinds = {
            "getAccountInfo": [account, config],
            "getMultipleAccounts": [[account, address(1), address(2)], config],
            "getVoteAccounts": [{"commitment": "confirmed"}],
            "getRecentPerformanceSamples": [20],
            "getClusterNodes": [],
        }
        method = self.random.choices(list(kinds), weights=[62, 14, 9, 8, 7])[0]
        return {"jsonrpc": "2.0", "id": 1, "method": method, "params": kinds[method]}

    def run(self):
        client = http.client.HTTPConnection(self.public, timeout=PATIENCE_S)
        while not self.ended.wait(self.random.expovariate(self.per_second)):
            client.request("POST", f"/v3/{self.key}", json.dumps(self.query()), {"Content-Type": "application/json"})
            client.getresponse().read()
        client.close()


def rows(png):
    """Yields the unfiltered rows of a PNG picture, with three bytes per pixel."""
    at, parts = 8, []
    while at < len(png):
        length, kind = struct.unpack(">I4s", png[at:at + 8])
        if kind == b"IDAT":
            parts.append(png[at + 8:at + 8 + length])
        at += 12 + length
    data, size = zlib.decompress(b"".join(parts)), 3 * WIDTH
    before = bytes(size)
    for start in range(0, len(data), size + 1):
        kind, row = data[start], bytearray(data[start + 1:start + 1 + size])
        for i, up in enumerate(before):
            left, corner = (row[i - 3], before[i - 3]) if i >= 3 else (0, 0)
            by_left, by_up, by_corner = abs(up - corner), abs(left - corner), abs(left + up - 2 * corner)
            paeth = left if by_left <= by_up and by_left <= by_corner else up if by_up <= by_corner else corner
            row[i] = (row[i] + (0, left, up, (left + up) // 2, paeth)[kind]) & 255
        before = bytes(row)
        yield before


def with_palette(png):
    """Returns a PNG picture reduced to 256 colours. The palette has frequent colours, and colours far from all others.

    Every other colour becomes the nearest one of the palette.
    """
    pixels = [[row[i:i + 3] for i in range(0, len(row), 3)] for row in rows(png)]
    counted = Counter(pixel for row in pixels for pixel in row)
    palette, nearest = [], dict.fromkeys(counted, (1 << 20, 0))
    while len(palette) < min(256, len(counted)):
        new = max(counted, key=lambda colour: nearest[colour][0] * counted[colour])
        for colour, (distance, _) in nearest.items():
            if (to_new := sum((a - b) ** 2 for a, b in zip(colour, new))) < distance:
                nearest[colour] = (to_new, len(palette))
        palette.append(new)
    index = {colour: number for colour, (_, number) in nearest.items()}
    data = b"".join(b"\0" + bytes(index[pixel] for pixel in row) for row in pixels)
    header = struct.pack(">IIBBBBB", WIDTH, len(pixels), 8, 3, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"PLTE", b"".join(palette)), (b"IDAT", zlib.compress(data, 9)), (b"IEND", b"")]
    framed = [struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks]
    return png[:8] + b"".join(framed)


def take(browser, theme):
    """Writes the picture of one theme: the page from its top to the table of nodes."""
    browser.prefers(color_scheme=theme)
    bottom = browser.run("return document.querySelector('#nodes').closest('.card').getBoundingClientRect().bottom + scrollY")
    clip = {"x": 0, "y": 0, "width": WIDTH, "height": round(bottom) + 14, "scale": 1}
    shot = browser.devtools("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
    picture = with_palette(base64.b64decode(shot["data"]))
    assert len(picture) <= MAX_BYTES, f"{theme}: {len(picture)} bytes"
    path = ROOT / "docs" / f"status-{theme}.png"
    path.write_bytes(picture)
    print(f"{path.relative_to(ROOT)}: {len(picture)} bytes")


def main(seconds):
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        nodes, config = [], CONFIG
        for number in (1, 2, 3):
            nodes.append(stack.enter_context(Nodes()))
            config += f'\n[[upstream]]\nname = "validator-{number}"\nurl = "{nodes[-1].url}"\n'
        (folder / "slotfront.toml").write_text(config)
        keys = {}
        for name, (plan, _) in READERS.items():
            made = ["keys", "create", "--file", "keys.toml", "--config", "slotfront.toml", "--name", name, "--plan", plan]
            keys[name] = run(*made, cwd=folder, check=True).stdout.strip()
        serve = stack.enter_context(Serve(folder / "slotfront.toml")).ready()

        ended = threading.Event()
        readers = [Reader(serve.public, keys[name], rate, ended) for name, (_, rate) in READERS.items()]
        for reader in readers:
            stack.callback(reader.join, PATIENCE_S)
        stack.callback(ended.set)
        browser = stack.enter_context(Browser())
        browser.width(WIDTH)
        browser.open(f"http://{serve.admin}/")
        ended.wait(seconds - KILLED_BEFORE_END_S)
        nodes[1].end()
        ended.wait(KILLED_BEFORE_END_S)
        browser.until("return $('usable').textContent === '2 of 3'", within=PATIENCE_S, what="the killed node is shown")
        assert all(reader.is_alive() for reader in readers), "a reader has failed"
        for theme in ("light", "dark"):
            take(browser, theme)
        assert browser.logged_problems() == []


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--seconds", type=int, default=150, help="the duration of the load; the charts cover up to five minutes")
    main(arguments.parse_args().seconds)

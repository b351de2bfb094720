"""The encodings of account data: base58 and base64+zstd.

zstd is in Python's standard library from 3.14 on. Older versions use the zstandard package or the zstd command. Without
any of these, `unpack_zstd` is `None` and base64+zstd is left out. This file must not be called zstd.py: old versions of
the zstandard package would import it by that name.
"""

import base64
import functools
import shutil
import subprocess

ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"


def base58(data):
    n, text = int.from_bytes(data, "big"), ""
    while n:
        n, digit = divmod(n, 58)
        text = ALPHABET[digit] + text
    return "1" * (len(data) - len(data.lstrip(b"\0"))) + text


def unbase58(text):
    n = 0
    for c in text:
        n = n * 58 + ALPHABET.index(c)
    return b"\0" * (len(text) - len(text.lstrip("1"))) + n.to_bytes((n.bit_length() + 7) // 8, "big")


def zstd_decoder():
    try:
        from compression import zstd

        return zstd.decompress
    except ImportError:
        pass
    try:
        import zstandard

        # The frames of nodes have no content size, so they need a streaming decoder.
        return lambda packed: zstandard.ZstdDecompressor().decompressobj().decompress(packed)
    except ImportError:
        pass
    if shutil.which("zstd"):
        return lambda packed: subprocess.run(["zstd", "-dqc"], input=packed, capture_output=True, check=True).stdout
    return None


unpack_zstd = zstd_decoder()


@functools.lru_cache(maxsize=4096)
def unpacked(text):
    return base64.b64encode(unpack_zstd(base64.b64decode(text))).decode()

"""WebSockets as far as a text in each direction needs them (RFC 6455)."""

import base64
import hashlib
import os
import struct

GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
TEXT = 1


def proof(key):
    """Returns what a server answers to the key of a client."""
    return base64.b64encode(hashlib.sha1((key + GUID).encode()).digest()).decode()


def frame(text, masked):
    """Returns a text as one frame. That of a client is masked."""
    data = text.encode()
    bit = 0x80 if masked else 0
    if len(data) < 126:
        head = struct.pack(">BB", 0x80 | TEXT, bit | len(data))
    elif len(data) < 1 << 16:
        head = struct.pack(">BBH", 0x80 | TEXT, bit | 126, len(data))
    else:
        head = struct.pack(">BBQ", 0x80 | TEXT, bit | 127, len(data))
    if not masked:
        return head + data
    mask = os.urandom(4)
    return head + mask + bytes(byte ^ mask[at % 4] for at, byte in enumerate(data))


def texts(stream):
    """Returns the texts that arrive on a stream, until it ends. Every text has to be one frame."""
    while len(head := stream.read(2)) == 2:
        length = head[1] & 0x7F
        if length > 125:
            length, = struct.unpack(">H" if length == 126 else ">Q", stream.read(2 if length == 126 else 8))
        mask = stream.read(4) if head[1] & 0x80 else bytes(4)
        data = bytes(byte ^ mask[at % 4] for at, byte in enumerate(stream.read(length)))
        if head[0] & 0x0F == TEXT:
            yield data.decode()

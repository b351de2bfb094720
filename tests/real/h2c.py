"""HTTP/2 without TLS, for tests that libraries cannot express: single frames, and header lists that expand in memory."""

import socket
import struct

from gateway import PATIENCE_S

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, ACK, END_HEADERS = 1, 1, 4
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
# Indices in HPACK's static table (RFC 7541, appendix A), and the first index of the dynamic table.
AUTHORITY, POST, PATH, HTTP, STATUS_200, CONTENT_TYPE, DYNAMIC = 1, 3, 4, 6, 8, 31, 62


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def number(value, bits, first=0):
    """Encodes an integer for HPACK (RFC 7541, 5.1), with a prefix of `bits` bits. The other bits of the byte are `first`."""
    most = (1 << bits) - 1
    if value < most:
        return bytes([first | value])
    text, value = bytes([first | most]), value - most
    while value >= 128:
        text, value = text + bytes([value & 127 | 128]), value >> 7
    return text + bytes([value])


def text(value):
    return number(len(value), 7) + value


def indexed(index):
    """Encodes a field of a table."""
    return number(index, 7, 0x80)


def literal(name, value):
    """Encodes a field that is not added to a table. `name` is an index of the static table."""
    return number(name, 4) + text(value)


def added(name, value):
    """Encodes a field that is added to the front of the dynamic table."""
    return bytes([0x40]) + text(name) + text(value)


def head(path):
    """Returns the encoded fields of a call."""
    return (indexed(POST) + indexed(HTTP) + literal(PATH, path.encode()) + literal(AUTHORITY, b"x")
            + literal(CONTENT_TYPE, b"application/json"))


class Connection:
    """A connection on which a test sends frames."""

    def __init__(self, address):
        host, port = address.split(":")
        self.socket = socket.create_connection((host, int(port)), PATIENCE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.read, self.stream = b"", -1
        self.socket.sendall(PREFACE + frame(SETTINGS, 0, 0))

    def send(self, *frames):
        self.socket.sendall(b"".join(frames))

    def next_stream(self):
        self.stream += 2
        return self.stream

    def has_frame(self):
        return len(self.read) >= 9 + int.from_bytes(self.read[:3], "big")

    def receive(self):
        """Returns the next frame as (kind, flags, stream, payload), or `None` at the end of the connection."""
        while not self.has_frame():
            more = self.socket.recv(1 << 16)
            if not more:
                return None
            self.read += more
        length, kind, flags = int.from_bytes(self.read[:3], "big"), self.read[3], self.read[4]
        stream = int.from_bytes(self.read[5:9], "big")
        payload, self.read = self.read[9:9 + length], self.read[9 + length:]
        if not flags & ACK and kind in (SETTINGS, PING):
            self.send(frame(kind, ACK, 0, payload if kind == PING else b""))
        return kind, flags, stream, payload

    def settled(self):
        """Waits until the gateway has read everything that was sent. Returns the frames that arrived meanwhile."""
        self.send(frame(PING, 0, 0, b"settled?"))
        frames = []
        while True:
            received = self.receive()
            if received is None:
                raise ConnectionError("the connection has ended")
            if received[0] == PING and received[1] & ACK:
                return frames
            frames.append(received)

    def close(self):
        self.socket.close()

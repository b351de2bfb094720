"""HTTP/2 without TLS, as far as tests need it that no library would do: frames, and header lists that are short on the wire."""

import socket
import struct

from gateway import PATIENCE_S

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, ACK, END_HEADERS = 1, 1, 4
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
# Places in HPACK's static table (RFC 7541, appendix A), and the first of the dynamic one.
AUTHORITY, POST, PATH, HTTP, STATUS_200, CONTENT_TYPE, DYNAMIC = 1, 3, 4, 6, 8, 31, 62


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def number(value, bits, first=0):
    """HPACK's number (RFC 7541, 5.1) in the low `bits` of a byte whose others are `first`, and more bytes where needed."""
    most = (1 << bits) - 1
    if value < most:
        return bytes([first | value])
    text, value = bytes([first | most]), value - most
    while value >= 128:
        text, value = text + bytes([value & 127 | 128]), value >> 7
    return text + bytes([value])


def text(value):
    return number(len(value), 7) + value


def indexed(place):
    """A field that is in a table."""
    return number(place, 7, 0x80)


def literal(name, value):
    """A field that goes into no table; `name` is a place in the static one."""
    return number(name, 4) + text(value)


def added(name, value):
    """A field that goes into the dynamic table, at its front."""
    return bytes([0x40]) + text(name) + text(value)


def head(path):
    """The fields of a call."""
    return (indexed(POST) + indexed(HTTP) + literal(PATH, path.encode()) + literal(AUTHORITY, b"x")
            + literal(CONTENT_TYPE, b"application/json"))


class Connection:
    """One connection; what it sends is up to the test."""

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
        """The next frame: kind, flags, stream and payload; nothing once the connection has ended."""
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
        """Waits until all that was sent before has been read by the gateway; returns the frames that came meanwhile."""
        self.send(frame(PING, 0, 0, b"settled?"))
        seen = []
        while True:
            received = self.receive()
            if received is None:
                raise ConnectionError("the connection has ended")
            if received[0] == PING and received[1] & ACK:
                return seen
            seen.append(received)

    def close(self):
        self.socket.close()

"""Clients with keep-alive connections that count the calls that fail during restarts.

Before each call, a client checks if the server has closed the connection or has announced that it will. A client retries
connecting, but never a call.
"""

import random
import select
import socket
import threading
import time

import h2c
from gateway import PATIENCE_S

# The longest pause of a client. Most are far shorter, but an idle connection has to be met by a restart as well.
PAUSE_S = 0.9
# A network's delay: a connection may be closed between the moment it was looked at and the call.
NETWORK_DELAY_S = 0.01
BODY = b'{"jsonrpc":"2.0","id":1,"method":"getClusterNodes"}'


class Lost(Exception):
    """A call got no complete answer."""


class Http1:
    """A client of HTTP/1.1. `fields` and `body` determine the form of its requests."""

    def __init__(self, address, key, fields, body):
        self.address, self.socket = address, socket.create_connection(address, PATIENCE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.request = (f"POST /v3/{key} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                        f"{fields}\r\n\r\n").encode() + body
        self.over = False

    def told(self):
        return self.over or bool(select.select([self.socket], [], [], 0)[0])

    def call(self):
        self.socket.sendall(self.request)
        read = b""
        while b"\r\n\r\n" not in read:
            read += self.more(read)
        head, body = read.split(b"\r\n\r\n", 1)
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        while len(body) < int(fields[b"content-length"]):
            body += self.more(body)
        self.over = fields.get(b"connection") == b"close"
        return int(head.split()[1])

    def more(self, read):
        more = self.socket.recv(1 << 16)
        if not more:
            raise Lost(f"the connection ended after {read!r}")
        return more

    def close(self):
        self.socket.close()


def plain(address, key):
    """Returns a client whose calls have a length."""
    return Http1(address, key, f"Content-Length: {len(BODY)}", BODY)


def chunked(address, key):
    """Returns a client with chunked bodies."""
    return Http1(address, key, "Transfer-Encoding: chunked", b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY))


class Http2:
    """A client of HTTP/2 with one call at a time."""

    def __init__(self, address, key):
        self.connection, self.path = h2c.Connection(address), f"/v3/{key}"
        self.over = False

    def told(self):
        while not self.over and (self.connection.has_frame() or select.select([self.connection.socket], [], [], 0)[0]):
            received = self.connection.receive()
            self.over = received is None or received[0] == h2c.GOAWAY
        return self.over

    def call(self):
        stream = self.connection.next_stream()
        self.connection.send(h2c.frame(h2c.HEADERS, h2c.END_HEADERS, stream, h2c.head(self.path)),
                             h2c.frame(h2c.DATA, h2c.END_STREAM, stream, BODY))
        status = None
        while True:
            received = self.connection.receive()
            if received is None:
                raise Lost("the connection ended")
            kind, flags, of, payload = received
            if kind == h2c.GOAWAY:
                self.over = True
                if int.from_bytes(payload[:4], "big") < stream:
                    raise Lost("the call was refused")
            elif of == stream:
                if kind == h2c.RST_STREAM:
                    raise Lost("the call was reset")
                if kind == h2c.HEADERS:
                    status = 200 if payload[0] == h2c.indexed(h2c.STATUS_200)[0] else 0
                if kind == h2c.DATA and payload:
                    size = len(payload).to_bytes(4, "big")
                    self.connection.send(h2c.frame(h2c.WINDOW_UPDATE, 0, 0, size))
                if flags & h2c.END_STREAM and kind in (h2c.DATA, h2c.HEADERS):
                    return status

    def close(self):
        self.connection.close()


class Clients:
    """Clients of each kind. Each sends a call at least once per second until `end`."""

    def __init__(self, address, key, of_each):
        host, port = address.split(":")
        self.over, self.calls, self.lost = threading.Event(), 0, []
        kinds = [("a length", plain, (host, int(port))), ("chunks", chunked, (host, int(port))), ("HTTP/2", Http2, address)]
        self.threads = [threading.Thread(target=self.client, args=(name, kind, at, key))
                        for name, kind, at in kinds for _ in range(of_each)]
        for thread in self.threads:
            thread.start()

    def client(self, name, kind, address, key):
        client = None
        while not self.over.wait(PAUSE_S * random.random() ** 4):
            if client and client.told():
                client.close()
                client = None
            while client is None and not self.over.is_set():
                try:
                    client = kind(address, key)
                except OSError:
                    time.sleep(0.02)  # The gateway restarts.
            if client is None:
                break
            time.sleep(NETWORK_DELAY_S)
            try:
                if (status := client.call()) != 200:
                    self.lost.append((name, status))
            except (Lost, OSError) as error:
                self.lost.append((name, repr(error)))
                client.close()
                client = None
            self.calls += 1
        if client:
            client.close()

    def end(self):
        self.over.set()
        for thread in self.threads:
            thread.join()

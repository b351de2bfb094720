"""A minimal HTTP/1.1 client on asyncio: a keep-alive connection with one request at a time."""

import asyncio


async def read_message(reader):
    """Reads a message with a Content-Length or without a body. Returns its head and body, or `None` at the end."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as ended:
        if ended.partial:
            raise
        return None
    length = next((int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0)
    return head, await reader.readexactly(length)


class Connection:
    """A connection that is opened on its first request, and again after the server has closed it."""

    def __init__(self, host, port):
        self.host, self.port, self.reader, self.writer = host, port, None, None

    async def post(self, path, body, more=""):
        """Sends a POST. Returns the status, the headers and the body of the answer."""
        await self.send(path, body, more)
        message = await read_message(self.reader)
        if message is None:
            raise ConnectionError("closed without an answer")
        head, text = message
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        if headers.get("connection", "").lower() == "close":
            await self.close()
        return int(first.split(" ")[1]), headers, text

    async def send(self, path, body, more=""):
        if self.writer is None:
            self.reader, self.writer = await asyncio.open_connection(self.host, self.port, limit=1 << 26)
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{more}Content-Length: {len(body)}\r\n\r\n"
        self.writer.write((head + body).encode())
        await self.writer.drain()

    async def close(self):
        if self.writer is not None:
            self.writer.close()
            try:
                await self.writer.wait_closed()
            except OSError:
                pass
            self.reader = self.writer = None

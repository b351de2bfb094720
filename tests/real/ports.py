"""Free ports for servers that tests and measurements start."""

import random
import socket
from pathlib import Path

# The lowest port here. The tests in Rust use those below it.
FIRST = 22_000
EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
given = set()


def free_port():
    """Returns a port of 127.0.0.1 on which nothing listens, and which this process did not get before.

    The port lies below the ephemeral ports where there is room. The system gives those to outgoing connections, which could
    take the port before its server starts, or while its server restarts. It is even there, because slotfront also listens
    on the port after its own, and starts without it if it is taken.
    """
    end = int(EPHEMERAL.read_text().split()[0]) if EPHEMERAL.exists() else 32_768
    while True:
        port = random.SystemRandom().randrange(FIRST, end, 2) if end - FIRST > 5_000 else 0
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
            port = listener.getsockname()[1]
        if port not in given:
            given.add(port)
            return port

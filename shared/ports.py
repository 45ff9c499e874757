"""TCP ports of this machine."""

import socket


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port that nobody has at this moment; whoever binds it soon will most likely get it."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def is_free(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True

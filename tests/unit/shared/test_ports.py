"""Ports that are free, and those that are not."""

import socket

from shared.ports import free_port, is_free

LOOPBACK = "127.0.0.1"


def test_a_free_port_is_free_until_somebody_listens():
    port = free_port(LOOPBACK)
    assert is_free(LOOPBACK, port)
    with socket.socket() as listener:
        listener.bind((LOOPBACK, port))
        listener.listen()
        assert not is_free(LOOPBACK, port)

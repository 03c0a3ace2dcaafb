"""Connections to a server end when they are dropped, whatever a thread is about to do with them."""

from __future__ import annotations

import socket
from types import SimpleNamespace

from rlhf_plugin_vllm.client import Connections


def test_one_that_opens_while_all_are_dropped_is_ended_too() -> None:
    """Closed without it, its thread waits until the deadline, or reads what is meant for another."""
    connections = Connections("http://127.0.0.1:1", 2)
    ours, servers = socket.socketpair()
    with ours, servers:
        servers.settimeout(5)
        connections.close()
        stream = SimpleNamespace(get_extra_info=lambda name: ours)
        connections.note("connection.connect_tcp.complete", {"return_value": stream})
        assert servers.recv(1) == b"", "the server is told that nobody reads"


def test_open_ones_are_shut_down_before_they_are_closed() -> None:
    connections = Connections("http://127.0.0.1:1", 2)
    ours, servers = socket.socketpair()
    with ours, servers:
        servers.settimeout(5)
        stream = SimpleNamespace(get_extra_info=lambda name: ours)
        connections.note("connection.connect_tcp.complete", {"return_value": stream})
        connections.close()
        assert servers.recv(1) == b""

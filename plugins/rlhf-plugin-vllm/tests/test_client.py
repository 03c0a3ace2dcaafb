"""Connections to a server end when they are dropped, whatever a thread is about to do with them."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from types import SimpleNamespace

import pytest

from rlhf_plugin_vllm.client import Client, Connections, ServerGone


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


def test_an_answer_that_trickles_ends_with_its_deadline() -> None:
    """httpx's own limit is one of silence: it starts anew with every byte."""

    def trickle() -> None:
        with listening.accept()[0] as client:
            client.recv(4096)
            client.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
            with contextlib.suppress(OSError):
                while True:
                    client.sendall(b"x")
                    time.sleep(0.05)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=trickle, daemon=True)
        thread.start()
        client = Client(f"http://127.0.0.1:{listening.getsockname()[1]}")
        with pytest.raises(ServerGone, match=r"did not answer within 0\.5 s"):
            client.get("/slow", seconds=0.5)
        client.close()
        thread.join(5)

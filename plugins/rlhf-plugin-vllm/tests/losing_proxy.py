"""Stands before a server and loses answers: the server has done what it was asked for, and nobody hears of it."""

from __future__ import annotations

import http.client
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit


class LosingProxy:
    """A server's address, of which the answers to calls in :attr:`lose` are lost, each once.

    Args:
        url: of the server.
    """

    def __init__(self, url: str) -> None:
        self.lose: list[str] = []
        """Names of calls, the path's last word or the worker's method, whose next answer is lost."""
        self.lost: list[str] = []
        address, proxy = urlsplit(url).netloc, self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._do("GET")

            def do_POST(self) -> None:
                self._do("POST")

            def _do(self, verb: str) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                server = http.client.HTTPConnection(address, timeout=120)
                server.request(verb, self.path, body, {"content-type": "application/json"})
                answer = server.getresponse()
                data = answer.read()
                server.close()
                call = self.path.partition("?")[0].rsplit("/", 1)[1]
                call = json.loads(body)["method"] if call == "collective_rpc" else call
                if call in proxy.lose:
                    proxy.lose.remove(call)
                    proxy.lost.append(call)
                    self.close_connection = True
                    return
                self.send_response(answer.status)
                self.send_header("content-type", answer.headers.get("content-type", "text/plain"))
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def close(self) -> None:
        """Stop; the server goes on."""
        self._server.shutdown()
        self._server.server_close()

"""A service on this machine with faults, for tests and rehearsals: the Messages API, its batches, chat completions.

    python -m rlhf_plugin_judge.stand_in --port 8123 --fault 429=0.1 --fault hang=0.01
    ANTHROPIC_API_KEY=any rlhf reward score --reward judge --set judge.base_url=http://127.0.0.1:8123 ...
    rlhf eval agentbench_mini --backend openai --model any --set backend.base_url=http://127.0.0.1:8123/v1

It answers a judge's questions with the same grade, verdict and longer response, and others with "As ever." (``--calls
2`` calls the first tool that is offered twice before), refuses conversations whose calls and results do not match, and
counts what it would have billed: also for answers that it never delivered, which is the worst that a service can do.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import select
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from rlhf_plugin_judge.prices import Price, Tokens, cost
from rlhf_plugin_judge.stand_in_tools import (
    ORDERS,
    Wrote,
    batch_of,
    blocks_of,
    calls_first,
    completion,
    error_body,
    fault_of_chat,
    fault_of_messages,
    fitting_answer,
    listed,
    name_of,
)

Answer = Callable[[Mapping[str, Any]], str | Wrote]
FAULTS = ("429", "500", "529", "full", "malformed", "prose", "hang", "drop")
ERRORS = {"429": "rate_limit_error", "500": "api_error", "529": "overloaded_error"}


def by_question(body: Mapping[str, Any]) -> str:
    """A grade, verdict and winner that depend on the first turn alone, so that a mixed-up answer shows."""
    first = hashlib.sha256(str(body["messages"][0]["content"]).encode()).digest()[0]
    return json.dumps({"why": "...", "grade": 1 + first % 10, "verdict": first % 2 == 0, "better": "AB"[first % 2]})


@dataclass
class Service:
    """State of the stand-in, shared by its threads. ``faults`` (fault -> share) are drawn from seed, question and
    count; ``retry_after`` goes with 429; a hanging request is dropped after ``hang_s``; ``polls`` end a batch."""

    answer: Answer = field(default_factory=fitting_answer)
    faults: Mapping[str, float] = field(default_factory=dict)
    seed: int = 0
    price: Price = field(default_factory=lambda: Price(input=1, output=5))
    retry_after: float | None = 0.05
    latency_s: float = 0.0
    hang_s: float = 30.0
    polls: int = 1
    models: Sequence[str] = ()
    tools: bool = True
    seen: Counter[str] = field(default_factory=Counter)
    """Arrivals, faults by name, answers, batches; ``billed_nano`` is the meter."""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    arrivals: Counter[str] = field(default_factory=Counter)
    answered: Counter[str] = field(default_factory=Counter)
    """Question -> how often an answer was delivered."""
    billed: Counter[str] = field(default_factory=Counter)
    """Question, as its header ``x-question`` says or by its body, -> how often it was billed, delivered or not."""
    batches: dict[str, dict[str, Any]] = field(default_factory=dict)
    most_open: int = 0
    """Most requests held at once."""
    _open: int = 0
    _systems: set[str] = field(default_factory=set)
    _lock: Any = field(default_factory=threading.Lock)
    _thread: Any = field(default_factory=threading.local)

    def draw(self, body: Mapping[str, Any]) -> tuple[str, str]:
        """(Question, fault or ""), counted."""
        name = name_of(body)
        with self._lock:
            self.arrivals[name] += 1
            dice = random.Random(f"{self.seed}/{name}/{self.arrivals[name]}").random()
            self.seen["arrivals"] += 1
            for fault, share in self.faults.items():
                if dice < share:
                    self.seen[fault] += 1
                    return name, fault
                dice -= share
        return name, ""

    def message(self, body: Mapping[str, Any], said: str | Wrote, share: float = 1.0) -> dict[str, Any]:
        """An answer as the Messages API writes it, billed."""
        wrote = said if isinstance(said, Wrote) else Wrote(said)
        text = wrote.text + "".join(json.dumps([n, dict(a)]) for n, a in wrote.calls)
        system = "".join(b["text"] for b in body.get("system", []))
        cached = any("cache_control" in b for b in body.get("system", []))
        input_tokens = sum(len(str(m["content"])) for m in body["messages"]) // 4 + 10
        input_tokens += len(json.dumps(body["tools"])) // 4 if body.get("tools") else 0
        with self._lock:
            cache_hit = cached and system in self._systems
            self._systems |= {system} if cached else set()
            size = len(system) // 4
            tokens = Tokens(
                input_tokens + (0 if cached else size),
                min(body["max_tokens"], len(text) // 4 + 1),
                size if cached and not cache_hit else 0,
                size if cache_hit else 0,
            )
            self._bill(body, tokens, share)
        usage = {
            "input_tokens": tokens.input,
            "output_tokens": tokens.output,
            "cache_creation_input_tokens": tokens.cache_write,
            "cache_read_input_tokens": tokens.cache_read,
        }
        return {
            "id": f"msg_{self.seen['answers']}",
            "type": "message",
            "role": "assistant",
            "model": body["model"],
            "content": blocks_of(wrote, self.seen["answers"]),
            "stop_reason": "tool_use" if wrote.calls else "end_turn",
            "stop_sequence": None,
            "usage": usage,
        }

    def completion(self, body: Mapping[str, Any], said: str | Wrote) -> dict[str, Any]:
        wrote = said if isinstance(said, Wrote) else Wrote(said)
        text = wrote.text + "".join(json.dumps([n, dict(a)]) for n, a in wrote.calls)
        size = len(json.dumps([body["messages"], body.get("tools") or ()])) // 4 + 10
        limit = body.get("max_tokens") or body.get("max_completion_tokens") or 10**6
        tokens = Tokens(size, min(limit, len(text) // 4 + 1))
        with self._lock:
            self._bill(body, tokens)
            return completion(body, wrote, self.seen["answers"], (tokens.input, tokens.output))

    def _bill(self, body: Mapping[str, Any], tokens: Tokens, share: float = 1.0) -> None:
        self.seen["billed_nano"] += cost(self.price, tokens, share)
        self.seen["answers"] += 1
        self.billed[getattr(self._thread, "question", "") or name_of(body)] += 1

    def entered(self, step: int) -> None:
        """A request came (1) or went (-1)."""
        with self._lock:
            self._open += step
            self.most_open = max(self.most_open, self._open)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: StandIn  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_POST(self) -> None:
        service = self.server.service
        service.entered(1)
        try:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            service._thread.question = self.headers.get("x-question")
            service.headers.append({k.lower(): v for k, v in self.headers.items()})
            if not self.has_key():
                self.error(401, "authentication_error", "a key is required")
            elif self.path == "/v1/messages/batches":
                self.new_batch(body)
            else:
                self.new_message(body)
        finally:
            service.entered(-1)

    def has_key(self) -> bool:
        return bool(self.headers.get("x-api-key") or self.headers.get("authorization"))

    @property
    def chat(self) -> bool:
        return self.path.endswith("/chat/completions")

    def new_message(self, body: dict[str, Any]) -> None:
        service = self.server.service
        service.bodies.append(body)
        if body.get("tools") and not service.tools:
            return self.error(400, "invalid_request_error", f"{body['model']} does not support tools")
        if refused := fault_of_chat(body) if self.chat else fault_of_messages(body):
            return self.error(400, "invalid_request_error", refused)
        name, fault = service.draw(body)
        time.sleep(service.latency_s)
        if fault in ERRORS:
            return self.error(int(fault), ERRORS[fault], f"a fault was asked for ({fault})")
        if fault == "full":
            return self.error(400, "invalid_request_error", "prompt is too long: 200001 tokens > 200000 maximum")
        reply = "I would rather not say." if fault == "prose" else service.answer(body)
        message = service.completion(body, reply) if self.chat else service.message(body, reply)
        if self.deliver(message, fault):
            with service._lock:
                service.answered[name] += 1
        return None

    def new_batch(self, body: dict[str, Any]) -> None:
        """Take a batch, which is worked on when it is asked for; or do worse."""
        service = self.server.service
        _, fault = service.draw(body)
        if fault in ERRORS:
            return self.error(int(fault), ERRORS[fault], f"a fault was asked for ({fault})")
        with service._lock:
            name = f"msgbatch_{len(service.batches)}"
            service.batches[name] = {"requests": body["requests"], "polls": 0, "results": None}
            service.seen["batches"] += 1
        self.deliver(self.batch(name), fault)
        return None

    def deliver(self, message: Mapping[str, Any], fault: str) -> bool:
        """Send what was made, unless a fault takes it or a part of it; True if all of it was sent."""
        if fault in ("hang", "drop"):
            self.server.closing.wait(self.server.service.hang_s if fault == "hang" else 0)
            self.close_connection = True
            return False
        if self.is_alone():
            return False
        text = json.dumps(message)
        broken = fault == "malformed"
        return self.send(200, text[: len(text) // 2] if broken else text) and not broken

    def is_alone(self) -> bool:
        """Whether the client has gone away, as a killed process does."""
        try:
            readable = select.select([self.connection], [], [], 0)[0]
            return bool(readable) and not self.connection.recv(1, socket.MSG_PEEK)
        except OSError:
            return True

    def do_GET(self) -> None:
        service, parts = self.server.service, self.path.strip("/").split("/")
        if self.path == "/seen":
            batch = {
                **service.seen,
                "most_open": service.most_open,
                "answered_twice": sum(n > 1 for n in service.answered.values()),
                "billed_twice": sum(n > 1 for n in service.billed.values()),
            }
            self.send(200, json.dumps(batch))
        elif not self.has_key():
            self.error(401, "authentication_error", "a key is required")
        elif self.path.partition("?")[0] == "/v1/models":
            self.send(200, json.dumps(listed(service.models)))
        elif len(parts) < 4 or parts[3] not in service.batches:
            self.error(404, "not_found_error", f"no {self.path}")
        elif len(parts) == 5:
            self.send(200, self.results(parts[3]), "application/x-jsonl")
        else:
            service.batches[parts[3]]["polls"] += 1
            self.send(200, json.dumps(self.batch(parts[3])))

    def batch(self, name: str) -> dict[str, Any]:
        row = self.server.service.batches[name]
        url = f"{self.server.url}/v1/messages/batches/{name}/results"
        return batch_of(name, len(row["requests"]), url if row["polls"] > self.server.service.polls else None)

    def results(self, name: str) -> str:
        """Results of a batch, one a line, last first; billed once."""
        service, row = self.server.service, self.server.service.batches[name]
        if row["results"] is None:
            row["results"] = [self.result(service, entry) for entry in reversed(row["requests"])]
        return "".join(json.dumps(r) + "\n" for r in row["results"])

    def result(self, service: Service, entry: Mapping[str, Any]) -> dict[str, Any]:
        _, fault = service.draw(entry["params"])
        if fault:
            error = {"type": "error", "error": {"type": "api_error", "message": f"a fault was asked for ({fault})"}}
            result: dict[str, Any] = {"type": "errored", "error": error}
        else:
            params = entry["params"]
            result = {"type": "succeeded", "message": service.message(params, service.answer(params), 0.5)}
        return {"custom_id": entry["custom_id"], "result": result}

    def error(self, status: int, kind: str, text: str) -> None:
        after = self.server.service.retry_after
        more = {"retry-after": str(after)} if status == 429 and after is not None else {}
        self.send(status, error_body(self.chat, status, kind, text), headers=more)

    def send(
        self, status: int, text: str, kind: str = "application/json", headers: Mapping[str, str] | None = None
    ) -> bool:
        """Write a response; False if nobody is there any more."""
        data = text.encode()
        try:
            self.send_response(status)
            for key, value in {"content-type": kind, "content-length": str(len(data)), **(headers or {})}.items():
                self.send_header(key, value)
            self.end_headers()
            self.wfile.write(data)
            return True
        except OSError:
            self.close_connection = True
            return False

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


class StandIn(ThreadingHTTPServer):
    """The service, running while the ``with`` block does."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, service: Service | None = None, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.service, self.closing = service or Service(), threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}"
        self._thread = threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self) -> StandIn:
        self._thread.start()
        return self

    def __exit__(self, *args: object) -> None:
        self.closing.set()
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is nothing to report."""


def arguments(about: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=8123)
    parser.add_argument("--fault", action="append", default=[], metavar="NAME=SHARE", help=", ".join(FAULTS))
    parser.add_argument("--latency", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("--seed", type=int, default=0)
    return parser


def serve(args: argparse.Namespace, answer: Answer, models: Sequence[str] = ()) -> None:
    faults = {name: float(share) for name, _, share in (f.partition("=") for f in args.fault)}
    if unknown := set(faults) - set(FAULTS):
        sys.exit(f"no fault {', '.join(sorted(unknown))}; there are {', '.join(FAULTS)}")
    service = Service(answer, faults, args.seed, latency_s=args.latency, models=models)
    with StandIn(service, args.port) as server:
        print(f"{server.url}, what it counts: {server.url}/seen", flush=True)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            print(json.dumps(dict(service.seen)))


def main(argv: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--text", help="the answer to everything")
    parser.add_argument("--calls", type=int, default=0, metavar="N", help="calls of the first tool before the answer")
    parser.add_argument("--judge-by", choices=ORDERS, default="length", help="which of two responses is better")
    args = parser.parse_args(argv)
    serve(args, calls_first(args.calls, args.text, args.judge_by))


if __name__ == "__main__":
    main()

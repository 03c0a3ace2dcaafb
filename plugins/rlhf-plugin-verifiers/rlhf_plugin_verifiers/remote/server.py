"""`rlhf reward serve`: any reward behind HTTP; requests that wait together are scored in one call."""

from __future__ import annotations

import hmac
import json
import os
import queue
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from rlhf_plugin_verifiers.remote import TOKEN

if TYPE_CHECKING:
    from rlhf_core.config import ComponentConfig
    from rlhf_core.rewards import Sample, Score

LARGEST = 2**28
"""Bytes of a request."""


class Waiting(NamedTuple):
    samples: Sequence[Sample]
    scores: Future[Sequence[Score]]


class RewardServer(ThreadingHTTPServer):
    """One reward, called by one thread.

    Args:
        reward: what scores.
        health: what ``/health`` says; ``version`` among it, which stands in every answer.
        max_batch: completions of one call, if requests are smaller.
    """

    daemon_threads = True

    def __init__(self, address: tuple[str, int], reward: Any, health: dict[str, Any], max_batch: int) -> None:
        super().__init__(address, Handler)
        self.reward, self.health, self.max_batch = reward, health, max_batch
        self.token = os.environ.get(TOKEN, "")
        self.waiting: queue.SimpleQueue[Waiting] = queue.SimpleQueue()
        threading.Thread(target=self._score_forever, daemon=True).start()

    def ask(self, samples: Sequence[Sample]) -> Sequence[Score]:
        """Scores, once it is this request's turn."""
        scores: Future[Sequence[Score]] = Future()
        self.waiting.put(Waiting(samples, scores))
        return scores.result()

    def _score_forever(self) -> None:
        left: Waiting | None = None
        while True:
            batch, left = self._take(left or self.waiting.get())
            self._score(batch)

    def _take(self, first: Waiting) -> tuple[list[Waiting], Waiting | None]:
        """Requests that wait now, to be scored together, and the first that does not fit: one whose prompts are in the
        batch already would join their groups.
        """
        batch, ids, size = [first], {s.prompt.id for s in first.samples}, len(first.samples)
        while not self.waiting.empty():
            one = self.waiting.get()
            names = {s.prompt.id for s in one.samples}
            if ids & names or size + len(one.samples) > self.max_batch:
                return batch, one
            batch.append(one)
            ids, size = ids | names, size + len(one.samples)
        return batch, None

    def _score(self, batch: Sequence[Waiting]) -> None:
        from rlhf_core.rewards import score_samples

        try:
            scores = list(score_samples(self.reward, [s for one in batch for s in one.samples]))
        except BaseException as error:  # of a component that breaks its contract: each request says so
            for one in batch:
                one.scores.set_exception(error)
            return
        for one in batch:
            one.scores.set_result(scores[: len(one.samples)])
            del scores[: len(one.samples)]


class Handler(BaseHTTPRequestHandler):
    """``GET /health`` and ``POST /score``."""

    server: RewardServer  # pyright: ignore[reportIncompatibleVariableOverride]
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self._allowed():
            known = self.path == "/health"
            self._send(200 if known else 404, self.server.health if known else {"error": "GET /health, POST /score"})

    def do_POST(self) -> None:
        from rlhf_plugin_verifiers.workers.codec import sample_from_json, score_to_json

        if not self._allowed():
            return
        length = int(self.headers.get("Content-Length") or 0)
        if self.path != "/score" or not 0 < length <= LARGEST:
            self.close_connection = True
            self._send(400, {"error": f"POST /score takes 1 to {LARGEST} bytes of JSON"})
            return
        try:
            request = json.loads(self.rfile.read(length))
            if request["protocol"] != self.server.health["protocol"]:
                raise ValueError(f"protocol {request['protocol']}, not {self.server.health['protocol']}")
            samples = [sample_from_json(row) for row in request["samples"]]
        except (ValueError, KeyError, TypeError) as error:
            self._send(400, {"error": f"the request cannot be read: {type(error).__name__}: {error}"})
            return
        try:
            scores = [score_to_json(score) for score in self.server.ask(samples)]
        except Exception as error:
            self._send(500, {"error": f"{type(error).__name__}: {error}"})
            return
        self._send(200, {"version": self.server.health["version"], "scores": scores})

    def _allowed(self) -> bool:
        sent = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if self.server.token and not hmac.compare_digest(sent.encode(), self.server.token.encode()):
            self.close_connection = True
            self._send(401, {"error": f"the token in {TOKEN} is not the server's"})
            return False
        return True

    def _send(self, code: int, answer: dict[str, Any]) -> None:
        body = json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """No line per request."""


def version_of(reward: ComponentConfig) -> str:
    """A digest of a reward's settings and of the weights that they name."""
    from rlhf_core.models import model_paths, weights_digest

    settings = reward.model_dump(mode="json")
    weights = [weights_digest(path) for path in model_paths(settings)]
    return sha256(json.dumps([settings, weights], sort_keys=True).encode()).hexdigest()[:16]


def keeps_values(reward: Any) -> bool:
    """Whether what it scored decides later scores; a torch module is taken for a frozen network, as in any run."""
    from rlhf_plugin_verifiers.workers.worker import holds_values

    return not hasattr(reward, "named_parameters") and holds_values(getattr(reward, "state_dict", dict)())


@click.command(context_settings={"show_default": True})
@click.argument("reward", metavar="RUN_OR_REWARD")
@click.option("--set", "settings", multiple=True, metavar="a.b=c", help="One setting of the reward. Repeatable.")
@click.option("--dataset", metavar="D", help="Prompts, for a reward that looks at them before it scores.")
@click.option("--host", default="127.0.0.1", help="Where to listen; beyond this machine only with a token.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="0 takes a free one.")
@click.option("--max-batch", type=click.IntRange(1), default=256, help="Completions of one call, of several requests.")
@click.option("--seed", type=click.IntRange(0, 2**64 - 1), default=0, help="For rewards that draw at random.")
def serve(reward: str, settings: tuple[str, ...], dataset: str | None, host: str, port: int, **options: int) -> None:
    """Serve a reward to runs elsewhere, until Ctrl-C: a run or folder of a reward model, or a reward's name.

    \b
    rlhf reward serve runs/rm --port 8080
    rlhf reward serve verifier --set 'verifier={name: gsm8k}'
    rlhf train --algo grpo --reward remote --set reward.url=http://127.0.0.1:8080
    """
    from rlhf_core.cli import chosen_reward, context_of, open_registry
    from rlhf_core.config import ConfigError
    from rlhf_core.data.completions import Completions, SampledPrompts
    from rlhf_core.models import use_matmul_backend
    from rlhf_plugin_verifiers.remote.client import PROTOCOL

    if host not in ("127.0.0.1", "localhost", "::1") and not os.environ.get(TOKEN):
        raise ConfigError(
            f"--host {host} lets other machines ask, and there is no token",
            fix=f"export {TOKEN}=..., here and where the run is",
        )
    folder = Path(reward).exists()
    registry = open_registry()
    chosen = chosen_reward(registry, reward if folder else None, None if folder else reward, settings)
    ctx = context_of(registry, seed=options["seed"], reward=chosen, dataset={"name": dataset or "pocket/assistant"})
    if dataset is None:  # whose prompts come, no one knows yet
        ctx = ctx.with_(datasets=SampledPrompts(ctx.config.dataset, ctx, Completions([], [], [])))
    chosen.preflight(ctx)
    use_matmul_backend("auto")
    health = {"status": "ok", "protocol": PROTOCOL, "reward": chosen.name, "version": version_of(chosen)}
    with ctx.open("reward", chosen) as opened:
        try:
            server = RewardServer((host, port), opened, health, options["max_batch"])
        except OSError as error:
            raise ConfigError(f"cannot listen on {host}:{port}", why=str(error), fix="another --port") from error
        with server:
            if keeps_values(opened):
                click.echo(
                    f"reward '{chosen.name}' has state: runs share it, no checkpoint holds it, and it ends with this "
                    "server",
                    err=True,
                )
            click.echo(f"reward '{chosen.name}', version {health['version']}")
            click.echo(f"http://{host}:{server.server_address[1]}")
            try:
                server.serve_forever()
            except KeyboardInterrupt:
                click.echo("ended")

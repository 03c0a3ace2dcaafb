"""A server that speaks the calls that the engine makes of vLLM, with the native engine behind them, and has faults;
and a proxy that loses its answers."""

from __future__ import annotations

import contextlib
import copy
import http.client
import json
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch
from safetensors.torch import load

from rlhf_core.models.layers.trunk_and_head import base_model
from rlhf_core.rollouts import FinishReason, RolloutRequest, SamplingParams
from rlhf_plugin_native.engine import NativeEngine
from rlhf_plugin_vllm.weight_group import Receiver
from rlhf_plugin_vllm.worker import PROTOCOL, SHAPE, checked_files, weights_in, write_adapter


class Handler(BaseHTTPRequestHandler):
    """Of HTTP 1.1; logs nothing."""

    protocol_version = "HTTP/1.1"

    def send(self, status: int, data: bytes, kind: str = "application/json") -> None:
        """The whole answer."""
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


class LocalServer:
    """Serves on this machine in a thread, until it is closed; port 0 takes a free one."""

    def listen(self, handler: type[Handler], port: int = 0) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", port), handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class StandIn(LocalServer):
    """One server over a copy of a policy.

    Args:
        policy: ``LoadedModel``.
        port: 0 takes a free one.
        fault: as the attribute.
        facts: what it says of itself instead.
    """

    def __init__(
        self,
        policy: Any,
        port: int = 0,
        version: str = "0.32.0",
        fault: Callable[[str, Any], Any] | None = None,
        **facts: Any,
    ) -> None:
        self.model = copy.deepcopy(policy.model)
        self.tokenizer, self.version = policy.tokenizer, version
        self.engine = NativeEngine(self.model, policy.tokenizer, policy.context)
        settings = base_model(self.model).config.get_text_config()
        self.facts = {
            "protocol": PROTOCOL,
            "failed": "",
            "model": "stand-in",
            "shape": {name: getattr(settings, name, None) for name in SHAPE},
            "dtype": "float32",
            "context": policy.context,
            "logprobs_mode": "processed_logprobs",
            "lora_rank": 0,
            "worker": 0,
            "card": "",
            "dtypes": ["float32"],
            **facts,
        }
        self.weights, self.paused, self.adapter = "default", False, None
        self.adapters: set[str] = set()
        self.calls: list[str] = []
        self.fault = fault
        """Called with path and body; what it returns that is not None is the answer, an int a status."""
        self.shift = 0.0
        """Added to every logprob."""
        self.hold: Callable[[Any], float] = lambda body: 0.0
        """Seconds that a request, of which half is sampled, waits at most for the server to be paused."""
        self._folder = tempfile.TemporaryDirectory()
        self._lock, self._pauses = threading.Lock(), threading.Condition()
        self._keeping, self._closed = 0, False
        """Pauses so far that keep what is being sampled."""
        stand_in = self

        class Answers(Handler):
            def do_GET(self) -> None:
                self._do(None)

            def do_POST(self) -> None:
                length = int(self.headers.get("content-length", 0))
                self._do(json.loads(self.rfile.read(length) or b"null"))

            def _do(self, body: Any) -> None:
                path, _, query = self.path.partition("?")
                try:
                    answer = stand_in.answer(path, body, query)
                except Exception as error:
                    answer = (500, {"error": repr(error)})
                status, value = answer if isinstance(answer, tuple) else (200, answer)
                data = json.dumps(value).encode()
                with contextlib.suppress(OSError):  # the client is gone
                    self.send(status, data)

        self.listen(Answers, port)

    def close(self) -> None:
        super().close()
        with self._lock:  # what is being computed ends: a daemon thread inside torch aborts a process that exits
            self._closed = True
        self._folder.cleanup()

    def answer(self, path: str, body: Any, query: str = "") -> Any:
        self.calls.append(path if path != "/collective_rpc" else body["method"])
        if self.fault is not None and (value := self.fault(path, body)) is not None:
            return (value, {"error": "a fault of the test"}) if isinstance(value, int) else value
        if path == "/version":
            return {"version": self.version}
        if path == "/is_paused":
            return {"is_paused": self.paused}
        if path == "/collective_rpc":
            return {"results": [getattr(self, body["method"])(*body["args"])]}
        if path == "/tokenize":
            return {"tokens": self.tokenizer.encode(body["prompt"], add_special_tokens=False)}
        if path == "/update_weight_version":
            self.weights = body["new_version"]
        if path in ("/pause", "/resume"):
            with self._lock, self._pauses:  # what is being computed is computed to its end
                self.paused = path == "/pause"
                self._keeping += query == "mode=keep"
                self._pauses.notify_all()
        if path == "/v1/load_lora_adapter":
            if body["lora_name"] in self.adapters:
                return 400, {"error": f"The lora adapter '{body['lora_name']}' has already been loaded."}
            self.rlhf_renew_adapter("1", body["lora_path"])
            self.adapter = body["lora_name"]
            self.adapters.add(self.adapter)
        if path == "/v1/unload_lora_adapter":
            if body["lora_name"] not in self.adapters:
                return 404, {"error": f"The lora adapter '{body['lora_name']}' cannot be found."}
            self.adapters.remove(body["lora_name"])
        if path == "/inference/v1/generate":
            return self._generate(body)
        return {}

    def rlhf_hello(self, folder: str) -> Any:
        file = Path(folder) / "token"
        return {**self.facts, "token": file.read_text() if folder and file.is_file() else ""}

    def rlhf_load(self, folder: str, digest: str) -> Any:
        self._put(dict(weights_in(checked_files(folder, digest))))
        return {}

    def rlhf_receive(self, told: str) -> Any:
        state, size = self._received(told)
        self._put(state)
        return {"bytes": size}

    def rlhf_receive_adapter(self, told: str) -> Any:
        settings, (state, size) = json.loads(told), self._received(told)
        folder = Path(self._folder.name) / settings["name"]
        write_adapter(folder, settings["adapter"], state)
        return {"folder": str(folder), "bytes": size}

    def _received(self, told: str) -> tuple[dict[str, torch.Tensor], int]:
        group, state = Receiver(json.loads(told), 0, torch.device("cpu")), {}
        try:
            for name, weight in group.weights():
                state[name] = weight
                if self.fault is not None and len(state) == 1:
                    self.fault("/rlhf_receiving", {})
        finally:
            group.close()
        return state, group.bytes

    def rlhf_adapters(self) -> list[int]:
        return [] if self.adapter is None else [1]

    def rlhf_renew_adapter(self, number: str, place: str) -> bool:
        folder = Path(place)
        assert number == "1"
        assert json.loads((folder / "adapter_config.json").read_text())["r"] <= self.facts["lora_rank"]
        state = load((folder / "adapter_model.safetensors").read_bytes())
        self._put({n.replace(".weight", ".default.weight"): t for n, t in state.items()})
        return True

    def _put(self, state: dict[str, torch.Tensor]) -> None:
        with self._lock:
            result = self.model.load_state_dict(state, strict=False)
        assert not result.unexpected_keys, result

    def _generate(self, body: Any) -> Any:
        if body.get("model", self.adapter) != self.adapter:
            return 404, {"error": f"{body['model']} is not {self.adapter}"}
        params = body["sampling_params"]
        if "logprobs" not in params:  # asked whether it may be asked
            return {"choices": []}
        assert params["logprobs"] == 0
        assert set(params["stop_token_ids"]) == set(self.engine.ends)
        sampling = SamplingParams(
            max_tokens=params["max_tokens"],
            temperature=params["temperature"],
            top_p=params["top_p"],
            top_k=params["top_k"],
            min_p=params["min_p"],
            stop=tuple(params.get("stop", ())),
        )
        request = RolloutRequest("stand-in", tuple(body["token_ids"]), 0, params["seed"])
        ids, rows, spans = [], [], []
        while True:
            weights, rollout, pauses = self._sampled(request, sampling)
            kept = self._kept_at_pause(rollout, pauses, self.hold(body) if not spans else 0.0)
            ids += rollout.completion_ids[:kept]
            rows += [{"token_id": i, "logprob": float(p) + self.shift} for i, p in zip(ids[-kept:], rollout.logprobs_T)]
            spans.append({"version": weights, "start": len(ids) - kept, "end": len(ids)})
            if kept == len(rollout.completion_ids):
                break
            request = replace(request, prompt_ids=request.prompt_ids + rollout.completion_ids[:kept])
            sampling = replace(sampling, max_tokens=sampling.max_tokens - kept)
        choice = {
            "token_ids": ids,
            "logprobs": {"content": rows},
            "finish_reason": "length" if rollout.finish_reason is FinishReason.LENGTH else "stop",
            "stop_reason": "" if rollout.finish_reason is FinishReason.STOP else None,
            "weight_versions": spans,
        }
        return {"choices": [choice], "model": body.get("model", "stand-in")}

    def _kept_at_pause(self, rollout: Any, pauses: int, seconds: float) -> int:
        """How many tokens of what could be sampled with these weights were, when ``/pause?mode=keep`` came: half of
        them if it comes within so many seconds, else all."""
        count = len(rollout.completion_ids)
        with self._pauses:
            came = seconds > 0 and self._pauses.wait_for(lambda: self._keeping > pauses, seconds)
        return max(1, count // 2) if came else count

    def _sampled(self, request: RolloutRequest, sampling: SamplingParams) -> tuple[str, Any, int]:
        """What its weights are called, a completion of them, and pauses until then; never while it is paused."""
        while True:
            with self._lock:
                if self._closed:
                    raise ConnectionAbortedError("the server is closed")
                if not self.paused:
                    return self.weights, self.engine.generate([request], sampling, 0)[0], self._keeping
            time.sleep(0.01)


class LosingProxy(LocalServer):
    """Stands before a server and loses answers: the server has done what it was asked for, and nobody hears of it.

    Args:
        url: of the server.
    """

    def __init__(self, url: str) -> None:
        self.lose: list[str] = []
        """Names of calls, the path's last word or the worker's method, whose next answer is lost."""
        self.lost: list[str] = []
        address, proxy = urlsplit(url).netloc, self

        class Passes(Handler):
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
                self.send(answer.status, data, answer.headers.get("content-type", "text/plain"))

        self.listen(Passes)

"""One server: takes weights, answers requests, and may be taken out and brought back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from rlhf_plugin_vllm.answers import PATH, number_of, versions_of
from rlhf_plugin_vllm.client import Client, Refused, ServerGone
from rlhf_plugin_vllm.config import VllmConfig
from rlhf_plugin_vllm.server import ServerProcess
from rlhf_plugin_vllm.transport import Files, Transport
from rlhf_plugin_vllm.weight_files import Published

UPDATING = "updating"


class Replica:
    def __init__(self, client: Client, config: VllmConfig, process: ServerProcess | None = None) -> None:
        self.client, self.config, self.process = client, config, process
        self.out = ""
        """Why it is taken out; "" while it serves."""
        self.coming_back = False
        """It was taken out, and is being given the current version."""
        self.starts = 0
        """How often it was put back: what failed before then says nothing of it now."""
        self.dtype = "float32"
        self.one_dtype = False
        """All of its weights are of ``dtype``."""
        self.workers = 1
        self.transport: Transport = Files()
        self._adapters: set[str] = set()
        """Names of adapters that it may have."""
        self._adapter_id: int | None = None

    @property
    def url(self) -> str:
        return self.client.url

    def take_out(self, reason: str) -> None:
        """Ask it for nothing more. Requests that wait on it end."""
        if not self.out:
            self.out = reason
            self.client.reopen()

    def ask(self, body: Mapping[str, Any], published: Published, *, or_later: bool = False) -> Any:
        if self.out:
            raise ServerGone(self.out)
        try:
            answer = self.client.post(PATH, body, self.config.request_s)
        except Refused as error:
            if error.status == 404:  # it does not know the adapter: it was started again
                raise ServerGone(f"{error}: {error.why}") from error
            raise
        versions = versions_of(answer)
        if versions != {published.label} and not (or_later and _are_later(versions, published)):
            names = ", ".join(sorted(versions)) or "nothing"
            raise ServerGone(
                f"a completion was sampled from '{names}' instead of version {published.version} "
                f"('{published.label}'): it was started again, or somebody else sends it weights"
            )
        return answer

    def take(self, published: Published) -> None:
        """Give it a version of the weights. It serves nothing while it takes them, nor after that has failed."""
        client, seconds = self.client, self.config.update_s
        keeps = self.config.in_flight
        try:
            client.post(f"/pause?mode={'keep' if keeps else 'abort'}", seconds=seconds)
            client.post("/update_weight_version", {"new_version": UPDATING}, seconds)
            if published.adapter:
                self._take_adapter(published)
            else:
                self.transport.weights(self, published)
            self._drop_cache(seconds)
            client.post("/update_weight_version", {"new_version": published.label}, seconds)
            client.post("/resume", seconds=seconds)
        except Refused as error:
            raise ServerGone(str(error)) from error

    def _drop_cache(self, seconds: float) -> None:
        """Let no key or value be used that other weights computed; completions under way are read anew."""
        query = "?reset_running_requests=true" if self.config.in_flight else ""
        answer = self.client.post(f"/reset_prefix_cache{query}", seconds=seconds)
        if isinstance(answer, Mapping) and answer.get("success") is False:
            raise ServerGone("it did not drop the keys and values of the weights before")

    def _take_adapter(self, published: Published) -> None:
        """The new adapter beside the old one, then without it; of completions under way in its place."""
        folder = self.transport.adapter(self, published)
        if self.config.in_flight and self._renew_adapter(folder):
            return
        name, seconds = adapter_name(published, one_name=self.config.in_flight), self.config.update_s
        there = False
        self._adapters.add(name)
        try:
            self.client.post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": folder}, seconds)
        except Refused as error:
            if "already been loaded" not in error.why:  # by an attempt that failed later on
                raise
            there = True
        for old in sorted(self._adapters - {name}):
            self._unload(old)
        if self.config.in_flight:
            self._adapter_id = max(self.client.rpc("rlhf_adapters", seconds=seconds)[0], default=None)
            if there and not self._renew_adapter(folder):  # one name for all versions: it may be an earlier one
                raise ServerGone("it has an adapter of this name and did not take the new version")

    def _unload(self, name: str) -> None:
        """Drop an adapter of an earlier version; one that is gone was dropped by a call whose answer was lost."""
        try:
            self.client.post("/v1/unload_lora_adapter", {"lora_name": name}, self.config.update_s)
        except Refused as error:
            if error.status != 404:
                raise
        self._adapters.discard(name)

    def _renew_adapter(self, folder: str) -> bool:
        """Other weights for the adapter that completions under way name (vLLM's ``load_inplace`` rereads the old files
        at every token); False where the server has none."""
        if self._adapter_id is None:
            return False
        args = (str(self._adapter_id), folder)
        return all(self.client.rpc("rlhf_renew_adapter", *args, seconds=self.config.update_s))

    def start_again(self) -> None:
        """A server of the run gets a new process; one by address is only asked again."""
        if self.process is not None:
            self.process.restart()
            self._adapters, self._adapter_id = set(), None

    def put_back(self) -> None:
        """Ask it again, on connections of its own."""
        self.out = ""
        self.starts += 1
        self.client.reopen()

    def close(self) -> None:
        self.client.close()
        if self.process is not None:
            self.process.stop()


def serving_dtype(replicas: Sequence[Replica]) -> torch.dtype | None:
    """What all servers hold all of their weights in; None where some are of another type."""
    kinds = {replica.dtype if replica.one_dtype else "" for replica in replicas}
    return getattr(torch, kinds.pop(), None) if len(kinds) == 1 else None


def _are_later(labels: set[str], published: Published) -> bool:
    """Whether all are labels of this run, none of an earlier version."""
    run = published.label.rpartition(":")[0]
    return bool(labels) and all(
        label.rpartition(":")[0] == run and number_of(label) >= published.version for label in labels
    )


def adapter_name(published: Published, *, one_name: bool) -> str:
    """What servers call the adapter of a version; ``one_name`` is the same for all versions of a run."""
    run = published.label.split(":")[0]
    return f"rlhf-{run}" if one_name else f"rlhf-{published.path.name}-{run}"

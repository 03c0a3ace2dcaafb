"""One server: takes weights, answers requests, and may be taken out and brought back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rlhf_plugin_vllm.answers import PATH, versions_of
from rlhf_plugin_vllm.client import Client, Refused, ServerGone
from rlhf_plugin_vllm.server import ServerProcess
from rlhf_plugin_vllm.weight_files import Published

if TYPE_CHECKING:
    from rlhf_plugin_vllm.config import VllmConfig

UPDATING = "updating"


class Replica:
    """A server and what is known of it.

    Args:
        client: reaches it.
        config: the engine's.
        process: of a server that the run started.
    """

    def __init__(self, client: Client, config: VllmConfig, process: ServerProcess | None = None) -> None:
        self.client, self.config, self.process = client, config, process
        self.out = ""
        """Why it is taken out; "" while it serves."""
        self.dtype = "float32"
        self._adapter: str | None = None

    @property
    def url(self) -> str:
        """Its address."""
        return self.client.url

    def take_out(self, reason: str) -> None:
        """Ask it for nothing more. Requests that wait on it end."""
        if not self.out:
            self.out = reason
            self.client.reopen()

    def ask(self, body: Mapping[str, Any], published: Published) -> Any:
        """One completion.

        Raises:
            ServerGone: it is taken out, does not answer, or has not the weights of this version.
            Refused: the request is wrong.
        """
        if self.out:
            raise ServerGone(self.out)
        try:
            answer = self.client.post(PATH, body, self.config.request_s)
        except Refused as error:
            if error.status == 404:  # it does not know the adapter: it was started again
                raise ServerGone(f"{error}: {error.why}") from error
            raise
        versions = versions_of(answer)
        if versions != {published.label}:
            names = ", ".join(sorted(versions)) or "nothing"
            raise ServerGone(
                f"a completion was sampled from '{names}' instead of version {published.version} "
                f"('{published.label}'): it was started again, or somebody else sends it weights"
            )
        return answer

    def take(self, published: Published) -> None:
        """Give it a version of the weights. It serves nothing while it takes them, nor after that has failed.

        Raises:
            ServerGone: it failed, or was late.
        """
        client, seconds = self.client, self.config.update_s
        try:
            client.post("/pause?mode=abort", seconds=seconds)
            client.post("/update_weight_version", {"new_version": UPDATING}, seconds)
            if published.adapter:
                self._take_adapter(published)
            else:
                client.rpc("rlhf_load", str(published.path), published.digest, seconds=seconds)
            client.post("/reset_prefix_cache", seconds=seconds)
            client.post("/update_weight_version", {"new_version": published.label}, seconds)
            client.post("/resume", seconds=seconds)
        except Refused as error:
            raise ServerGone(str(error)) from error

    def _take_adapter(self, published: Published) -> None:
        """The new adapter beside the old one, then without it."""
        name = adapter_name(published)
        body = {"lora_name": name, "lora_path": str(published.path), "load_inplace": True}
        self.client.post("/v1/load_lora_adapter", body, self.config.update_s)
        if self._adapter is not None and self._adapter != name:
            self.client.post("/v1/unload_lora_adapter", {"lora_name": self._adapter}, self.config.update_s)
        self._adapter = name

    def start_again(self) -> None:
        """A server of the run gets a new process; one by address is only asked again.

        Raises:
            ServerGone: it does not start.
        """
        if self.process is not None:
            self.process.restart()
            self._adapter = None
        self.out = ""
        self.client.reopen()

    def close(self) -> None:
        """Let it go; a server that the run started ends."""
        self.client.close()
        if self.process is not None:
            self.process.stop()


def adapter_name(published: Published) -> str:
    """What servers call the adapter of a version."""
    return f"rlhf-{published.path.name}-{published.label.split(':')[0]}"

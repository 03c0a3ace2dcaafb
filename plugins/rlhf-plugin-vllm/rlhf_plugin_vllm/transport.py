"""How a version that is on the trainer's disk reaches a server: its workers read the files, or are sent the weights."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

import torch
from safetensors import SafetensorError, safe_open

from rlhf_core.config import RlhfError
from rlhf_plugin_vllm.client import Refused, ServerGone
from rlhf_plugin_vllm.config import LOOPBACK
from rlhf_plugin_vllm.weight_files import MIB, Published
from rlhf_plugin_vllm.weight_group import GroupError, Sender, own_address
from rlhf_plugin_vllm.worker import DIGESTS

if TYPE_CHECKING:
    from rlhf_core.config import BuildContext
    from rlhf_plugin_vllm.config import VllmConfig
    from rlhf_plugin_vllm.replica import Replica


class Transport(Protocol):
    """A version's way to a server, which is paused. What fails raises ``ServerGone``."""

    def weights(self, replica: Replica, published: Published) -> None:
        """Give the workers all weights."""
        ...

    def adapter(self, replica: Replica, published: Published) -> str:
        """Give the workers an adapter's files; the folder where they have them."""
        ...

    def size(self, published: Published) -> int:
        """Bytes that a server was given."""
        ...


class Files:
    """The workers read what the trainer wrote; both see one folder."""

    def weights(self, replica: Replica, published: Published) -> None:
        replica.client.rpc("rlhf_load", str(published.path), published.digest, seconds=replica.config.update_s)

    def adapter(self, replica: Replica, published: Published) -> str:
        return str(published.path)

    def size(self, published: Published) -> int:
        return published.size


class Groups:
    """The workers are sent what the trainer wrote, over a group of each server's own.

    Args:
        backend: ``gloo`` or ``nccl``.
        most: bytes of a bucket.
        device: that ``nccl`` sends from; ``gloo`` sends from main memory.
    """

    def __init__(self, backend: str, most: int, device: torch.device) -> None:
        self.backend, self.most = backend, most
        self.device = device if backend == "nccl" else torch.device("cpu")
        self._sizes: dict[str, int] = {}

    def weights(self, replica: Replica, published: Published) -> None:
        rows, size = self._send(replica, published, "rlhf_receive", {"label": published.label})
        if any(int(row["bytes"]) != size for row in rows):
            raise ServerGone(f"its workers received {[row['bytes'] for row in rows]} of {size} bytes")

    def adapter(self, replica: Replica, published: Published) -> str:
        settings = json.loads((published.path / "adapter_config.json").read_text())
        name = f"{published.label.replace(':', '-')}-{published.path.name}"
        rows, _ = self._send(replica, published, "rlhf_receive_adapter", {"name": name, "adapter": settings})
        return str(rows[0]["folder"])

    def size(self, published: Published) -> int:
        return self._sizes.get(published.label, 0)

    def _send(self, replica: Replica, published: Published, method: str, more: dict[str, Any]) -> tuple[list[Any], int]:
        """What each worker answers once it has all, and the bytes; why it has not as ``ServerGone``."""
        client, seconds = replica.client, replica.config.update_s
        try:
            sender = Sender(self.backend, reached_at(client.url), replica.workers, seconds, self.device)
        except (OSError, RuntimeError) as error:
            raise ServerGone(f"no port of this machine could be opened for its workers: {error}") from error
        asking = ThreadPoolExecutor(1, thread_name_prefix="vllm-receive")
        try:
            told = sender.address.to_json(**more)
            answer = asking.submit(client.rpc, method, told, seconds=seconds)
            answer.add_done_callback(lambda ended: sender.interrupt() if ended.exception() else None)
            try:
                sender.join(answer.done)
                most = min(self.most, published.size)
                size = sender.send(stored_weights(published.path), most)
            except GroupError as error:
                sender.close()  # workers that wait end now, and say what they know
                raise ServerGone(f"{method}: {error}{_said(answer)}") from error
            except OSError as error:
                _said(answer)  # the workers hear why before the group is gone
                raise RlhfError(
                    f"version {published.version} of the weights cannot be read from '{published.path}'",
                    why=str(error),
                    fix="see why the folder is gone, and resume",
                ) from error
            self._sizes = {published.label: size}
            return answer.result(), size
        finally:
            sender.close()
            asking.shutdown(wait=False)


def transport_of(config: VllmConfig, ctx: BuildContext) -> Transport:
    """The one that the settings choose."""
    kind = config.chosen_transport()
    return Files() if kind == "files" else Groups(kind, config.bucket_mib * MIB, trainer_device(ctx))


def trainer_device(ctx: BuildContext) -> torch.device:
    """Where the policy computes; a model that is evaluated has no strategy."""
    return next(ctx.policy.model.parameters()).device if ctx.strategy is None else ctx.strategy.device


REASON_S = 5.0
"""Seconds for a server to say why it takes no more weights."""


def _said(answer: Future[Any]) -> str:
    """What a server answers that takes no more weights; "" where it does not."""
    try:
        answer.result(REASON_S)
    except (ServerGone, Refused) as error:
        return f"; {error}"
    except TimeoutError:
        return "; it does not answer"
    return ""


def reached_at(url: str) -> str:
    """This machine's address for a server."""
    host = urlsplit(url).hostname or ""
    return LOOPBACK[0] if host in LOOPBACK else own_address(host)


def stored_weights(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """(Name, tensor) of every weight in a folder's files, each read when it is its turn.

    Raises:
        OSError: a file that was written is gone or cut off.
    """
    listed = folder / DIGESTS
    written = json.loads(listed.read_text()) if listed.is_file() else [f.name for f in folder.glob("*.safetensors")]
    if not written:
        raise FileNotFoundError(f"there are no weights in '{folder}'")
    try:
        for file in sorted(written):
            with safe_open(str(folder / file), "pt") as tensors:
                names: Iterable[str] = tensors.keys()
                for name in names:
                    yield name, tensors.get_tensor(name)
    except SafetensorError as error:
        raise OSError(f"{error}") from error

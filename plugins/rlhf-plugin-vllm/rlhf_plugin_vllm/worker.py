"""What runs inside vLLM (``--worker-extension-cls``) and needs nothing else; ``self`` is vLLM's worker, which the class
is mixed into."""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

EXTENSION = "rlhf_plugin_vllm.worker.Extension"
"""What ``--worker-extension-cls`` is given."""
PROTOCOL = 3
"""Of the calls below; the trainer refuses another."""
DIGESTS = "digests.json"
"""File beside those with weights: name of each, in order, -> SHA-256 of its bytes."""
ADAPTERS = "RLHF_VLLM_ADAPTERS"
"""Environment variable: folder for adapters that come by a group; that of a server of the run goes with the run."""
SHAPE = (
    "model_type",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
    "tie_word_embeddings",
)
"""What two models must share for the weights of one to be the other's, as their configurations call it."""


class Extension:
    """Reads weights from files, and makes sure that all of them arrive where logits come from."""

    rlhf_failed = ""
    """The folder of a load that failed half-way: a mixture of versions is in place."""

    def rlhf_hello(self: Any, folder: str) -> dict[str, Any]:
        """What the trainer wants to know before it trains."""
        file, model, lora = Path(folder) / "token", self.model_config, self.lora_config
        settings, numbers = model.hf_config.get_text_config(), self.model_runner.get_model().parameters()
        return {
            "protocol": PROTOCOL,
            "token": file.read_text() if folder and file.is_file() else "",
            "failed": self.rlhf_failed,
            "model": str(model.model),
            "shape": {name: getattr(settings, name, None) for name in SHAPE},
            "dtype": str(model.dtype).removeprefix("torch."),
            "context": int(model.max_model_len),
            "logprobs_mode": str(getattr(model.logprobs_mode, "value", model.logprobs_mode)),
            "lora_rank": 0 if lora is None else int(lora.max_lora_rank),
            "worker": worker_number(self),
            "card": card_of(self.device),
            "dtypes": sorted({str(p.dtype).removeprefix("torch.") for p in numbers if p.is_floating_point()}),
        }

    def rlhf_load(self: Any, folder: str, digest: str) -> dict[str, Any]:
        """Take all weights from a folder of safetensors files, checked whole first, under the checkpoint's names."""
        files = checked_files(folder, digest)
        self.rlhf_failed = folder
        repacked = _take_all(self, weights_in(files))
        self.rlhf_failed = ""
        return {"bytes": sum(file.stat().st_size for file in files), "heads": repacked}

    def rlhf_receive(self: Any, told: str) -> dict[str, Any]:
        """Take all weights from the trainer's group of a version, under the checkpoint's names."""
        group = receiver_of(self, told)
        try:
            self.rlhf_failed = str(json.loads(told)["label"])
            repacked = _take_all(self, group.weights())
        finally:
            group.close()
        self.rlhf_failed = ""
        return {"bytes": group.bytes, "heads": repacked}

    def rlhf_receive_adapter(self: Any, told: str) -> dict[str, Any]:
        """Take an adapter from the trainer's group of a version, into a folder of this machine that vLLM loads it
        from; that of the version before the last one goes."""
        settings, group = json.loads(told), receiver_of(self, told)
        try:
            folder = adapters_folder(self) / settings["name"]
            write_adapter(folder, settings["adapter"], dict(group.weights()))
        finally:
            group.close()
        older = [f for f in getattr(self, "_rlhf_adapter_folders", ()) if f != folder]
        for unneeded in older[:-1]:
            shutil.rmtree(unneeded, ignore_errors=True)
        self._rlhf_adapter_folders = [*older[-1:], folder]
        return {"folder": str(folder), "bytes": group.bytes}

    def rlhf_adapters(self: Any) -> list[int]:
        """vLLM's numbers of the adapters that are loaded."""
        return sorted(self.list_loras())

    def rlhf_renew_adapter(self: Any, number: str, folder: str) -> bool:
        """Give an adapter other weights, for requests under way as for those to come; False where it is not loaded."""
        from vllm.lora.request import LoRARequest  # pyright: ignore[reportMissingImports]

        if int(number) not in self.list_loras():
            return False
        self.add_lora(LoRARequest(f"rlhf-{number}", int(number), folder, load_inplace=True))
        return True

    def rlhf_take(self: Any, weights: Iterator[tuple[str, Any]]) -> int:
        """Take all weights from tensors of this process; what fails leaves a mixture of versions."""
        return _take_all(self, weights)


def worker_number(worker: Any) -> int:
    """From 0, among all workers of a server."""
    parallel = worker.vllm_config.parallel_config
    return int(parallel.data_parallel_index) * int(parallel.world_size) + int(worker.rank)


def card_of(device: Any) -> str:
    """What no two cards share; "" on CPUs."""
    import torch

    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else ""


def receiver_of(worker: Any, told: str) -> Any:
    """This worker's side of the group that the trainer tells of."""
    from rlhf_plugin_vllm.weight_group import Receiver

    return Receiver(json.loads(told), worker_number(worker), worker.device)


def adapters_folder(worker: Any) -> Path:
    """Where this machine's workers of a server write adapters; removed when they end, unless they are killed."""
    if ADAPTERS not in os.environ:
        os.environ[ADAPTERS] = str(Path(tempfile.gettempdir()) / f"rlhf-adapters-{worker.vllm_config.instance_id}")
        atexit.register(shutil.rmtree, os.environ[ADAPTERS], ignore_errors=True)
    return Path(os.environ[ADAPTERS])


def write_adapter(folder: Path, settings: Any, weights: dict[str, Any]) -> None:
    """An adapter's files; workers of one machine write the same ones, each whole."""
    from safetensors.torch import save_file

    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = folder / f".{os.getpid()}"
    part.write_text(json.dumps(settings))
    os.replace(part, folder / "adapter_config.json")
    save_file({name: weight.cpu().contiguous() for name, weight in weights.items()}, part)
    os.replace(part, folder / "adapter_model.safetensors")


def checked_files(folder: str, digest: str) -> list[Path]:
    """The files with weights of a folder, in order, none of which is read into memory whole."""
    listed = (Path(folder) / DIGESTS).read_bytes()
    if hashlib.sha256(listed).hexdigest() != digest:
        raise RuntimeError(f"{folder} is not the folder that the trainer wrote")
    digests = {Path(folder) / name: wanted for name, wanted in json.loads(listed).items()}
    for path, wanted in digests.items():
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != wanted:
                raise RuntimeError(f"{path} is not the file that the trainer wrote")
    return list(digests)


def weights_in(files: list[Path]) -> Iterator[tuple[str, Any]]:
    """(Name, tensor) of every weight; one file at a time is in memory."""
    from safetensors.torch import load

    for file in files:
        yield from load(file.read_bytes()).items()


def _take_all(worker: Any, weights: Iterator[tuple[str, Any]]) -> int:
    """Weights for every parameter; returns how many output heads were packed anew."""
    model = worker.model_runner.get_model()
    parameters = {name for name, _ in model.named_parameters()}
    missing = sorted(parameters - _reload(worker, model, weights))
    if missing:
        raise RuntimeError(f"there are no weights for {missing[:5]} ({len(missing)} in all)")
    _repack_experts(model)
    return _repack_heads(model)


def _reload(worker: Any, model: Any, state: Iterator[tuple[str, Any]]) -> set[str]:
    """vLLM's own reload; returns the names of the parameters that it wrote, which vLLM itself only logs."""
    written: set[str] = set()
    load_weights = model.load_weights

    def noting(weights: Any) -> Any:
        names = load_weights(weights)
        written.update(names or ())
        return names

    model.load_weights = noting
    try:
        worker.reload_weights(weights_iterator=state)
    finally:
        del model.load_weights
    return written


def _repack_experts(model: Any) -> None:
    """Pack experts as the kernel for CPUs reads them: vLLM 0.32.0 does so when they are loaded first, and when they are
    loaded again leaves them as they came (logprobs are then wrong without an error)."""
    for layer in model.modules():
        experts = getattr(getattr(getattr(layer, "quant_method", None), "moe_kernel", None), "fused_experts", None)
        if experts is not None and next(layer.parameters()).device.type == "cpu":
            experts.process_weights_after_loading(layer)


def _repack_heads(model: Any) -> int:
    """Let output heads compute with the weights of now: vLLM's reload skips a head that shares the embedding's, whose
    packed weights stay old (vLLM 0.32.0 on CPUs: 200 OK, and logprobs that are 0.3 nats wrong)."""
    from vllm.model_executor.layers.vocab_parallel_embedding import (  # pyright: ignore[reportMissingImports]
        ParallelLMHead,
    )

    heads = [module for module in model.modules() if isinstance(module, ParallelLMHead)]
    for head in heads:
        head.quant_method.process_weights_after_loading(head)
    return len(heads)

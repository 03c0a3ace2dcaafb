"""From settings to replicas that are known to serve the run's model."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf_core.config import BuildContext
from rlhf_core.models import LoadedModel, ModelError, has_meta_weights
from rlhf_core.models.adapters import plain_name
from rlhf_core.models.four_bits import numbers
from rlhf_plugin_vllm.cards import own_cards
from rlhf_plugin_vllm.checks import check_folder, check_group, check_model, check_server, check_tokenizer, facts_of
from rlhf_plugin_vllm.client import Client, ServerGone
from rlhf_plugin_vllm.replica import Replica
from rlhf_plugin_vllm.server import ServerProcess, free_port, server_command, server_environment
from rlhf_plugin_vllm.sharing import borrows, in_preference
from rlhf_plugin_vllm.skeleton import FrozenOnDisk
from rlhf_plugin_vllm.transport import trainer_device
from rlhf_plugin_vllm.weight_files import StoredWeights, WeightFiles, unpacked_bytes, write_buckets

if TYPE_CHECKING:
    import torch

    from rlhf_plugin_vllm.config import VllmConfig


def connect(config: VllmConfig, ctx: BuildContext, files: WeightFiles, dtype: str, context: int) -> list[Replica]:
    """This rank's replicas, or those of other ranks that it may ask, which are looked into by them."""
    if borrows(config.urls, ctx.rank):
        urls = in_preference(config.urls, ctx.rank)
        return [Replica(Client(url, config.max_concurrent + 2), config) for url in urls]
    if config.urls:
        urls = config.urls[ctx.rank :: ctx.world_size]
        replicas = [Replica(Client(url, config.max_concurrent + 2), config) for url in urls]
    else:
        replicas = _start(config, ctx, files, dtype, context)
    try:
        for replica in replicas:
            _check(replica, config, ctx, files, context)
    except BaseException:
        _close(replicas)
        raise
    return replicas


def _check(replica: Replica, config: VllmConfig, ctx: BuildContext, files: WeightFiles, context: int) -> None:
    facts = facts_of(replica.client, config, str(files.folder))
    check_server(facts, replica.url, files.rank)
    if (transport := config.chosen_transport()) == "files":
        check_folder(facts, files.token, files.folder, replica.url)
    else:
        check_group(facts, replica.url, transport, trainer_device(ctx))
    check_model(facts, replica.url, base_model(ctx.policy.model).config, context)
    check_tokenizer(replica.client, ctx.policy.tokenizer)
    replica.dtype, replica.workers = facts["dtype"], len(facts["workers"])
    replica.one_dtype = facts["dtypes"] == [facts["dtype"]]


def _start(config: VllmConfig, ctx: BuildContext, files: WeightFiles, dtype: str, context: int) -> list[Replica]:
    assert config.python is not None
    folder = files.own / "model"
    any_weights = ["--load-format", "dummy"] if save_start(ctx.policy, folder, files) else []
    more = [*any_weights, *config.arguments]
    command = server_command(config.python, folder, dtype, context, files.rank, more)
    environment = {**server_environment(files.own), **config.environment}
    processes = [
        ServerProcess(command, {**environment, **cards}, free_port(), files.own / f"server-{n}.log", config.start_s)
        for n, cards in enumerate(own_cards(config, ctx))
    ]
    replicas = [Replica(Client(p.url, config.max_concurrent + 2), config, p) for p in processes]
    try:
        for process in processes:
            process.start()
        for process in processes:
            process.wait()
    except BaseException as error:
        _close(replicas)
        if not isinstance(error, ServerGone):
            raise
        raise ModelError(
            "a vLLM server could not be started", why=str(error), fix="rollout.arguments are passed to it"
        ) from error
    return replicas


def save_start(policy: Any, folder: Path, files: WeightFiles) -> bool:
    """What vLLM starts with; whether it has no weights. Of a policy read by parts it starts with any weights, as all
    come with the first version, or under LoRA with the files of the base weights; weights of 4 bits are unpacked."""
    packed = any(hasattr(p, "quant_state") for p in policy.model.parameters())
    if not has_meta_weights(policy.model) and not packed:
        save_base(policy, folder)
        return False
    save_shape(policy, folder)
    if packed:
        _write_unpacked(policy.model, folder, files)
        return False
    if not files.rank:
        return True
    source = Path(str(base_model(policy.model).name_or_path))
    names = weight_file_names(source)
    for name in names:
        (folder / name).symlink_to((source / name).resolve())
    if not names:  # of the hub: they lie in its cache, wherever that is
        write_buckets(folder, FrozenOnDisk(policy.model, plain_name), files.bucket, _frozen_sizes(policy.model))
    return False


def _write_unpacked(model: Any, folder: Path, files: WeightFiles) -> None:
    """What a base of 4 bits stands for: with it a server computes as the trainer does, which quantising anew would
    not; a file at a time, and never whole in memory."""
    base = {plain_name(name): p for name, p in model.named_parameters() if ".lora_" not in name}
    sizes = {name: unpacked_bytes(p) for name, p in base.items()}
    write_buckets(folder, base, files.bucket, sizes, lambda name, weight: files.names.split(name, numbers(weight)))


def frozen_weights(model: Any, files: WeightFiles, *, divided: bool) -> Mapping[str, torch.Tensor] | None:
    """What no version holds, for the canary, from files where the policy is divided; None where it stays whole."""
    if not divided:
        return None
    if not files.rank:
        return {}
    if has_meta_weights(model):
        return FrozenOnDisk(model)
    folder = files.own / "frozen"
    folder.mkdir()
    frozen = {n: p for n, p in model.named_parameters() if not p.requires_grad}
    write_buckets(folder, frozen, files.bucket, split=lambda name, weight: {name: numbers(weight)})
    return StoredWeights(folder.glob("*.safetensors"))


def _frozen_sizes(model: Any) -> dict[str, int]:
    frozen = ((name, p) for name, p in model.named_parameters() if not p.requires_grad)
    return {plain_name(name): p.numel() * p.element_size() for name, p in frozen}


def weight_file_names(folder: Path) -> list[str]:
    """The files with weights of a model's folder that transformers reads, the index of several among them."""
    index = folder / "model.safetensors.index.json"
    if (folder / "model.safetensors").is_file():
        return ["model.safetensors"]
    return [index.name, *sorted(set(json.loads(index.read_text())["weight_map"].values()))] if index.is_file() else []


def base_model(model: Any) -> Any:
    """The transformers model under a peft wrapper."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def save_base(policy: Any, folder: Path) -> None:
    """The model that servers start with; of one with adapters what the adapters change, without them."""
    model = base_model(policy.model)
    state = {plain_name(name): tensor for name, tensor in model.state_dict().items() if ".lora_" not in name}
    with _written_by_every_rank(model):
        LoadedModel(model, policy.tokenizer, "", 0).save(folder, state)


@contextlib.contextmanager
def _written_by_every_rank(model: Any) -> Generator[None, None, None]:
    """transformers' ``save_pretrained`` writes on rank 0 only; here each rank has a folder of its own."""
    model.should_save_on_this_rank = lambda is_main_process: True
    try:
        yield
    finally:
        del model.should_save_on_this_rank


def save_shape(policy: Any, folder: Path) -> None:
    """Configuration and tokenizer of a model whose weights come later."""
    model = base_model(policy.model)
    model.config.save_pretrained(folder)
    if getattr(model, "generation_config", None) is not None:
        model.generation_config.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)


def _close(replicas: Sequence[Replica]) -> None:
    for replica in replicas:
        replica.close()

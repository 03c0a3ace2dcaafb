"""Loads a policy: hub id, folder, ``.gguf`` file or ``pocket``. torch and transformers are imported late."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf_core.errors import ModelError
from rlhf_core.models.config import LoraSettings, ModelConfig

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class LoadedModel:
    """A causal language model, its tokenizer, and how many tokens fit."""

    model: Any
    tokenizer: Any
    source: str
    context: int
    """Prompt + completion tokens that the model (or ``model.max_context``) allows."""


def locate(path: str) -> tuple[str, dict[str, str]]:
    """Resolve a model name to what ``from_pretrained`` takes.

    Returns:
        (folder or hub id, extra arguments such as ``gguf_file``).

    Raises:
        ModelError: a path that does not exist or a folder that is incomplete.
    """
    if path == "pocket":
        from rlhf_core.pocket import weights_path

        return str(check_folder(weights_path())), {}
    here = Path(path).expanduser()
    if path.endswith(".gguf"):
        if not here.is_file():
            raise ModelError(f"model file '{path}' does not exist", fix="check --model")
        return str(here.parent), {"gguf_file": here.name}
    if here.is_dir():
        return str(check_folder(here)), {}
    if path.startswith((".", "/", "~")) or here.suffix or path.count("/") > 1:
        raise ModelError(f"model folder '{path}' does not exist", fix="check --model, or give a hub id such as org/name")
    return path, {}


def check_folder(folder: Path) -> Path:
    """Refuse a folder that is not a whole model.

    Raises:
        ModelError: names the missing files.
    """
    missing = [] if (folder / "config.json").is_file() else ["config.json"]
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        shards = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        missing += [s for s in shards if not (folder / s).is_file()]
    elif not (folder / "model.safetensors").is_file():
        missing.append("model.safetensors")
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")):
        missing.append("tokenizer.json")
    if missing:
        only_pickle = any(folder.glob("pytorch_model*.bin")) and "model.safetensors" in missing
        why = "it holds pickled weights, which are not loaded" if only_pickle else ""
        raise ModelError(f"model folder '{folder}' is incomplete: {', '.join(missing)} missing", why=why,
                         fix="save it with save_pretrained (safetensors) together with its tokenizer")
    return folder


def load_tokenizer(config: ModelConfig) -> Any:
    """The tokenizer of a model, with a pad token (the EOS if it has none of its own).

    Raises:
        ModelError: cannot be loaded.
    """
    from transformers import AutoTokenizer

    where, extra = locate(config.path)
    tokenizer = _guard(config, lambda: AutoTokenizer.from_pretrained(
        where, revision=config.revision or "main", trust_remote_code=config.trust_remote_code, **extra))
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_policy(config: ModelConfig) -> LoadedModel:
    """Load model and tokenizer, with adapters if the config asks for them.

    Raises:
        ModelError: missing, incomplete, unreadable, or out of reach.
    """
    from transformers import AutoModelForCausalLM

    tokenizer = load_tokenizer(config)
    where, extra = locate(config.path)
    model = _guard(config, lambda: AutoModelForCausalLM.from_pretrained(
        where, revision=config.revision or "main", dtype=torch_dtype(config.dtype), use_safetensors=None if extra else True,
        attn_implementation=config.attention, trust_remote_code=config.trust_remote_code, **extra))
    clear_quantizer(model)
    context = context_length(model, config)
    if config.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if config.lora is not None:
        model = add_lora(model, config.lora)
    model.eval()  # dropout stays off: sampled and trained logprobs must mean the same
    return LoadedModel(model, tokenizer, config.path, context)


def context_length(model: Any, config: ModelConfig) -> int:
    """Tokens that fit."""
    own = getattr(model.config, "max_position_embeddings", None) or 1 << 30
    return min(own, config.max_context or own)


def torch_dtype(name: str) -> torch.dtype:
    """``"float32"`` -> ``torch.float32``."""
    import torch

    return getattr(torch, name)


def clear_quantizer(model: Any) -> None:
    """A model read from GGUF is dequantized; drop the marks so that it saves as safetensors."""
    for owner, name in ((model.config, "quantization_config"), (model, "hf_quantizer"), (model, "quantization_method")):
        if hasattr(owner, name):
            delattr(owner, name)
    model.is_quantized = False


def add_lora(model: Any, settings: LoraSettings) -> Any:
    """Wrap a model with trainable low-rank adapters."""
    from peft import LoraConfig, get_peft_model

    targets = settings.target_modules if isinstance(settings.target_modules, str) else list(settings.target_modules)
    return get_peft_model(model, LoraConfig(r=settings.r, lora_alpha=settings.alpha, lora_dropout=settings.dropout,  # pyright: ignore[reportArgumentType]
                                            target_modules=targets, task_type="CAUSAL_LM"))


def _guard(config: ModelConfig, load: Any) -> Any:
    """Turn a loader's failure into one clear message."""
    try:
        return load()
    except ModelError:
        raise
    except (OSError, ValueError, ImportError, KeyError, RuntimeError) as error:
        why = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(f"model '{config.path}' cannot be loaded", why=f"{type(error).__name__}: {why}",
                         fix="give a folder in Hugging Face form, a .gguf file (pip install 'rlhf-core[gguf]'), "
                             "'pocket', or a hub id that this machine can reach") from error

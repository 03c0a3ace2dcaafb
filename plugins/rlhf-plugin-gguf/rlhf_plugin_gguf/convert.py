"""A ``.gguf`` file as a folder in Hugging Face form, which is written once and kept."""

from __future__ import annotations

import functools
import hashlib
import logging
import sys
from collections.abc import Generator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

from rlhf_core.data import cache_folder, verify_files, whole_folder
from rlhf_core.models import ModelError, check_finite

log = logging.getLogger("rlhf.models")
CONVERTERS = ("transformers", "gguf")
"""Distributions that decide what a file becomes."""


def folder_of(file: Path) -> Path:
    """The folder under ``$RLHF_CACHE/gguf`` that holds the file's model, weights in float32; it is written if there is
    none for the file's content, and written again if it is damaged.

    Raises:
        ModelError: not a GGUF file, cut short, or of an architecture that transformers does not convert.
    """
    with file.open("rb") as handle:
        magic = handle.read(4)
    if magic != b"GGUF":
        raise ModelError(
            f"'{file}' is not a GGUF file",
            why=f"it starts with {magic!r}, not b'GGUF'",
            fix="download it again (a saved web page or a Git LFS pointer looks like this)",
        )
    facts = file.stat()
    folder = cache_folder() / "gguf" / _digest(file, facts.st_size, facts.st_mtime_ns, facts.st_ino)
    if not _is_undamaged(folder):
        _convert(file, folder)
    return folder


@functools.lru_cache(maxsize=64)
def _digest(file: Path, size: int, changed_ns: int, inode: int) -> str:
    """Of the content and of what converts it; remembered while the file stays as it is."""
    with file.open("rb") as handle:
        digest = hashlib.file_digest(handle, "sha256")
    digest.update(" ".join(metadata.version(name) for name in CONVERTERS).encode())
    return digest.hexdigest()[:32]


def _is_undamaged(folder: Path) -> bool:
    """Whether a folder has its manifest, and every file is what that says."""
    if not (folder / "manifest.json").is_file():
        return False
    try:
        verify_files(folder)
    except ModelError as error:
        log.warning("%s: it is written again", error.what)
        return False
    return True


def _convert(file: Path, folder: Path) -> None:
    _say(
        f"{file.name} is converted to a model folder, once ({file.stat().st_size / 1e6:.0f} MB): reading its tokenizer"
    )
    with _parsed_once():
        try:
            tokenizer, model = _read(file)
        except Exception as error:  # a file can be wrong in as many ways as there are architectures
            text = str(error).strip()
            raise ModelError(
                f"cannot read the model in '{file}'",
                why=f"{type(error).__name__}: {text.splitlines()[0][:300]}" if text else type(error).__name__,
                fix="the file may be cut short, or of an architecture that transformers does not convert; "
                "download it again or use the safetensors model",
            ) from error
    check_finite(model.state_dict(), str(file))
    _say(f"{file.name}: writing {model.num_parameters() * 4 / 1e6:.0f} MB into {folder}")
    with whole_folder(folder) as aside:
        model.save_pretrained(aside)
        tokenizer.save_pretrained(aside)


def _read(file: Path) -> tuple[Any, Any]:
    """(Tokenizer, model) as transformers makes them."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    _say(f"{file.name}: reading its weights")
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32, output_loading_info=True
    )
    model, info = loaded
    if missing := sorted(info["missing_keys"]):
        raise ValueError(f"it lacks {len(missing)} of its model's weights, such as {missing[0]}")
    if left_over := sorted(info["unexpected_keys"]):
        log.warning(
            "'%s' holds %d weights that its model has no place for, such as %s: they are left out",
            *(file, len(left_over), left_over[0]),
        )
    # the weights are ordinary floats now, and are saved as such
    for owner, name in ((model.config, "quantization_config"), (model, "hf_quantizer"), (model, "quantization_method")):
        if hasattr(owner, name):
            delattr(owner, name)
    model.is_quantized = False
    return tokenizer, model


@contextmanager
def _parsed_once() -> Generator[None, None, None]:
    """Let transformers parse a file once: it does so three times, minutes where the vocabulary is large."""
    import gguf

    parsers: Any = gguf
    slow = {name: getattr(gguf, name) for name in ("GGUFReader", "get_tensor_name_map")}
    try:
        for name, function in slow.items():
            setattr(parsers, name, functools.cache(function))
        yield
    finally:
        for name, function in slow.items():
            setattr(parsers, name, function)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)

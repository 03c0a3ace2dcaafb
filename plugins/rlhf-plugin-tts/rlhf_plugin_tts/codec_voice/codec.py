"""Neural codecs of transformers: codes of a clip's frames become samples."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_core.models import ModelError

FAMILIES = ("dac", "encodec", "mimi", "neucodec", "xcodec", "xcodec2")
WEIGHTS = "model.safetensors"


class Codec:
    """One codec in Hugging Face form; its weights are loaded when a clip is first decoded."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if not (folder / "config.json").is_file():
            raise ModelError(
                f"there is no codec in '{folder}'",
                why="config.json is not there",
                fix="give a codec's folder in Hugging Face form; rlhf tts voice copies one beside a model",
            )
        if not sorted(folder.glob("*.safetensors")):
            raise ModelError(f"the codec '{folder}' has no {WEIGHTS}", fix="copy or download its folder again")
        from transformers import AutoConfig

        try:
            self.family = str(json.loads((folder / "config.json").read_text()).get("model_type"))
            self.config: Any = AutoConfig.from_pretrained(folder)
        except (OSError, ValueError, KeyError, AttributeError) as error:
            reason = str(error).strip().splitlines()[0][:200]
            raise ModelError(
                f"'{folder}' is not a codec that transformers knows", why=reason, fix=f"one of {', '.join(FAMILIES)}"
            ) from error
        if self.family not in FAMILIES:
            raise ModelError(
                f"'{folder}' holds a {self.family}, which is not a codec that can be decoded here",
                fix=f"one of {', '.join(FAMILIES)}",
            )

    @property
    def rate(self) -> int:
        """Samples per second."""
        for name in ("output_sampling_rate", "sampling_rate", "sample_rate"):
            if (rate := getattr(self.config, name, None)) is not None:
                return int(rate)
        raise ModelError(f"the codec '{self.folder}' does not say its sample rate")

    @property
    def codebooks(self) -> int:
        """Codes of one frame."""
        for name in ("n_codebooks", "num_quantizers"):
            if (count := getattr(self.config, name, None)) is not None:
                return int(count)
        return 1

    @property
    def size(self) -> int:
        """Codes in each codebook."""
        levels = getattr(self.config, "quantization_levels", None)
        return int(np.prod(levels)) if levels else int(self.config.codebook_size)

    @cached_property
    def digest(self) -> str:
        """Of configuration and weights: another training of the same codec sounds otherwise."""
        digest = hashlib.sha256((self.folder / "config.json").read_bytes())
        for file in sorted(self.folder.glob("*.safetensors")):
            digest.update(f"{file.name} {hashlib.sha256(file.read_bytes()).hexdigest()}".encode())
        return digest.hexdigest()

    @cached_property
    def model(self) -> Any:
        from transformers import AutoModel

        from rlhf_core.models import check_finite

        try:
            loaded: Any = AutoModel.from_pretrained(self.folder, use_safetensors=True)
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            reason = str(error).strip().splitlines()[0][:200]
            raise ModelError(f"the codec '{self.folder}' cannot be loaded", why=reason) from error
        check_finite(loaded.state_dict(), str(self.folder))
        return loaded.eval().requires_grad_(False)

    def decode(self, frames: Sequence[Sequence[int]]) -> Any:
        """Samples in [-1, 1], float32."""
        import torch

        codes_BKT = torch.tensor(list(map(list, frames))).T[None]
        with torch.inference_mode():
            if self.family == "encodec":
                out = self.model.decode(codes_BKT[None], [None])
            else:
                out = self.model.decode(audio_codes=codes_BKT)
        wave = out.audio_values.float().reshape(-1).numpy()
        return np.clip(np.nan_to_num(wave), -1, 1)


def link_folder(source: Path, target: Path) -> None:
    """Every file of a folder in another, without a second copy where the file system allows it."""
    for file in sorted(p for p in source.rglob("*") if p.is_file() and "/." not in str(p.relative_to(source))):
        link = target / file.relative_to(source)
        link.parent.mkdir(parents=True, exist_ok=True)
        if link.exists():
            continue
        try:
            os.link(file.resolve(), link)
        except OSError:
            shutil.copyfile(file, link)


def fetch(name: str, what: str) -> Path:
    """A folder here, or the local snapshot of a hub id, downloaded where that is needed."""
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"]))
    except Exception as error:  # the hub client raises whatever its transport does
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise ModelError(
            f"there is no {what} '{name}', here or on the Hugging Face hub",
            why=reason,
            fix="check the spelling and the network, or give a folder in Hugging Face form",
        ) from error

"""Whether the Hugging Face hub answers, asked once, and copies of its models."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

WAIT_S = 5.0


def hub_reachable() -> bool:
    """False where nothing answers, not even with an error, or ``HF_HUB_OFFLINE`` is set.

    Without a network, libraries ask the hub six times for each of a model's files, 23 seconds a file, before they
    take the local copy or find that there is none.
    """
    from huggingface_hub import constants

    return not constants.HF_HUB_OFFLINE and _answers(constants.ENDPOINT)


def local_copy(model: str, options: Mapping[str, Any]) -> Path:
    """The folder of a hub model's files in the local cache, fetched first where they are not there.

    Weights in other forms, which many models have beside their safetensors, are left out.

    Args:
        model: hub id.
        options: of ``from_pretrained``.
    """
    from huggingface_hub import snapshot_download

    files = ["model.safetensors", "model-*.safetensors", "*.json", "*.py"]
    offline = bool(options.get("local_files_only"))
    return Path(
        snapshot_download(model, revision=options.get("revision"), local_files_only=offline, allow_patterns=files)
    )


@cache
def _answers(address: str) -> bool:
    from huggingface_hub.utils import get_session

    try:
        get_session().head(address, timeout=WAIT_S)
    except Exception:  # of whichever HTTP library is below; whatever it is, nobody answered
        return False
    return True

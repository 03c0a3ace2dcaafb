"""What a model path means, whether what it names is complete, and a fingerprint of it. Imports nothing heavy."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, cast

from rlhf_core.data.manifest import digests, files_read, truncation
from rlhf_core.models.modality import converted_model, embedded_model
from rlhf_core.models.paths import is_run, model_folder, no_final_model, nothing_there, planned_model
from rlhf_core.types.errors import ModelError


def local_copy(model: str, options: Mapping[str, Any]) -> Path:
    """The folder of a hub model's safetensors in the local cache, fetched first where they are not there."""
    from huggingface_hub import snapshot_download

    files = ["model.safetensors", "model-*.safetensors", "*.json", "*.py"]
    offline = bool(options.get("local_files_only"))
    return Path(
        snapshot_download(model, revision=options.get("revision"), local_files_only=offline, allow_patterns=files)
    )


WAIT_S = 5.0
"""Until the hub counts as out of reach."""


def hub_reachable() -> bool:
    """False where nothing answers or ``HF_HUB_OFFLINE`` is set: libraries would ask for 23 seconds a file."""
    from huggingface_hub import constants

    return not constants.HF_HUB_OFFLINE and _answers(constants.ENDPOINT)


@cache
def _answers(address: str) -> bool:
    from huggingface_hub.utils import get_session

    try:
        get_session().head(address, timeout=WAIT_S)
    except Exception:  # of whichever HTTP library is below; whatever it is, nobody answered
        return False
    return True


TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json")


@dataclass(frozen=True)
class Source:
    """Where to load from."""

    path: str
    """A folder, or a hub id."""
    local: bool = True
    adapter: str | None = None
    revision: str | None = None
    """Of a hub id that an adapter names as its base."""

    @property
    def describe(self) -> str:
        """For error messages."""
        return self.adapter or self.path


def resolve_model(path: str) -> Source:
    """Find out what ``path`` is (see :data:`rlhf_core.models.paths.FORMS`), and check a local one for completeness.

    Raises:
        ModelError: a file or folder that does not exist or lacks something; the missing file is named.
    """
    path = model_folder(path)
    folder = Path(path).expanduser()
    if path == "pocket" or not folder.exists():
        embedded = embedded_model(path)
        if embedded is not None:
            return Source(str(check_folder(Path(embedded))))
    if path.endswith(".gguf"):
        return Source(str(check_folder(converted_model(folder))))
    if folder.is_dir():
        if is_run(folder):
            raise no_final_model(folder)
        if (folder / "adapter_config.json").is_file() and not any(folder.glob("model*.safetensors")):
            return _adapter(folder)
        check_folder(folder)
        return Source(str(folder))
    if folder.is_file():
        raise ModelError(
            f"'{path}' is a file; a model is a folder, a .gguf file or a hub id",
            fix=f"name its folder: {folder.parent}",
        )
    if path.startswith(("/", ".", "~")) or path.count("/") > 1:
        raise nothing_there(path)
    return Source(path, local=False)


def _adapter(folder: Path) -> Source:
    """An adapter and its base: what the plan of its run says, otherwise what the adapter itself does."""
    planned = planned_model(folder)
    if planned:
        base, revision = str(planned.get("path") or ""), planned.get("revision")
    else:
        try:
            settings = json.loads((folder / "adapter_config.json").read_text())
            base, revision = str(settings.get("base_model_name_or_path") or ""), settings.get("revision")
        except (OSError, ValueError, AttributeError) as error:
            raise ModelError(f"'{folder / 'adapter_config.json'}' cannot be read", why=str(error)) from error
    if not base:
        raise ModelError(
            f"adapter '{folder}' does not say which model it was trained on",
            fix="set base_model_name_or_path in its adapter_config.json",
        )
    if not (folder / "adapter_model.safetensors").is_file():
        raise _incomplete(folder, "adapter_model.safetensors", "finish the download or the save")
    try:
        source = resolve_model(base)
    except ModelError as error:
        raise ModelError(
            f"the model '{base}', which adapter '{folder}' was trained on, cannot be found", why=str(error)
        ) from error
    return replace(source, adapter=str(folder), revision=revision)


def check_folder(folder: Path) -> Path:
    """Return the folder if it holds a whole model."""
    have = {p.name for p in folder.iterdir()}
    if "config.json" not in have:
        ggufs = sorted(n for n in have if n.endswith(".gguf"))
        inner = next((folder / n for n in ("final", "model", "adapter") if (folder / n).is_dir()), None)
        hint = f"did you mean '{inner}'?" if inner else "name the folder that holds config.json"
        hint = f"it holds {ggufs[0]}: name that file itself" if ggufs else hint
        raise _incomplete(folder, "config.json", hint)
    for file in sorted(folder.glob("*.safetensors")):
        if cut := truncation(file):
            raise ModelError(
                f"'{file}' is cut short or damaged", why=cut, where=str(folder), fix="copy or download it again"
            )
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        shards = set(json.loads(index.read_text())["weight_map"].values())
        for shard in sorted(shards - have):
            raise _incomplete(folder, shard, "the index names it; finish the download")
    elif "model.safetensors" not in have:
        fix = "finish the download or the save"
        if have & {"pytorch_model.bin", "pytorch_model.bin.index.json"}:
            fix = "pytorch_model.bin is pickle, which is not loaded; convert it once with transformers: "
            fix += "from_pretrained(...).save_pretrained(...)"
        raise _incomplete(folder, "model.safetensors", fix)
    if not have.intersection(TOKENIZER_FILES):
        fix = "save the tokenizer next to the weights: tokenizer.save_pretrained(folder)"
        raise _incomplete(folder, "tokenizer.json", fix)
    return folder


def model_paths(settings: Mapping[str, Any] | Sequence[Any]) -> Iterator[str]:
    """Every ``path`` among settings, at any depth, such as that of a judge's model or of a composite reward's part."""
    rows = settings.items() if isinstance(settings, Mapping) else enumerate(settings)
    for key, value in rows:
        if key == "path" and isinstance(value, str) and value:
            yield value
        elif isinstance(value, Mapping | list | tuple):
            yield from model_paths(cast("Mapping[str, Any] | Sequence[Any]", value))


def weights_digest(path: str) -> str:
    """Hash of every file of a local model, an ensemble's members and trunk included, so that other weights under the
    same name are noticed; "" for a hub id or ``pocket``.
    """
    root = Path(model_folder(path)).expanduser()
    files = files_read(root) if root.is_dir() else [root] if root.is_file() else []
    names = [file.relative_to(root) if file != root else file.name for file in files]
    text = "".join(f"{name} {digest}\n" for name, digest in zip(names, digests(files)))
    return hashlib.sha256(text.encode()).hexdigest()[:16] if files else ""


def _incomplete(folder: Path, missing: str, fix: str) -> ModelError:
    return ModelError(f"model folder '{folder}' has no {missing}", where=str(folder), fix=fix)


SHAPE = ("model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
"""Keys of ``config.json`` in which a fine-tuned model does not differ from what it was made of."""
EMBEDDED = ("pocket", "pocket-tools")
"""Models of the core for which algorithms have recipes."""


def embedded_of(path: str, names: Collection[str] = EMBEDDED) -> str | None:
    """The embedded model that a path names, or whose shape and vocabulary a local model has; None for others."""
    if path in names:
        return path
    return next((name for name in EMBEDDED if name in names and _same_shape_and_vocabulary(path, name)), None)


def _same_shape_and_vocabulary(path: str, name: str) -> bool:
    try:
        source, shipped = resolve_model(path), Path(resolve_model(name).path)
        folder = Path(source.path)
        if not source.local or _shape(folder) != _shape(shipped):
            return False
        ours, theirs = (json.loads((f / "tokenizer.json").read_text())["model"]["vocab"] for f in (folder, shipped))
        return ours == theirs
    except (ModelError, OSError, ValueError, KeyError, TypeError):
        return False


def _shape(folder: Path) -> dict[str, Any]:
    config = json.loads((folder / "config.json").read_text())
    return {key: config.get(key) for key in SHAPE}

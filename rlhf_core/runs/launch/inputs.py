"""What a run reads when it starts, by digest: it goes on with the same, or not at all."""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel

from rlhf_core.config.run import RunConfig
from rlhf_core.data.manifest import digests, files_read
from rlhf_core.models.modality import embedded_model
from rlhf_core.models.paths import model_folder
from rlhf_core.models.sources import WAIT_S, hub_reachable, resolve_model
from rlhf_core.plugins.component import Config, updated
from rlhf_core.types.errors import ModelError, RunDirError, bullets

log = logging.getLogger("rlhf")
PATH_SETTINGS = re.compile(
    r"(.+_)?(path|paths|also|model|files?|folder|corpus|reference|encoder|codec|checkpoint|whisper)"
)
"""Settings that name a path or a hub id; what others say is a path only if it has a slash or a dot, and is there."""
HUB_ID = re.compile(r"[\w-][\w.-]*/[\w.-]+")
COMMITTED = "commit "
COMMIT = re.compile("[0-9a-f]{40}")
MEDIA = re.compile(rb'[",]([^",\\\n]+\.(?:wav|flac|mp3|ogg|opus|m4a|png|jpe?g|webp|gif|mp4))[",\r\n]')
"""Sounds and pictures that rows name; they lie beside the file of rows."""
LOADED_BESIDE = re.compile(r"(tokenizer|special_tokens|added_tokens|chat_template|vocab|merges|modality).*")
ANNOUNCED_BYTES, MOST_LISTED = 4 * 10**9, 200
"""Bytes from which a line says that files are read; files of a folder that are recorded one by one."""


class Read(NamedTuple):
    """Files that a run reads."""

    name: str
    path: Path | None
    """The folder that they lie in, or the only file; None for a hub id."""
    files: list[Path]


def inputs(config: RunConfig, run_dir: Path, say: Callable[[str], None]) -> dict[str, str]:
    """Path as the settings have it, or file below it -> digest; hub id -> commit, where it can be told.

    Args:
        config: every setting is looked at, but for those that its class lists in ``not_inputs``.
        run_dir: what lies in it is the run's own.
        say: is told if much has to be read.
    """
    own, record = run_dir.absolute(), dict[str, str]()
    reads = {read.name: read for key, text in _texts(config) for read in _named(key, text)}
    for read in reads.values():
        read.files[:] = [file for file in read.files if own not in file.absolute().parents]
    size = sum(file.stat().st_size for file in {file for read in reads.values() for file in read.files})
    if size > ANNOUNCED_BYTES:
        say(f"reading {size / 1e9:.0f} GB of models and data once, to know them again when the run goes on")
    for name, path, files in reads.values():
        if path is None:
            record |= {name: f"{COMMITTED}{commit}"} if (commit := commit_of(name)) else {}
            continue
        names = [name if file == path else f"{name}/{os.path.relpath(file, path)}" for file in files]
        rows = dict(zip(names, digests(files), strict=True))
        many = {name: hashlib.sha256("".join(f"{n} {rows[n]}\n" for n in names).encode()).hexdigest()}
        record |= rows if len(files) <= MOST_LISTED else many
    return record


def check_inputs(then: Mapping[str, str], config: RunConfig, run_dir: Path, say: Callable[[str], None]) -> None:
    """Refuse to go on with other models or data than the run started with.

    Raises:
        RunDirError: names what changed.
    """
    if not then:
        log.warning("'%s' has no record of what it read when it started: nobody looked whether it changed", run_dir)
        return
    now = inputs(config, run_dir, say)
    unasked = {name for name, digest in {**then, **now}.items() if COMMITTED in digest} - then.keys() & now.keys()
    rows = [
        f"{name} {'is not there' if name not in now else 'was added' if name not in then else 'is not what it was'}"
        for name in sorted({*then, *now})
        if then.get(name) != now.get(name) and name not in unasked
    ]
    if rows:
        raise RunDirError(
            f"what the run read when it started has changed since:{bullets(rows)}",
            where=str(run_dir),
            why="a resumed run continues with the same models and data, exactly",
            fix="put them back, or start a new run from the model of a checkpoint with another --run-dir",
        )


def pinned(config: RunConfig) -> RunConfig:
    """The run with the commits of hub models and data sets instead of branches: a resumed run keeps them."""

    def commit(part: Config) -> dict[str, str]:
        path, fields = getattr(part, "path", None), type(part).model_fields
        if "revision" not in fields or not isinstance(path, str) or not _is_hub_id(path):
            return {}
        revision = commit_of(path, getattr(part, "revision", None), "model" if "dtype" in fields else "dataset")
        return {} if revision is None else {"revision": revision}

    return updated(config, commit)


def commit_of(name: str, revision: str | None = None, kind: str = "model") -> str | None:
    """The commit that a hub id means now, or of its local copy where nobody asks the hub; None where it has none."""
    from huggingface_hub import HfApi, snapshot_download

    if revision is not None and COMMIT.fullmatch(revision):
        return revision
    try:
        if hub_reachable():
            return HfApi().repo_info(name, revision=revision, repo_type=kind, timeout=WAIT_S).sha
        return Path(snapshot_download(name, revision=revision, repo_type=kind, local_files_only=True)).name
    except Exception as error:  # whatever loads it says what is wrong
        log.info("the commit of '%s' is not known: %s", name, error)
        return None


def _texts(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """(Name of the setting, text) of everything that may name a file."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _texts(part, key)
    elif isinstance(value, (BaseModel, Mapping)):
        skipped = {"name", *getattr(value, "not_inputs", ())}
        if COMMIT.fullmatch(str(getattr(value, "revision", ""))) and _is_hub_id(str(getattr(value, "path", ""))):
            skipped.add("path")  # it stays that commit, whatever becomes of the branch
        for name, part in value.items() if isinstance(value, Mapping) else value:
            if name not in skipped:
                yield from _texts(part, str(name))


def _named(key: str, text: str) -> Iterator[Read]:
    """What a setting names, if it names a path or a hub id."""
    is_path_setting = PATH_SETTINGS.fullmatch(key) is not None
    if not text or len(text) > 1000 or {*text} & {"\n", "\0"} or not (is_path_setting or {*text} & {*"/.\\"}):
        return
    path = Path(model_folder(text)).expanduser()
    if path.is_file():
        yield Read(text, path, [path])
        if path.suffix in (".jsonl", ".json", ".csv"):
            beside = {path.parent / Path(os.fsdecode(name)).expanduser() for name in MEDIA.findall(path.read_bytes())}
            yield Read(f"{text}, its sounds and pictures", path.parent, sorted(filter(Path.is_file, beside)))
    elif path.is_dir():
        yield Read(text, path, files_read(path))
        if (path / "adapter_config.json").is_file():
            yield from _base_of(text, path)
    elif is_path_setting and "/" not in text and (embedded := embedded_model(text)) is not None:
        yield Read(text, Path(embedded), files_read(Path(embedded)))
    elif is_path_setting and _is_hub_id(text):
        yield Read(text, None, [])


def _base_of(name: str, adapter: Path) -> Iterator[Read]:
    """What an adapter was trained on, and the tokenizer that may lie beside it."""
    try:
        source = resolve_model(str(adapter))
    except ModelError:  # whatever loads it says what is wrong
        return
    if source.adapter is None:
        return
    path = Path(source.path)
    files = files_read(path) if path.is_dir() else [path]
    yield Read(f"{name}, its base", path, files) if source.local else Read(source.path, None, [])
    beside = [file for file in adapter.absolute().parent.iterdir() if LOADED_BESIDE.fullmatch(file.name)]
    yield Read(f"{name}, beside it", adapter.absolute().parent, sorted(beside))


def _is_hub_id(path: str) -> bool:
    return HUB_ID.fullmatch(path) is not None and not Path(path).exists()

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
from rlhf_core.models.paths import model_place
from rlhf_core.models.sources import WAIT_S, hub_reachable, resolve_model
from rlhf_core.plugins.component import Config, updated
from rlhf_core.types.errors import ModelError, RunDirError

log = logging.getLogger("rlhf")
PLACES = re.compile(r"(.+_)?(path|paths|also|model|files?|folder|corpus|reference|encoder|codec|checkpoint|whisper)")
"""Settings that name a path or a hub id; what others say is a path only if it has a slash or a dot, and is there."""
HUB_ID = re.compile(r"[\w-][\w.-]*/[\w.-]+")
COMMITTED = "commit "
COMMIT = re.compile("[0-9a-f]{40}")
MEDIA = re.compile(rb'[",]([^",\\\n]+\.(?:wav|flac|mp3|ogg|opus|m4a|png|jpe?g|webp|gif|mp4))[",\r\n]')
"""Sounds and pictures that rows name; they lie beside the file of rows."""
LOADED_BESIDE = re.compile(r"(tokenizer|special_tokens|added_tokens|chat_template|vocab|merges|modality).*")
SPOKEN_OF, LISTED, SHOWN = 4 * 10**9, 200, 8
"""Bytes that are worth a line; files of a folder that are recorded one by one; changes that are named."""


class Read(NamedTuple):
    """Files that a run reads."""

    name: str
    place: Path | None
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
    found = {read.name: read for key, text in _texts(config) for read in _named(key, text)}
    for read in found.values():
        read.files[:] = [file for file in read.files if own not in file.absolute().parents]
    size = sum(file.stat().st_size for file in {file for read in found.values() for file in read.files})
    if size > SPOKEN_OF:
        say(f"reading {size / 1e9:.0f} GB of models and data once, to know them again when the run goes on")
    for name, place, files in found.values():
        if place is None:
            record |= {name: f"{COMMITTED}{commit}"} if (commit := commit_of(name)) else {}
            continue
        names = [name if file == place else f"{name}/{os.path.relpath(file, place)}" for file in files]
        rows = dict(zip(names, digests(files), strict=True))
        many = {name: hashlib.sha256("".join(f"{n} {rows[n]}\n" for n in names).encode()).hexdigest()}
        record |= rows if len(files) <= LISTED else many
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
        more = [f"and {len(rows) - SHOWN} more"] if len(rows) > SHOWN else []
        raise RunDirError(
            "what the run read when it started has changed since:\n  - " + "\n  - ".join([*rows[:SHOWN], *more]),
            where=str(run_dir),
            why="a resumed run continues with the same models and data, exactly",
            fix="put them back, or start a new run from the model of a checkpoint with another --run-dir",
        )


def pinned(config: RunConfig) -> RunConfig:
    """The run with the commits of hub models and data sets in the place of branches: a resumed run keeps them."""

    def commit(part: Config) -> dict[str, str]:
        path, fields = getattr(part, "path", None), type(part).model_fields
        if "revision" not in fields or not isinstance(path, str) or not _is_hub_id(path):
            return {}
        found = commit_of(path, getattr(part, "revision", None), "model" if "dtype" in fields else "dataset")
        return {} if found is None else {"revision": found}

    return updated(config, commit)


def commit_of(name: str, revision: str | None = None, kind: str = "model") -> str | None:
    """The commit that a hub id means now, or of its local copy where nobody asks the hub; None where it has none."""
    from huggingface_hub import HfApi, constants

    if revision is not None and COMMIT.fullmatch(revision):
        return revision
    if hub_reachable():
        try:
            return HfApi().repo_info(name, revision=revision, repo_type=kind, timeout=WAIT_S).sha
        except Exception as error:  # whatever loads it says what is wrong
            log.info("the commit of '%s' is not known: %s", name, error)
            return None
    branch = Path(constants.HF_HUB_CACHE, f"{kind}s--{name.replace('/', '--')}", "refs", revision or "main")
    return branch.read_text().strip() if branch.is_file() else None


def _texts(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """(Name of the setting, text) of everything that may name a file."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _texts(part, key)
    elif isinstance(value, (BaseModel, Mapping)):
        skipped = {"name", *getattr(value, "not_inputs", ())}
        for name, part in value.items() if isinstance(value, Mapping) else value:
            if name not in skipped:
                yield from _texts(part, str(name))


def _named(key: str, text: str) -> Iterator[Read]:
    """What a setting names, if it names a path or a hub id."""
    is_place = PLACES.fullmatch(key) is not None
    if not text or len(text) > 1000 or {*text} & {"\n", "\0"} or not (is_place or {*text} & {*"/.\\"}):
        return
    place = Path(model_place(text)).expanduser()
    if place.is_file():
        yield Read(text, place, [place])
        if place.suffix in (".jsonl", ".json", ".csv"):
            beside = {place.parent / Path(os.fsdecode(name)).expanduser() for name in MEDIA.findall(place.read_bytes())}
            yield Read(f"{text}, its sounds and pictures", place.parent, sorted(filter(Path.is_file, beside)))
    elif place.is_dir():
        yield Read(text, place, files_read(place))
        if (place / "adapter_config.json").is_file():
            yield from _base_of(text, place)
    elif is_place and "/" not in text and (embedded := embedded_model(text)) is not None:
        yield Read(text, Path(embedded), files_read(Path(embedded)))
    elif is_place and _is_hub_id(text):
        yield Read(text, None, [])


def _base_of(name: str, adapter: Path) -> Iterator[Read]:
    """What an adapter was trained on, and the tokenizer that may lie beside it."""
    try:
        source = resolve_model(str(adapter))
    except ModelError:  # whatever loads it says what is wrong
        return
    if source.adapter is None:
        return
    place = Path(source.place, source.gguf or "")
    files = files_read(place) if place.is_dir() else [place]
    yield Read(f"{name}, its base", place, files) if source.local else Read(source.place, None, [])
    beside = [file for file in adapter.absolute().parent.iterdir() if LOADED_BESIDE.fullmatch(file.name)]
    yield Read(f"{name}, beside it", adapter.absolute().parent, sorted(beside))


def _is_hub_id(path: str) -> bool:
    return HUB_ID.fullmatch(path) is not None and not Path(path).exists()

"""What commands that score completions share: which reward, which samples, where the result goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlhf_core.config.base import ComponentConfig
    from rlhf_core.registry import Registry
    from rlhf_core.types import Sample


def check_output(output: Path | None) -> None:
    """Refuse a file that cannot be written, before anything is computed for it.

    Raises:
        ConfigError: it is a folder.
        RunDirError: its folder cannot be written.
    """
    from rlhf_core.errors import ConfigError
    from rlhf_core.runs.run_dir import check_writable

    if output is not None:
        check_writable(output)
        if output.is_dir():
            raise ConfigError(f"--output {output} is a folder", fix=f"name a file: {output / 'out.jsonl'}")


def chosen_reward(registry: Registry, folder: str | None, name: str | None, settings: Sequence[str]) -> ComponentConfig:
    """The reward's Config: a folder holding ``ensemble.json`` is an ensemble, any other one reward model.

    Raises:
        ConfigError: neither or both were given, or a setting does not exist.
        PluginError: no such reward.
    """
    from pydantic import ValidationError

    from rlhf_core.config.errors import explain_invalid
    from rlhf_core.config.load import parse_settings
    from rlhf_core.errors import ConfigError

    if (folder is None) == (name is None):
        raise ConfigError("say which reward: either --model or --reward", fix="--model FOLDER, or --reward NAME")
    options: dict[str, Any] = parse_settings(settings)
    if folder is not None:
        name = "ensemble" if (Path(folder).expanduser() / "ensemble.json").is_file() else "bradley_terry"
        options["path"] = folder
    cls = registry.load("reward", str(name))
    if folder is None and "path" in cls.model_fields and not {"path", "pairs"} & set(options):
        raise ConfigError(
            f"reward '{name}' scores with a trained model, and none is named",
            fix="rlhf reward score --model FOLDER; `rlhf train` prints where it keeps a trained ensemble",
        )
    try:
        reward_name = registry.find("reward", str(name)).name
        return cls.model_validate({**options, "name": reward_name}, context={"registry": registry})
    except ValidationError as error:
        raise explain_invalid(error, cls, where=f"reward '{name}'") from error


def read_samples(file: str) -> tuple[list[Mapping[str, Any]], list[Sample]]:
    """Rows of a file, and the same as samples.

    Raises:
        DatasetError: missing or empty file, or a row without prompt or completion (named with its line).
    """
    from rlhf_core.data.files import read_rows
    from rlhf_core.data.schema import RawRow, RowReader

    rows, places = read_rows(file)
    reader = RowReader(Path(file).name, {}, mapped=False)
    records = [RawRow(row, i, f"{file}, {place}") for i, (row, place) in enumerate(zip(rows, places))]
    return rows, [_sample(reader, record) for record in records]


def _sample(reader: Any, record: Any) -> Sample:
    from rlhf_core.data.conversations import read_demonstration
    from rlhf_core.data.schema import UnusableRow
    from rlhf_core.errors import DatasetError
    from rlhf_core.types import Prompt, Sample

    completion = reader.get(record, "completion", "response")
    try:
        plain = isinstance(completion, str)
        prompt, text = (reader.prompt(record), completion) if plain else read_demonstration(reader, record)
    except UnusableRow as error:
        raise DatasetError(str(error), where=record.where, fix="each row needs a prompt and a completion") from error
    name = str(record.row.get("id", f"row {record.number + 1}"))
    source = str(record.row.get("source", reader.label))
    meta, _ = reader.rest(record, "completion", "response")
    return Sample(Prompt(name, prompt, reader.answer(record, None), source, meta), text)

"""`rlhf push`. Nothing heavy is imported before it is called."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click

CARD = "README.md"
NO_CARD = f"there is no {CARD}: the hub shows an empty page"
LARGEST_TEXT = 1_000_000
"""Bytes of a file that is looked through for paths; a tokenizer's vocabulary is larger."""


class Upload(NamedTuple):
    """What goes where."""

    folder: Path
    repository: str
    files: list[Path]

    @property
    def size(self) -> int:
        return sum(file.stat().st_size for file in self.files)


@click.command()
@click.argument("model", metavar="MODEL")
@click.option("--to", "repository", required=True, metavar="ORG/NAME", help="Repository on the hub.")
@click.option(
    "--public", is_flag=True, help="A new repository is public, and one that is there may be; default: private only."
)
@click.option("--message", default="Upload from rlhf", show_default=True, metavar="TEXT", help="Of the commit.")
@click.option("--dry-run", is_flag=True, help="Show files, sizes and the card; no network, no token.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def push(model: str, repository: str, public: bool, message: str, dry_run: bool, as_json: bool) -> None:
    """Put a model on the Hugging Face hub: a run, a checkpoint or a folder, with its card.

    \b
    rlhf push runs/x --to org/name --dry-run
    rlhf push runs/x --to org/name
    """
    from rlhf_core.cli import emit_json

    upload = checked(model, repository)
    facts: dict[str, Any] = {
        "repository": repository,
        "private": not public,
        "folder": str(upload.folder),
        "files": {str(f.relative_to(upload.folder)): f.stat().st_size for f in upload.files},
        "bytes": upload.size,
        "names_this_machine": list(local_paths(upload)),
    }
    if dry_run:
        card = upload.folder / CARD
        text = card.read_text(encoding="utf-8") if card.is_file() else None
        emit_json({**facts, "card": text}) if as_json else show(facts, text)
        return
    for line in facts["names_this_machine"]:
        click.echo(f"warning: {line}", err=True)
    if not (upload.folder / CARD).is_file():
        click.echo(f"warning: {NO_CARD}", err=True)
    url = send(upload, private=not public, message=message)
    emit_json({**facts, "url": url}) if as_json else click.echo(f"pushed: {url}")


def checked(model: str, repository: str) -> Upload:
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    from rlhf_core.config import ConfigError
    from rlhf_core.data import verify_files
    from rlhf_core.models import ModelError, resolve_model

    try:
        validate_repo_id(repository)
    except HFValidationError as error:
        raise ConfigError(
            f"--to {repository!r} is not a name of a repository", why=str(error), fix="--to org/name"
        ) from (error)
    if repository.count("/") != 1:
        raise ConfigError(f"--to {repository!r} names no organisation or user", fix=f"--to org/{repository}")
    source = resolve_model(model)
    if not source.local or Path(model).is_file():
        raise ModelError(
            f"'{model}' is not a folder here", fix="give a run, a checkpoint, or a folder in Hugging Face form"
        )
    folder = Path(source.adapter or source.path)
    verify_files(folder)
    files = sorted(p for p in folder.rglob("*") if p.is_file() and not _hidden(p.relative_to(folder)))
    return Upload(folder, repository, files)


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def local_paths(upload: Upload) -> Iterator[str]:
    """What the text files would tell of the folders of this machine, and of whose they are."""
    folders = dict.fromkeys(str(folder) for folder in (Path.home(), Path.cwd(), upload.folder.absolute().parent))
    for file in upload.files:
        if file.suffix not in (".json", ".md", ".yaml", ".jinja", ".txt") or file.stat().st_size > LARGEST_TEXT:
            continue
        text = file.read_text(encoding="utf-8", errors="replace")
        for folder in folders:
            if len(folder) > 1 and (match := re.search(re.escape(folder) + r"[^\s\"'`,]*", text)):
                yield f"{file.relative_to(upload.folder)} names {match[0]}"
                break


def show(facts: dict[str, Any], card: str | None) -> None:
    from rlhf_core.cli import table

    table(("file", "bytes"), facts["files"].items())
    kind = "private" if facts["private"] else "public"
    for line in facts["names_this_machine"]:
        click.echo(f"warning: {line}")
    click.echo(f"\n{facts['bytes']} bytes to {facts['repository']} ({kind}). Nothing was sent.\n")
    click.echo(card if card is not None else NO_CARD)


def send(upload: Upload, *, private: bool, message: str) -> str:
    from huggingface_hub import HfApi, constants, get_token

    from rlhf_core.config import ConfigError, RlhfError

    if constants.HF_HUB_OFFLINE:
        raise ConfigError("HF_HUB_OFFLINE is set", why="pushing needs the hub", fix="unset it, or use --dry-run")
    token = get_token()
    if not token:
        raise ConfigError(
            "there is no token for the hub",
            why="neither HF_TOKEN nor a login of `hf auth login` is there",
            fix="set HF_TOKEN to a token that may write, or use --dry-run",
        )
    api = HfApi(token=token)
    try:
        api.create_repo(upload.repository, private=private, exist_ok=True)
        is_private = bool(api.repo_info(upload.repository).private)
        if private and not is_private:
            raise ConfigError(
                f"'{upload.repository}' is there, and public: what is pushed can be seen by everyone",
                fix="--public if it may be, or the name of another repository",
            )
        api.upload_folder(
            repo_id=upload.repository,
            folder_path=upload.folder,
            commit_message=message,
            allow_patterns=[f.relative_to(upload.folder).as_posix() for f in upload.files],
        )
    except ConfigError:
        raise
    except Exception as error:  # as many kinds as there are ways to fail on a network
        text = str(error).replace(token, "***").strip().splitlines() or [""]
        raise RlhfError(
            f"'{upload.repository}' was not pushed",
            where=constants.ENDPOINT,
            why=f"{type(error).__name__}: {text[0]}",
            fix="check the name, that the token may write there, and the network; the same command goes on",
        ) from error
    if is_private and not private:
        click.echo(f"'{upload.repository}' was there, and stays private; its settings on the hub change that", err=True)
    return f"{constants.ENDPOINT}/{upload.repository}"

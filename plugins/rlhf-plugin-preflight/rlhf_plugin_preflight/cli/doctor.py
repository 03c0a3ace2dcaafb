"""`rlhf doctor`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import click

from rlhf_core.plugins.entry_points import disabled_distributions, settings_path

if TYPE_CHECKING:
    from pathlib import Path

    from packaging.requirements import Requirement

MIN_FREE_GB = 1.0


class Finding(NamedTuple):
    """One thing looked at. ``state``: ok, absent (optional), warning or broken."""

    what: str
    state: str
    detail: str
    fix: str = ""


@click.command()
@click.option("--device", type=click.Choice(["cpu", "cuda"]), help="Compare all that runs there with the plain way.")
@click.option("--model", help="With --device: the model that is tried.  [default: pocket]")
@click.option("--ranks", type=click.IntRange(1), help="With --device: processes; default: one a card, 2 on the CPU.")
@click.option("--set", "settings", multiple=True, help="With --device: a rollout engine to try: rollout.name=NAME, ...")
@click.option("--write", type=click.Path(dir_okay=False), help="With --device: a file to attach to a bug report.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def doctor(
    device: str | None,
    model: str | None,
    ranks: int | None,
    settings: tuple[str, ...],
    write: str | None,
    as_json: bool,
) -> None:
    """Check versions, devices, plugins, hooks, disk space and caches. Exit code 1 if something is broken.

    With --device: run forwards, native engine, checkpoint and strategies there, and compare with the plain way; with
    --set rollout.name=vllm --set rollout.python=PYTHON, weight sync and logprobs of that engine, too.

    \b
    rlhf doctor
    rlhf doctor --device cpu
    rlhf doctor --device cuda --model ./my-model --write doctor.json
    """
    from rlhf_core.cli import emit_json

    if device is not None:
        if others := [setting for setting in settings if not setting.startswith("rollout.")]:
            raise click.UsageError(f"--set {others[0]}: only settings of a rollout engine, rollout.NAME=VALUE")
        raise SystemExit(_compare(device, model or "pocket", ranks, settings, write, as_json))
    for option, value in (("--model", model), ("--ranks", ranks), ("--set", settings), ("--write", write)):
        if value:
            raise click.UsageError(f"{option} needs --device cpu or --device cuda")
    rows = list(findings())
    broken = sum(row.state == "broken" for row in rows)
    if as_json:
        emit_json({"ok": not broken, "checks": [row._asdict() for row in rows]})
    else:
        for row in rows:
            click.echo(f"{row.state:<8} {row.what:<32} {row.detail}".rstrip())
            if row.fix:
                click.echo(f"{'':<8} fix: {row.fix}")
        click.echo(f"\n{broken} broken" if broken else "\neverything needed is in order")
    raise SystemExit(1 if broken else 0)


def _compare(
    device: str, model: str, ranks: int | None, rollout: Sequence[str], write: str | None, as_json: bool
) -> int:
    import json
    from pathlib import Path

    from rlhf_core.cli import emit_json
    from rlhf_core.data import write_text
    from rlhf_plugin_preflight.device.check import check_device
    from rlhf_plugin_preflight.device.report import Comparison, Report

    def show(row: Comparison) -> None:
        if not as_json:
            click.echo(row.line())

    def keep(report: Report) -> None:
        if write is not None:
            write_text(Path(write), json.dumps(report.as_json(), indent=2) + "\n")

    if write is not None:
        _check_file(Path(write))
    report = check_device(device, model, ranks, rollout, show, keep)
    if as_json:
        emit_json(report.as_json())
    else:
        verdict = (
            "all that ran agrees"
            if report.agrees
            else "something differs or failed: please report it, with --write FILE"
        )
        click.echo(f"\n{report.device}, {report.model}: {verdict} ({report.seconds:.0f} s)")
    return 0 if report.agrees else 1


def _check_file(path: Path) -> None:
    """Refuse a file that cannot be written before minutes of work."""
    import os

    from rlhf_core.config import ConfigError

    if not path.parent.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ConfigError(f"--write {path}: cannot be written", fix="name a file in a folder that exists")


def findings() -> Iterator[Finding]:
    """Look at everything; a check that fails itself is a finding too."""
    for check in (libraries, devices, embedded_models, plugins, abilities, hooks, disk, writable):
        yield from _guarded(check)


def _guarded(check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    try:
        yield from check()
    except (Exception, SystemExit) as error:
        yield Finding(check.__name__.replace("_", " "), "broken", f"{type(error).__name__}: {error}")


def libraries() -> Iterator[Finding]:
    """Python, and what rlhf-core requires."""
    from importlib import metadata

    from packaging.requirements import Requirement

    from rlhf_core.config.plan import library_versions

    versions = library_versions()
    yield Finding("python", "ok", versions["python"])
    yield Finding("rlhf-core", "ok", versions["rlhf-core"])
    wanted = [Requirement(line) for line in metadata.requires("rlhf-core") or ()]
    needed = [r for r in wanted if r.marker is None or r.marker.evaluate({"extra": ""})]
    yield from (_library(need) for need in sorted(needed, key=lambda r: r.name))


def _library(need: Requirement) -> Finding:
    from importlib import metadata

    try:
        have = metadata.version(need.name)
    except metadata.PackageNotFoundError:
        return Finding(need.name, "broken", "not installed", f"pip install '{need}'")
    if need.specifier.contains(have, prereleases=True):
        return Finding(need.name, "ok", have)
    return Finding(need.name, "broken", f"{have}, but rlhf-core needs {need.specifier}", f"pip install '{need}'")


def devices() -> Iterator[Finding]:
    """CPU threads and GPUs as torch sees them."""
    import os

    import torch

    yield Finding("cpu", "ok", f"{os.cpu_count()} cores, torch uses {torch.get_num_threads()} threads")
    if not torch.cuda.is_available():
        yield Finding("gpu", "absent", "torch sees none; everything runs on the CPU")
    for i in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(i)
        memory = f"{free / 2**30:.0f} of {total / 2**30:.0f} GiB free"
        yield Finding(f"gpu {i}", "ok", f"{torch.cuda.get_device_name(i)}, {memory}")


def embedded_models() -> Iterator[Finding]:
    """The models that come with the core and with plugins."""
    from rlhf_core.config import RlhfError
    from rlhf_core.models import resolve_model
    from rlhf_core.models.modality import embedded_names

    for name in embedded_names():
        try:
            yield Finding(f"model {name}", "ok", resolve_model(name).path)
        except RlhfError as error:
            yield Finding(f"model {name}", "broken", error.what, error.fix)


def plugins() -> Iterator[Finding]:
    """Every component imports, and no name is claimed twice."""
    from collections import Counter

    from rlhf_core.config import Registry
    from rlhf_plugin_preflight.plugin_check import check_commands, check_components, claimed_twice

    registry, context = Registry(), click.get_current_context(silent=True)
    commands = check_commands(context.find_root().command) if context is not None else ()
    good: Counter[str] = Counter()
    for row in (*check_components(registry), *commands):
        if row.error is None:
            good[f"{row.distribution} {row.version}"] += 1
        else:
            yield Finding(f"{row.kind} {row.name}", "broken", row.error.what, row.error.fix)
    for name, count in sorted(good.items()):
        yield Finding(name, "ok", f"{count} components load")
    for kind, name, spellings in claimed_twice(registry.entries()):
        owners = " or ".join(spellings)
        yield Finding(f"{kind} {name}", "warning", f"claimed by {len(spellings)} distributions", f"write {owners}")
    for name in sorted(registry.disabled):
        yield Finding(name, "absent", "disabled", f"rlhf plugins enable {name}")


def abilities() -> Iterator[Finding]:
    """What plugins find out about this machine (``ComponentConfig.diagnose``); each finding once."""
    from rlhf_core.config import Registry, RlhfError
    from rlhf_core.plugins.component_calls import component_errors

    registry = Registry()
    findings: dict[tuple[str, str, str, str], None] = {}
    for entry in registry.entries():
        try:
            with component_errors(f"{entry.kind} '{entry.name}' ({entry.distribution} {entry.version})", "diagnose()"):
                report = getattr(registry.load(entry.kind, entry.qualified), "diagnose", str)()
            row = (entry.distribution, "ok", report, "")
        except RlhfError as error:
            row = (entry.distribution, "warning", f"{error.what}: {error.why}", error.fix)
        if row[2]:
            findings[row] = None
    yield from (Finding(*row) for row in findings)


def hooks() -> Iterator[Finding]:
    """Every hook plugin imports and spells its hooks right."""
    from rlhf_core.config import RlhfError
    from rlhf_core.plugins.hooks import load_hooks

    try:
        names = [n for n, _ in load_hooks(disabled=disabled_distributions(), strict=True).manager.list_name_plugin()]
        yield Finding("hooks", "ok", ", ".join(names) or "none installed")
    except RlhfError as error:
        yield Finding("hooks", "broken", error.what, error.fix)


def disk() -> Iterator[Finding]:
    """Room for runs in the current folder."""
    import shutil
    from pathlib import Path

    free = shutil.disk_usage(Path.cwd()).free / 2**30
    low = free < MIN_FREE_GB
    yield Finding(
        "disk space here",
        "warning" if low else "ok",
        f"{free:.1f} GiB free in {Path.cwd()}",
        "checkpoints may not fit; choose another --run-dir" if low else "",
    )


def writable() -> Iterator[Finding]:
    """The caches and the settings folder can be written."""
    from rlhf_core.data import cache_folder

    yield _writable("cache folder", cache_folder(), "RLHF_CACHE")
    yield _writable("settings folder", settings_path().parent, "RLHF_HOME")


def _writable(what: str, path: Path, variable: str) -> Finding:
    from rlhf_core.cli import check_output
    from rlhf_core.config import UserError

    try:
        check_output(path, folder=True)
    except UserError as error:
        reason = error.what.rsplit(": ", 1)[-1]
        return Finding(what, "broken", f"{path}: {reason}", f"set ${variable} to a folder that can be written")
    return Finding(what, "ok", f"{path} (${variable})")

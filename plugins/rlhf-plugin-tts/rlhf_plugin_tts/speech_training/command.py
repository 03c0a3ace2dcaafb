"""`rlhf tts train`: train a speech policy, measure it before and after, and write the page."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from rlhf_core.cli import emit_json
from rlhf_core.config import ConfigError
from rlhf_core.data import write_json, write_text


@click.command(context_settings={"show_default": True})
@click.option("--model", default="pocket-voice", metavar="M", help="Speech policy to begin with.")
@click.option("--run-dir", type=click.Path(path_type=Path), default=Path("runs/speech"))
@click.option("--algo", type=click.Choice(["iterative_dpo", "grpo"]), default="iterative_dpo")
@click.option("--reward", metavar="NAME", help="Default: DNSMOS and the right phones in equal parts, with guards.")
@click.option("--iterations", type=click.IntRange(1), default=3, help="Of 480 clips each.")
@click.option(
    "--buffer",
    type=click.Choice(["fresh", "rolling2", "full"]),
    default="fresh",
    help="Pairs that an iteration learns from: its own, those of two iterations, or all.",
)
@click.option("--random-labels", is_flag=True, help="A control: which clip of a pair is the better one is drawn.")
@click.option("--early-stop", is_flag=True, help="End when an evaluation on validation sentences brings no gain.")
@click.option("--set", "settings", multiple=True, metavar="a.b=c", help="Any setting of the training. Repeatable.")
@click.option("--count", type=click.IntRange(2, 40), default=40, help="Sentences of the report.")
@click.option("--jobs", type=click.IntRange(1), metavar="N", help="Processes that score; default: one for each core.")
@click.option("--seed", type=click.IntRange(0, 2**64 - 1), default=0)
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def train(run_dir: Path, as_json: bool, **options: Any) -> None:
    """Train a speech policy on thirty sentences by its own clips, and measure what it gained.

    Sampling, scoring and updates are those of `rlhf train` (the configuration is written beside the run). Then both
    voices speak forty sentences that nothing was trained or tuned on: word errors, DistillMOS (where it is installed),
    DNSMOS, with 95 % bootstrap intervals over sentences, at the temperature of training. The same command goes on
    where it was stopped.

    \b
    rlhf tts train
    rlhf tts train --random-labels --run-dir runs/control
    rlhf tts train --algo grpo --run-dir runs/grpo
    """
    from rlhf_plugin_tts.speech_data.compare import measure, print_table
    from rlhf_plugin_tts.validate_cli import select

    begun = time.monotonic()
    names = scorers()
    select(names, (), "", options["seed"])
    jobs = options["jobs"] or os.cpu_count() or 1
    trained = run(run_dir, configuration(options, jobs))
    shared = {"names": names, "settings": (), "seed": options["seed"], "count": options["count"], "n": 1, "jobs": jobs}
    voices = {"before": options["model"], "description": "", "max_tokens": 480, "temperature": 1.0}
    result = measure(str(run_dir), {**shared, **voices})
    result["options"] = {k: v for k, v in options.items() if k != "jobs"}
    if trained:  # times of a part alone would be read as those of the whole
        result |= {"minutes": (time.monotonic() - begun) / 60, "processor_seconds": processor_seconds()}
    elif (run_dir / "speech.json").is_file():
        speech = json.loads((run_dir / "speech.json").read_text())
        result |= {name: speech[name] for name in ("minutes", "processor_seconds") if name in speech}
    write_json(run_dir / "speech.json", result)
    if as_json:
        emit_json(result)
        return
    print_table(result)
    if "distillmos" not in names:
        click.echo("DistillMOS was left out: pip install --no-deps distillmos")
    spent = f"{result['minutes']:.1f} minutes; " if trained else ""
    click.echo(f"{spent}the page with players: {run_dir / 'report.html'}")


def processor_seconds() -> float:
    """Of this process and of all that it started and waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def scorers() -> tuple[str, ...]:
    """What the report is made with: DistillMOS only where it is installed."""
    from rlhf_plugin_tts.speech_data.compare import REWARDS

    return tuple(name for name in REWARDS if name != "distillmos" or importlib.util.find_spec("distillmos"))


def configuration(options: Mapping[str, Any], jobs: int) -> dict[str, Any]:
    from rlhf_core.config import merge_settings, parse_settings
    from rlhf_plugin_tts.speech_training import recipe

    if options["random_labels"] and options["reward"]:
        raise ConfigError("--random-labels has no use for --reward: nothing is scored", fix="leave one of them out")
    if options["algo"] == "grpo" and options["buffer"] != "fresh":
        raise ConfigError("grpo learns from each clip once and keeps no pairs", fix="leave --buffer out")
    trainer = recipe.trainer(options["algo"], options["iterations"], options["buffer"])
    reward = {"name": options["reward"]} if options["reward"] else recipe.composite()
    reward = {"name": "random"} if options["random_labels"] else reward
    config = {
        "model": {"path": options["model"]},
        "dataset": {"name": "speech", "descriptions": True},
        "reward": reward,
        # the control's generator is a state, which no worker process keeps
        "trainer": {**trainer, "reward_workers": 0 if options["random_labels"] else jobs},
        "seed": options["seed"],
        **({"monitors": [{"name": "no_gain"}]} if options["early_stop"] else {}),
    }
    return merge_settings(config, parse_settings(options["settings"]))


def run(folder: Path, config: Mapping[str, Any]) -> bool:
    """Train, go on with a training, or find it done, by `rlhf train` in its own process; True if all was done now."""
    import yaml

    file, text = folder.with_name(f"{folder.name}.yaml"), yaml.safe_dump(dict(config), sort_keys=False)
    before = file.read_text() if file.is_file() else None
    if folder.exists() and before != text:
        raise ConfigError(f"'{folder}' is there already, of other settings", fix="give another --run-dir")
    if (folder / "summary.json").is_file():
        return False
    folder.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, text)
    begun = (folder / "plan.json").is_file()
    words = ["--resume", folder] if begun else ["--config", file, "--run-dir", folder]
    command = [sys.executable, "-m", "rlhf_core.cli.main", "train", *map(str, words)]
    if code := subprocess.run(command, check=False).returncode:
        raise SystemExit(code)
    return not begun

"""The model card of a run: ``final/README.md`` as the Hugging Face hub reads it, from plan and summary alone."""

from __future__ import annotations

import json
import logging
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from rlhf_core.data import write_text
from rlhf_core.hooks import RunEnd, hookimpl
from rlhf_core.runs import StoredRun

log = logging.getLogger("rlhf")
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
ABSOLUTE = re.compile(r"(~/|/[^/\s]+/|[A-Za-z]:\\)[^/\s]")
CREDENTIALS = re.compile(r"://[^/\s@]+@")
CARD = "README.md"
MOST_METRICS = 40


@hookimpl
def rlhf_run_closed(event: RunEnd) -> None:
    """Write the card of a run that has ended with a final model; it is not part of the model's manifest."""
    final = event.run_dir / "final"
    if not final.is_dir() or not (event.run_dir / "summary.json").is_file():
        return
    try:
        write_text(final / CARD, model_card(final, StoredRun.find(str(event.run_dir))))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        log.warning("'%s' gets no model card: %s: %s", final, type(error).__name__, error)


def model_card(folder: Path, run: StoredRun) -> str:
    front = yaml.safe_dump(front_matter(folder, run), sort_keys=False, allow_unicode=True, width=10_000)
    sections = [_about, _load, _data, _recipe, _metrics, _use, _reproduce, _versions]
    plan = replace(run.plan, config=shortened(run.plan.config), rows={short(k): v for k, v in run.plan.rows.items()})
    public = replace(run, plan=plan, summary=run.summary or {})
    body = "\n\n".join(section(folder, run if section is _reproduce else public) for section in sections)
    return "".join(map(_visible, f"---\n{front}---\n\n{body}\n"))


def _visible(character: str) -> str:
    """A character of a card's text, by its code where it acts on a terminal or on the order of letters."""
    acts = unicodedata.category(character) in ("Cc", "Cf", "Cs") and character not in "\n\t\u200c\u200d\u00ad"
    return f"U+{ord(character):04X}" if acts else character


def front_matter(folder: Path, run: StoredRun) -> dict[str, Any]:
    """What the hub reads of a card. Only what is a hub id is named as one."""
    scores = _scores(folder)
    base, datasets = base_on_hub(str(run.plan.config["model"]["path"])), _hub_datasets(run)
    algorithm = " ".join(
        str(run.plan.config["trainer"]["name"]).split()
    )  # on one line, so that none of it ends the head
    tags = ["rlhf", algorithm, *(["reward-model"] if scores else [])]
    tags += ["lora"] if run.plan.config["model"].get("lora") else []
    return {
        "library_name": "transformers",
        "license": "unknown",
        "pipeline_tag": "text-classification" if scores else "text-generation",
        **({"base_model": base} if base else {}),
        **({"datasets": datasets} if datasets else {}),
        "tags": tags,
    }


def shortened(value: Any) -> Any:
    """A configuration as others may see it: no folder of this machine (see :func:`short`)."""
    if isinstance(value, Mapping):
        return {key: shortened(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [shortened(one) for one in value]
    return short(value) if isinstance(value, str) else value


def short(text: str) -> str:
    """An absolute path by its end, user and password of an address left out; any other text as it is.

    Example:
        >>> short("/srv/ada/secret/sft/final"), short("/srv/ada/train.jsonl"), short("data/train.jsonl")
        ('.../sft/final', '.../train.jsonl', 'data/train.jsonl')
    """
    if ABSOLUTE.match(text) and "\n" not in text:
        *above, name = re.split(r"[\\/]", text.rstrip("\\/"))
        inner = name in ("final", "model", "adapter", "ensemble") or name.startswith("step-")
        return "/".join(["...", *(above[-1:] if inner and above[-1:] != [""] else []), name])
    return CREDENTIALS.sub("://***@", text)


def base_on_hub(path: str) -> str | None:
    """The hub id that a model was made of, through the runs that made it; None if it came from no hub."""
    for _ in range(20):
        local = Path(path).expanduser()
        if not local.exists():
            return path if HUB_ID.fullmatch(path) else None
        plans = [folder / "plan.json" for folder in local.absolute().parents[:3]]
        plan = next((file for file in plans if file.is_file()), None)
        if plan is None:
            return None
        path = str(json.loads(plan.read_text())["config"]["model"]["path"])
    return None


def unfiltered(source: Mapping[str, Any]) -> Mapping[str, Any]:
    """The options of the data set inside row filters."""
    return unfiltered(source["of"]) if isinstance(source.get("of"), Mapping) else source


def _hub_datasets(run: StoredRun) -> list[str]:
    paths = [
        str(unfiltered(s["source"]).get("path") or "") for s in run.plan.config.get("dataset", {}).get("sources", ())
    ]
    return [path for path in dict.fromkeys(paths) if HUB_ID.fullmatch(path) and not Path(path).exists()]


def _scores(folder: Path) -> bool:
    try:
        kinds = json.loads((folder / "config.json").read_text()).get("architectures") or []
    except (OSError, ValueError, AttributeError):
        return False
    return any(str(kind).endswith("ForSequenceClassification") for kind in kinds)


def inline(value: Any) -> str:
    """A text of any origin as code inside a line: no line break, mark or HTML of it acts."""
    return "`" + " ".join(str(value).replace("`", "'").replace("|", "/").split())[:200] + "`"


def fenced(text: str, language: str) -> str:
    """A block of code that no line of the text ends."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def _about(folder: Path, run: StoredRun) -> str:
    summary = run.summary or {}
    config = run.plan.config
    what = "reward model" if _scores(folder) else "language model"
    reward = config.get("reward")
    by = f" Its reward was {inline(reward['name'])}." if isinstance(reward, Mapping) else ""
    return (
        f"# {inline(config['trainer']['name'])} of {inline(config['model']['path'])}\n\n"
        f"A {what} that was trained with {inline(config['trainer']['name'])} from {inline(config['model']['path'])} "
        f"for {summary.get('steps', '?')} steps; the run is {summary.get('status', 'unfinished')}.{by}"
    )


def _load(folder: Path, run: StoredRun) -> str:
    kind = "AutoModelForSequenceClassification" if _scores(folder) else "AutoModelForCausalLM"
    code = f"from transformers import AutoTokenizer, {kind}\n\n"
    code += f"model = {kind}.from_pretrained(FOLDER)\ntokenizer = AutoTokenizer.from_pretrained(FOLDER)"
    text = f"## Use\n\n{fenced(code, 'python')}"
    if not (folder / "adapter").is_dir():
        return text
    base = run.plan.config["model"]["path"]
    code = "from peft import AutoPeftModelForCausalLM\n\n"
    code += 'model = AutoPeftModelForCausalLM.from_pretrained(FOLDER + "/adapter")'
    if base == "pocket":
        code = "from peft import PeftModel\nfrom rlhf_plugin_pocket import weights_path\n"
        code += "from transformers import AutoModelForCausalLM\n\n"
        code += "base = AutoModelForCausalLM.from_pretrained(weights_path())  # peft does not know `pocket`\n"
        code += 'model = PeftModel.from_pretrained(base, FOLDER + "/adapter")'
    return f"{text}\n\nThe weights are merged; the LoRA adapter for {inline(base)} alone:\n\n{fenced(code, 'python')}"


def _data(folder: Path, run: StoredRun) -> str:
    summary = run.summary or {}
    rows: list[str] = []
    for source in run.plan.config.get("dataset", {}).get("sources", ()):
        facts = unfiltered(source["source"])
        rows.append("- " + " ".join(inline(facts[k]) for k in ("name", "subset", "path", "split") if facts.get(k)))
    sizes = [
        f"- {inline(name)}: {', '.join(f'{n} {what}' for what, n in s.items())}" for name, s in run.plan.rows.items()
    ]
    dropped = {k: v for k, v in (summary.get("dropped") or {}).items() if v}
    counted = ", ".join(f"{inline(k)} {v}" for k, v in dropped.items())
    left_out = [f"- left out or counted: {counted}"] if dropped else []
    return "## Data\n\n" + "\n".join([*rows, *sizes, *left_out] or ["What it was trained on is not recorded."])


def _recipe(folder: Path, run: StoredRun) -> str:
    config = yaml.safe_dump(dict(run.plan.config), sort_keys=False, allow_unicode=True)
    longer = "".join(
        f"\n\nExtended after step {r['at_step']}: {inline(shortened(r['changes']))}." for r in run.plan.extensions
    )
    cut = " Where a path begins with `...`, the folders above it are left out." if ".../" in config else ""
    return f"## Recipe\n\nEvery setting of the run, as `config.yaml`:{cut}\n\n{fenced(config, 'yaml')}{longer}"


def _metrics(folder: Path, run: StoredRun) -> str:
    summary = run.summary or {}
    rows = [(key, "", _number(value)) for key, value in summary.items() if _number(value)]
    before, after = (summary.get(f"evaluation_{when}") or {} for when in ("before", "after"))
    rows += [(key, _number(before.get(key)), _number(value)) for key, value in after.items() if _number(value)]
    table = "\n".join(f"| {inline(key)} | {old} | {new} |" for key, old, new in rows[:MOST_METRICS])
    more = f"\n\n{len(rows) - MOST_METRICS} more are in the run's summary." if len(rows) > MOST_METRICS else ""
    head = "| | before | after |\n|---|---|---|\n"
    about = "Measured by the run itself; on held-out rows where the name begins with `eval/`."
    return f"## Metrics\n\n{about}\n\n{head}{table}{more}"


def _number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, int | float) and not isinstance(value, bool) else ""


def _use(folder: Path, run: StoredRun) -> str:
    scores = _scores(folder)
    use = (
        "To score completions of prompts like those above; scores compare completions of one prompt."
        if scores
        else "Research on the task above. Nobody has stated any other use."
    )
    limits = [
        "Nothing is known of its behaviour on other data, languages or tasks: the table is all that was measured.",
        "A trained reward may have been exploited: look at completions (`rlhf report RUN`), not at the reward alone.",
        "It has the limits, biases and licence of the model and the data that it was made of; check both.",
    ]
    return "## Intended use and limits\n\n" + use + "\n\n" + "\n".join(f"- {text}" for text in limits)


def _reproduce(folder: Path, run: StoredRun) -> str:
    ranks = f" --nproc {run.plan.world_size}" if run.plan.world_size > 1 else ""
    text = f"## How to reproduce\n\n{fenced(f'rlhf train --config config.yaml{ranks}', '')}"
    objects = [slot for slot in ("reward", "loss", "dataset") if '"reproducible_from_file": false' in _json(run, slot)]
    if objects:
        names = " and ".join(objects)
        text += f"\n\nNot from this file alone: {names} was given as a Python object, of which the plan keeps a digest."
    inexact = [fact for facts in run.plan.conditions.values() for fact in facts.values() if "not exactly" in fact]
    bits = f"{'; '.join(inexact)}." if inexact else "the same machine and versions give the same bits."
    return f"{text}\n\nSeed {run.plan.seed}, plan {inline(run.plan.digest)}; {bits}"


def _json(run: StoredRun, slot: str) -> str:
    return json.dumps(run.plan.config.get(slot), default=str)


def _versions(folder: Path, run: StoredRun) -> str:
    libraries = ", ".join(f"{name} {version}" for name, version in run.plan.versions.items())
    parts = {f"{row['distribution']} {row['version']}" for row in run.plan.components}
    return f"## Versions\n\n{libraries}\n\nComponents of: {', '.join(sorted(parts))}"

"""A chat template is code of the model's folder: a process of its own tries it first."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from rlhf_core.types.errors import ModelError

CPU_S, WALL_S = 5, 60
"""The processor time, and the time, that the trial of a template may take."""
TRIAL = """
import json, sys
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
class Generation(Extension):
    tags = {"generation"}
    def parse(self, parser):
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(["name:endgeneration"], drop_needle=True)).set_lineno(line)
def refuse(text):
    raise ValueError(text)
job = json.load(sys.stdin)
try:
    import resource
    resource.setrlimit(resource.RLIMIT_CPU, (job["seconds"], job["seconds"] + 1))
    resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))
except (ImportError, ValueError):
    pass
env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
env.filters["tojson"] = lambda value, **options: json.dumps(value)
env.globals.update(raise_exception=refuse, strftime_now=lambda form: "1 January 2026")
for probe in job["probes"]:
    try:
        env.from_string(job["template"]).render(**probe)
    except MemoryError:
        sys.exit(3)
    except Exception:
        pass
"""
"""What a template raises does not matter here: the caller that renders with it reports it."""


def check_ends(template: Any, where: str) -> None:
    """Refuse a chat template (or several by name) that takes seconds or a gigabyte for a few turns.

    Raises:
        ModelError: names it.
    """
    for text in template.values() if isinstance(template, Mapping) else [template]:
        if text and (why := _problem(str(text))):
            raise endless(where, f"{why} for a few turns")


def endless(model: str, limit: str, turn: str = "") -> ModelError:
    """The error for a template that takes more than ``limit``."""
    return ModelError(
        f"the chat template of '{model}' does not end in time",
        where=turn and f"a conversation that ends with {turn[:60]!r}",
        why=f"it takes more than {limit}; its loops may be nested",
        fix="correct chat_template.jinja or tokenizer_config.json, or --set model.chat_template=FILE",
    )


@lru_cache(maxsize=64)
def _problem(template: str) -> str:
    """What a template takes more than; "" if nothing."""
    turns = [{"role": role, "content": "What is 2 + 3?"} for role in ("user", "assistant") * 4]
    tool = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}
    long_turns = [{**turn, "content": turn["content"] * 200} for turn in turns[:3]]
    words = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<p>", "unk_token": "<u>"}
    probes = [
        {**words, "messages": messages, "tools": tools, "add_generation_prompt": flag}
        for messages in (
            *(turns[:n] for n in (1, 2, 3, 8)),
            [{"role": "system", "content": "x"}, *turns[:3]],
            long_turns,
        )
        for tools in (None, [tool])
        for flag in (True, False)
    ]
    job = json.dumps({"template": template, "probes": probes, "seconds": CPU_S})
    try:
        ended = subprocess.run(
            [sys.executable, "-I", "-c", TRIAL], input=job.encode(), capture_output=True, timeout=WALL_S
        )
    except subprocess.TimeoutExpired:
        return f"{WALL_S} s"
    if ended.returncode == 3:
        return "a gigabyte"
    return f"{CPU_S} s" if ended.returncode < 0 else ""

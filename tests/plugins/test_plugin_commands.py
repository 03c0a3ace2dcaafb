"""Commands that distributions add, beside the core's and below them."""

from __future__ import annotations

import json

import pytest

from .conftest import Fakes

CODE = """
import click

@click.command()
@click.option("--size", default=3)
def weigh(size):
    "Weigh it."
    click.echo(f"weighed {size}")
"""


def test_a_plugin_adds_commands_at_any_depth(fakes: Fakes) -> None:
    fakes.add(
        "acme-scales",
        "[rlhf.command]\nweigh = acme_scales:weigh\nreward.weigh = acme_scales:weigh\nlab.weigh = acme_scales:weigh\n",
        CODE,
    )
    for words in (["weigh"], ["reward", "weigh"], ["lab", "weigh"]):
        out = fakes.rlhf(*words, "--size", "5")
        assert (out.returncode, out.stdout) == (0, "weighed 5\n"), out.stderr
    assert "Weigh it. (acme-scales)" in fakes.rlhf("--help").stdout
    said = fakes.rlhf("reward", "--help").stdout
    assert "Weigh it. (acme-scales)" in said
    assert "score" in said
    out = fakes.rlhf("lab", "wiegh")
    assert out.returncode == 2
    assert "Did you mean 'weigh'?" in out.stderr


def test_a_command_is_imported_only_when_called_and_may_be_switched_off(fakes: Fakes) -> None:
    fakes.add("sick-scales", "[rlhf.command]\nweigh = sick_scales:weigh\n", CODE + "raise OSError('no scales')")
    assert "Weigh it. (sick-scales)" in fakes.rlhf("--help").stdout
    out = fakes.rlhf("weigh")
    assert out.returncode == 2
    assert "sick-scales 1.0" in out.stderr
    assert "no scales" in out.stderr
    assert "Traceback" not in out.stderr
    out = fakes.rlhf("weigh", RLHF_DISABLE_PLUGINS="sick-scales")
    assert "no such command 'weigh'" in out.stderr


def test_the_cores_commands_cannot_be_replaced_and_twins_are_refused(fakes: Fakes) -> None:
    fakes.add(
        "acme-scales",
        "[rlhf.command]\ntrain = acme_scales:weigh\nplugins.list = acme_scales:weigh\nweigh = acme_scales:weigh\n",
        CODE,
    )
    fakes.add("other-scales", "[rlhf.command]\nweigh = other_scales:weigh\n", CODE)
    assert "Train a model" in fakes.rlhf("train", "--help").stdout
    assert "that are installed" in fakes.rlhf("plugins", "list", "--help").stdout
    out = fakes.rlhf("weigh")
    assert out.returncode == 2
    assert "acme-scales 1.0, other-scales 1.0" in out.stderr


@pytest.mark.parametrize(
    ("decorators", "said"),
    [
        ('@click.command(help="Weigh.")\n@click.option("--size", help="Not this.")\n', "Weigh. (acme-scales)"),
        ('@click.group("w", short_help="Short.", help="Long.")\n', "Short. (acme-scales)"),
        ("@click.command\n", "Of the docstring. (acme-scales)"),
    ],
)
def test_help_of_a_plugins_command_is_read_from_its_source(fakes: Fakes, decorators: str, said: str) -> None:
    """Nothing is imported: the module would raise."""
    code = f'import click\n{decorators}def weigh():\n    """Of the docstring. More."""\nraise OSError\n'
    fakes.add("acme-scales", "[rlhf.command]\nreward.weigh = acme_scales:weigh\n", code)
    assert said in fakes.rlhf("reward", "--help").stdout


@pytest.mark.parametrize("code", ["def weigh(:", "from nowhere import weigh"])
def test_a_command_whose_source_does_not_say_is_described_by_its_distribution(fakes: Fakes, code: str) -> None:
    fakes.add("acme-scales", "[rlhf.command]\nreward.weigh = acme_scales:weigh\n", code)
    assert "(acme-scales)" in fakes.rlhf("reward", "--help").stdout


def test_a_group_without_a_text_names_its_commands(fakes: Fakes) -> None:
    fakes.add(
        "acme-scales", "[rlhf.command]\nscales.weigh = acme_scales:weigh\nscales.tare = acme_scales:weigh\n", CODE
    )
    assert "scales     tare, weigh (acme-scales)" in fakes.rlhf("--help").stdout
    assert "tare, weigh (acme-scales)" in fakes.rlhf("scales", "--help").stdout


def test_a_command_or_component_that_a_call_makes_is_described_by_the_last_text_of_the_call(fakes: Fakes) -> None:
    code = 'weigh = made("weigh", "Weigh it. Twice.")\nraise OSError\n'
    fakes.add("acme-scales", "[rlhf.command]\nreward.weigh = acme_scales:weigh\n", code)
    assert "Weigh it. (acme-scales)" in fakes.rlhf("reward", "--help").stdout


def test_a_list_of_one_kind_says_what_each_is(fakes: Fakes) -> None:
    code = 'class Config(Base):\n    """Weighs tokens. And more."""\nraise OSError\n'
    fakes.add("acme-scales", "[rlhf.loss]\nscales = acme_scales:Config\n", code)
    listed = fakes.rlhf("plugins", "list", "--kind", "loss").stdout
    (row,) = [line for line in listed.splitlines() if "acme-scales" in line]
    assert row.endswith("Weighs tokens.")
    assert "--kind KIND" in fakes.rlhf("plugins", "list").stdout


@pytest.mark.parametrize(
    ("value", "code"),
    [
        ("acme_scales", '"""Weighs runs. And more."""\n'),
        ("acme_scales:hook", '"""Weighs runs. And more."""\nhook = Hook()\n'),
        ("acme_scales:Hook", '"""Weighs runs. And more."""\nclass Hook:\n    pass\n'),
        ("acme_scales:Hook", 'class Hook:\n    """Weighs runs. And more."""\n'),
    ],
)
def test_a_hook_is_described_by_its_own_docstring_or_its_modules(fakes: Fakes, value: str, code: str) -> None:
    fakes.add("acme-scales", f"[rlhf]\nscales = {value}\n", f"{code}\nraise OSError\n")
    words = ("plugins", "list", "--kind", "hook")
    (row,) = [line for line in fakes.rlhf(*words).stdout.splitlines() if "acme-scales" in line]
    assert row.endswith("Weighs runs.")
    assert {row["name"]: row["description"] for row in json.loads(fakes.rlhf(*words, "--json").stdout)}[
        "scales"
    ] == "Weighs runs."

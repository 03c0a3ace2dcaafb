"""A component, command or distribution that is not there: the error says what to install; the list says what is."""

from __future__ import annotations

import json
import re

import pytest

from rlhf_core.cli.plugins import LISTED
from rlhf_core.plugins.entry_points import brought_by, scan
from rlhf_core.plugins.registry import KINDS, Registry
from rlhf_core.types.errors import PluginError
from scripts.reference import components

from .conftest import Fakes

SHIPPED = json.loads(components.shipped())
COMPONENTS = [(kind, name) for kind in KINDS for name in SHIPPED.get(kind, {})]


@pytest.mark.parametrize(("kind", "name"), COMPONENTS)
def test_a_component_of_ours_that_is_not_installed_names_its_distribution(kind: str, name: str) -> None:
    for asked in (name, name.upper(), name.replace("_", "-"), f"{SHIPPED[kind][name]}/{name}"):
        with pytest.raises(PluginError) as caught:
            Registry(only_core=True).find(kind, asked)
        assert f"pip install {SHIPPED[kind][name]}" in str(caught.value)


def test_what_the_core_ships_about_our_distributions_is_what_they_declare() -> None:
    for entry in scan():
        if entry.distribution.startswith("rlhf-plugin-") and entry.kind != "hook":
            assert brought_by(entry.kind, entry.name).startswith("rlhf-"), entry
    assert brought_by("trainer", "ppo") == "rlhf-plugin-ppo"
    assert brought_by("trainer", "single") == brought_by("nonsense", "ppo") == ""


def test_the_command_says_it(fakes: Fakes) -> None:
    off = {"RLHF_DISABLE_PLUGINS": "rlhf-plugin-ppo,rlhf-plugin-report,rlhf-plugin-migrate"}
    out = fakes.rlhf("train", "--algo", "ppo", **off)
    assert (out.returncode, "unknown trainer 'ppo'" in out.stderr) == (2, True)
    assert "pip install rlhf-plugin-ppo, or enable it: rlhf plugins enable rlhf-plugin-ppo" in out.stderr
    for words, distribution in ((("report", "RUN"), "report"), (("config", "from-trl", "a.yaml"), "migrate")):
        out = fakes.rlhf(*words, **off)
        assert out.returncode == 2
        assert f"pip install rlhf-plugin-{distribution}" in out.stderr
    assert "did you mean 'grpo'" in fakes.rlhf("train", "--algo", "grpoo").stderr


def test_every_group_that_is_declared_is_listed(fakes: Fakes) -> None:
    declared = {entry.kind for entry in scan() if entry.point.group.partition(".")[0] == "rlhf"}
    assert declared <= set(LISTED)
    assert {"launcher", "model", "model_file", "modality", "tool_format"} <= declared
    everything = fakes.rlhf("plugins", "list").stdout
    for kind in sorted(declared):
        out = fakes.rlhf("plugins", "list", "--kind", kind, "--json")
        assert out.returncode == 0, out.stderr
        rows = json.loads(out.stdout)
        assert {row["kind"] for row in rows} == {kind}
        assert all(re.search(rf"^{kind} +{re.escape(row['name'])} ", everything, re.MULTILINE) for row in rows)


@pytest.mark.parametrize(
    ("name", "why", "fix"),
    [
        ("acme-bare", "declares no entry point", "pyproject.toml"),
        ("acme-off", "it is disabled", "rlhf plugins enable acme-off"),
        ("acme-of", "it is not installed", "acme-off"),
    ],
)
def test_a_check_of_a_distribution_with_nothing_to_check_says_why(fakes: Fakes, name: str, why: str, fix: str) -> None:
    fakes.add("acme-bare", "[console_scripts]\nbare = acme_bare:main\n")
    fakes.add("acme-off", "[rlhf.loss]\noff = acme_off:Config\n")
    out = fakes.rlhf("plugins", "check", name, RLHF_DISABLE_PLUGINS="acme-off")
    assert out.returncode == 2
    assert f"there is nothing to check in '{name}'" in out.stderr
    assert why in out.stderr
    assert fix in out.stderr


@pytest.mark.parametrize("group", ["rlhf.launcher", "rlhf.tool_format", "rlhf.model", "rlhf"])
def test_a_check_of_a_distribution_without_components_shows_what_it_has(fakes: Fakes, group: str) -> None:
    fakes.add("acme-other", f"[{group}]\nx = acme_other{'' if group == 'rlhf' else ':make'}\n", "def make(): ...\n")
    out = fakes.rlhf("plugins", "check", "acme-other")
    assert (out.returncode, out.stdout.split()[:1], "acme-other/x" in out.stdout) == (0, ["ok"], True), out.stderr

"""Every arm of every ablation is a run that could start, in both worlds; verdicts follow from paired differences."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlhf_core.cli.options import open_plugins, resolve_options
from rlhf_core.config import ConfigError
from rlhf_core.plugins.registry import Registry
from rlhf_studies.common.ablation.worlds import WorldAblation
from rlhf_study.ablation.config import AblationConfig, Claim, Settings, interaction, slope
from rlhf_study.ablation.run import Ablation
from rlhf_study.record import claims
from rlhf_study.runs import layered

REGISTRY = Registry(disabled=())
ABLATIONS: list[type[WorldAblation]] = [
    cls for entry in REGISTRY.entries("study") if issubclass(cls := REGISTRY.load("study", entry.name), WorldAblation)
]


@pytest.mark.parametrize(
    ("cls", "world"),
    [(cls, world) for cls in ABLATIONS for world in cls.worlds],
    ids=lambda part: getattr(part, "__name__", part),
)
def test_every_arm_is_a_configuration_of_its_own(cls: type[WorldAblation], world: Any, tmp_path: Path) -> None:
    config, registry = cls(world=world), open_plugins(reports=False)[0]
    found: set[str] = set()
    for arm in config.arms:
        file, settings = tmp_path / "arm.yaml", layered(*config.settings(arm, 0))
        assert {"eval_every", config.length_of(arm)} <= set(settings["trainer"]), (
            "another trainer's name would drop them"
        )
        file.write_text(yaml.safe_dump(settings))
        found.add(resolve_options(registry, (str(file),), [], {}).config.model_dump_json())
    assert len(found) >= len(config.arms)
    assert all(set(claim.terms) <= set(config.arms) for claim in config.claims)


class Two(AblationConfig):
    """Two arms."""

    name: str = "two"
    arms: Mapping[str, Settings] = {"a": {}, "b": {}}
    claims: tuple[Claim, ...] = (Claim("000:1", "a is higher", "a", "b", 1), Claim("000:2", "is a?", "a", "b"))


@pytest.mark.parametrize(
    ("differences", "verdicts"),
    [
        ((0.1, 0.11, 0.09), ["reproduced", "higher"]),
        ((-0.1, -0.11, -0.09), ["contradicted", "lower"]),
        ((0.1, -0.1, 0.05), ["not resolvable here", "no difference found"]),
        ((0.1,), ["not resolvable here", "no difference found"]),
    ],
)
def test_a_verdict_needs_an_interval_on_one_side_of_zero(differences: tuple[float, ...], verdicts: list[str]) -> None:
    def curve(value: float) -> dict[str, Any]:
        return {"eval/reward/mean": [[0, 1], [0.0, 1.0], [0.0, value]]}

    spread = (0.5, -0.3, 0.2)  # of seeds, far larger than the difference: it is paired
    results = {n: {"a": curve(spread[n] + d), "b": curve(spread[n])} for n, d in enumerate(differences)}
    study = Ablation(Two())
    assert [verdict.verdict for verdict in study.verdicts(results)] == verdicts
    assert all(word in study.table(results) for word in verdicts)


def test_differences_are_of_seeds_in_which_every_arm_has_the_metric() -> None:
    def curve(value: float) -> dict[str, Any]:
        return {"eval/reward/mean": [[0], [0.0], [value]]}

    level = (0.0, 5.0, 9.0, 2.0, 4.0)
    results = {n: {"a": curve(of + 0.1 + 0.001 * n), "b": curve(of)} for n, of in enumerate(level)}
    results[0]["a"], results[4]["b"] = {}, {}
    higher, _ = Ablation(Two()).verdicts(results)
    assert (higher.verdict, higher.here.endswith("(3 of 5 seeds)")) == ("reproduced", True), higher.here
    results = {0: {"a": {}, "b": curve(1.0)}, 1: {"a": curve(1.0), "b": {}}}
    assert {found.verdict for found in Ablation(Two()).verdicts(results)} == {"not measured"}


def test_slopes_and_interactions_are_sums_over_arms() -> None:
    class Four(AblationConfig):
        """Two algorithms, two lengths."""

        name: str = "four"
        arms: Mapping[str, Settings] = {f"{kind} {n}": {} for kind in ("dpo", "ppo") for n in (1, 3)}
        claims: tuple[Claim, ...] = (
            Claim("000:1", "dpo gains more", "gain", sign=1, weights=interaction("dpo", "ppo", "3", "1")),
            Claim("000:2", "dpo grows by two a unit", "slope", sign=1, weights=slope({"dpo 1": 1.0, "dpo 3": 3.0})),
        )

    def curve(value: float) -> dict[str, Any]:
        return {"eval/reward/mean": [[0], [0.0], [value]]}

    rows = [{"dpo 1": 1.0, "dpo 3": 5.0 + shift, "ppo 1": 2.0, "ppo 3": 3.0} for shift in (-0.1, 0.0, 0.1)]
    results = {seed: {arm: curve(value) for arm, value in row.items()} for seed, row in enumerate(rows)}
    gain, line = Ablation(Four()).verdicts(results)
    assert (gain.verdict, gain.here.startswith("eval/reward/mean: gain 3 +-")) == ("reproduced", True)
    assert (line.verdict, line.here.startswith("eval/reward/mean: slope 2 +-")) == ("reproduced", True)


def test_a_world_that_a_study_does_not_have_is_refused() -> None:
    with pytest.raises(ConfigError, match="ai_labels has no world 'real'"):
        REGISTRY.config("study", "ai_labels", {"world": "real"})


def test_published_findings_are_in_the_order_of_the_documents() -> None:
    rows = claims({entry.name: entry.point.module for entry in REGISTRY.entries("study")})
    places = [(row.line[:3], int(row.line[4:])) for row in rows]
    assert places == sorted(places)
    assert len(rows) >= 30

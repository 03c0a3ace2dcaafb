"""``component`` on a Config: what is built from it, what is passed, and what a wrong string says."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from rlhf_core.config import ComponentConfig, PluginError
from rlhf_core.data import JsonlConfig
from rlhf_core.plugins.component import arguments
from rlhf_testing import check_config, make_context

HERE = __name__


class Plain:
    def __init__(self, config: Any, clock: Any = None) -> None:
        self.config, self.clock = config, clock

    @classmethod
    def load(cls, config: Any, ctx: Any) -> Plain:
        return cls(config, ctx)


class OptionalContext(Plain):
    def __init__(self, config: Any, ctx: Any = None) -> None:
        super().__init__(config, ctx)


class PlainConfig(ComponentConfig):
    name: str = "plain"
    component: ClassVar[str] = f"{HERE}:Plain"


class OldConfig(ComponentConfig):
    name: str = "old"

    def build(self, ctx: Any) -> Any:
        return "built as before"


class OldWithString(OldConfig):
    component: ClassVar[str] = f"{HERE}:Plain"


class StringWithBuild(PlainConfig):
    def build(self, ctx: Any) -> Any:
        return [super().build(ctx)]


def with_component(value: str) -> ComponentConfig:
    return type("MadeConfig", (PlainConfig,), {"component": value, "__annotations__": {}})()


def test_it_is_called_with_the_config_and_optional_parameters_keep_their_defaults() -> None:
    config = PlainConfig()
    made = config.build(make_context())
    assert type(made) is Plain
    assert (made.config, made.clock) == (config, None)


@pytest.mark.parametrize("value", [f"{HERE}:Plain.load", f"{HERE}:OptionalContext"])
def test_a_second_parameter_that_is_required_or_called_ctx_gets_the_context(value: str) -> None:
    ctx = make_context()
    assert with_component(value).build(ctx).clock is ctx


def test_a_build_of_its_own_still_works_and_the_nearer_of_the_two_counts() -> None:
    ctx = make_context()
    assert OldConfig().build(ctx) == "built as before"
    assert type(OldWithString().build(ctx)) is Plain
    assert type(StringWithBuild().build(ctx)[0]) is Plain


@pytest.mark.parametrize(
    ("value", "cause"),
    [
        ("no_colon", "it is not of the form module:name"),
        ("no_such_module_:Thing", "No module named 'no_such_module_'"),
        (f"{HERE}:Missing", "has no attribute 'Missing'"),
        (f"{HERE}:HERE", "it is a str"),
    ],
)
def test_a_wrong_string_names_class_value_and_cause(value: str, cause: str) -> None:
    with pytest.raises(PluginError) as caught:
        with_component(value).build(make_context())
    for part in ("MadeConfig", repr(value), cause, "component"):
        assert part in str(caught.value)


def test_a_wrong_string_names_the_distribution_and_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib.metadata import version

    monkeypatch.setattr(JsonlConfig, "component", "rlhf_core.data.files:NoSuchSource")
    with pytest.raises(PluginError, match=f"rlhf-core {version('rlhf-core')}".replace(".", r"\.")):
        JsonlConfig(path="x").build(make_context())


def test_neither_string_nor_build() -> None:
    class Empty(ComponentConfig):
        name: str = "empty"

    with pytest.raises(TypeError, match="neither a component string nor a build"):
        Empty().build(make_context())


def test_callables_that_take_more_by_keyword_get_the_config_alone() -> None:
    def keyword_only(config: Any, *, ctx: Any = None) -> None: ...

    config = JsonlConfig(path="x")
    assert arguments(keyword_only, config, make_context()) == (config,)


@pytest.mark.parametrize("value", ["rlhf_core.data.files:NoSuchSource", "rlhf_core.cli.common:quiet_libraries"])
def test_the_kit_refuses_a_string_that_does_not_resolve_or_takes_no_config(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(JsonlConfig, "component", value)
    with pytest.raises(AssertionError, match="the component can be imported"):
        check_config(JsonlConfig(path="x"), "dataset")


class NoSettings:
    """Made without arguments."""


def test_what_takes_nothing_is_called_with_nothing() -> None:
    assert type(with_component(f"{HERE}:NoSettings").build(make_context())) is NoSettings


def test_settings_are_never_left_out_in_silence() -> None:
    class WithSetting(PlainConfig):
        component: ClassVar[str] = f"{HERE}:NoSettings"
        rate: float = 1.0

    with pytest.raises(TypeError):
        WithSetting().build(make_context())

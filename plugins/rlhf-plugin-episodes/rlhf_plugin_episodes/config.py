"""Configurations of environments and tools; what they offer is known before anything is built."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from rlhf_core.config import ComponentConfig, ConfigError, component
from rlhf_core.data import DatasetError, Tool
from rlhf_plugin_episodes.tool_spec import tool_spec

if TYPE_CHECKING:
    from rlhf_core.config import BuildContext
    from rlhf_core.data import Prompt

ToolField = component("tool")


class EnvironmentConfig(ComponentConfig):
    """Base of an environment's Config. It is built in a worker process: the context has a registry, no run config."""

    tool_specs: ClassVar[Sequence[Tool]] = ()
    """What the policy may call; see :func:`tool_spec`."""
    scores: ClassVar[bool] = True
    """It has a score of its own, which is the reward of a run where the user names no other."""
    pure: ClassVar[bool] = False
    """``step`` changes nothing outside of the object, so that a resumed episode may run its steps again. One that is
    not has ``state_dict`` and ``load_state_dict``: its state is kept with every result, and no step is run twice."""
    responds: ClassVar[bool] = False
    """It has ``respond(text)``, which answers turns without calls: a user who talks, a game without tools."""
    companions: ClassVar[Mapping[str, Any]] = {}
    """What goes with it where the user says nothing: slot -> component or settings, like ``{"dataset": "lookup"}``."""
    stateless: ClassVar[bool] = False
    """Each call is answered from its arguments alone: an episode goes on, with a new process, after one was killed."""

    def offered(self) -> Sequence[Tool]:
        return self.tool_specs

    @property
    def secrets(self) -> tuple[str, ...]:
        """Environment variables with keys or tokens that its worker needs, which gets no others of that kind."""
        return ()

    def preflight(self, ctx: BuildContext) -> None:
        """Refuse tools that cannot be offered."""
        check_tools(self.offered(), self.name)

    def check_prompts(self, prompts: Iterable[Prompt], where: Callable[[str], str]) -> None:
        """Refuse prompts that cannot be played here; ``where`` says from which file and line an id is."""


class ToolConfig(ComponentConfig):
    """Base of a tool's Config: one function that the policy may call."""

    description: ClassVar[str] = ""
    """What it does, for the policy."""
    parameters: ClassVar[Mapping[str, Any]] = {}
    """Name -> JSON type or schema; see :func:`tool_spec`."""
    required: ClassVar[Sequence[str] | None] = None
    """Parameters that a call must have; None means all."""
    stateless: ClassVar[bool] = True
    """Each call is answered from its arguments alone. One that is not has ``reset()``, called before each episode."""

    @property
    def secrets(self) -> tuple[str, ...]:
        """Environment variables with keys or tokens that it needs."""
        return ()

    def spec(self) -> Tool:
        return tool_spec(self.name.rpartition("/")[2], self.description, self.required, **self.parameters)


class CalculatorConfig(ToolConfig):
    """Evaluates arithmetic: + - * / // % ** and brackets."""

    name: str = "calculator"
    component: ClassVar[str] = "rlhf_plugin_episodes.calculator:Calculator"
    description: ClassVar[str] = "Evaluates an arithmetic expression."
    parameters: ClassVar[Mapping[str, Any]] = {
        "expression": {"type": "string", "description": "For example (2 + 3) * 7"}
    }


class ToolsEnvironmentConfig(EnvironmentConfig):
    """Tools by name, and nothing else: the reward judges the last answer."""

    name: str = "tools"
    component: ClassVar[str] = "rlhf_plugin_episodes.tools:ToolsEnvironment.from_config"
    scores: ClassVar[bool] = False
    pure: ClassVar[bool] = True
    tools: tuple[ToolField, ...] = (CalculatorConfig(),)  # pyright: ignore[reportInvalidTypeForm]
    """The tools, for example ``[calculator]``."""
    files: tuple[str, ...] = ()
    """Python files whose public functions are tools too; imported only where calls are answered."""

    @property
    def stateless(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return all(tool.stateless for tool in self.tools)

    @property
    def secrets(self) -> tuple[str, ...]:
        return tuple(secret for tool in self.tools for secret in tool.secrets)

    def offered(self) -> Sequence[Tool]:
        from rlhf_plugin_episodes.functions import specs_in

        return (*(tool.spec() for tool in self.tools), *(spec for file in self.files for spec in specs_in(file)))

    def preflight(self, ctx: BuildContext) -> None:
        """Refuse prompts that offer tools other than these; a dry run reads no rows that must be downloaded."""
        super().preflight(ctx)
        if not self.offered():
            raise ConfigError(f"environment '{self.name}' has no tools", fix="--set 'environment.tools=[calculator]'")
        config = ctx.config
        samples = hasattr(getattr(config, "trainer", None), "rollout_batch_size")
        if not samples or (ctx.dry_run and any(s.source.downloads for s in config.dataset.sources)):
            return
        from rlhf_core.data import Datasets

        datasets = Datasets.of(ctx)
        self.check_prompts([p for split in ("train", "heldout") for p in datasets.prompts(split)], datasets.where)

    def check_prompts(self, prompts: Iterable[Prompt], where: Callable[[str], str]) -> None:
        """Refuse a prompt that offers other tools; the error names the tool and the row."""
        names = {str(tool["function"]["name"]) for tool in self.offered()}
        for prompt in prompts:
            if other := [
                name for name in (str(tool["function"]["name"]) for tool in prompt.tools) if name not in names
            ]:
                raise DatasetError(
                    f"a prompt offers the tool '{other[0]}', which environment '{self.name}' does not have",
                    where=where(prompt.id),
                    why=f"a row's own tools are offered instead of the environment's: {', '.join(sorted(names))}",
                    fix="leave the row's tools out, or give the environment that tool (environment.tools, "
                    "environment.files)",
                )


class EnvironmentRewardConfig(ComponentConfig):
    """Rewards an episode with its environment's own score, and the scores of its turns."""

    name: str = "environment"
    component: ClassVar[str] = "rlhf_plugin_episodes.reward:EnvironmentReward"
    turn_weight: float = 1.0
    """Weight of the sum of the turns' own scores beside the episode's."""


def check_tools(tools: Sequence[Tool], name: str) -> None:
    """Refuse tools without a name or a schema, and two of one name."""
    from jsonschema import Draft202012Validator, SchemaError

    names: list[str] = []
    for tool in tools:
        try:
            function = tool["function"]
            names.append(str(tool["function"]["name"]))
            Draft202012Validator.check_schema(function["parameters"])
        except (KeyError, TypeError) as error:
            raise ConfigError(
                f"a tool of environment '{name}' has no {error}",
                why=f"it is {tool!r:.120}",
                fix='write tool_spec("search", "Finds a fact.", query="string")',
            ) from error
        except SchemaError as error:
            raise ConfigError(
                f"tool '{names[-1]}' of environment '{name}' has parameters that are not a JSON schema",
                why=error.message,
                fix="correct the tool's parameters",
            ) from error
    twice = sorted({n for n in names if names.count(n) > 1})
    if twice:
        raise ConfigError(
            f"environment '{name}' offers two tools called '{twice[0]}'",
            why="a call could mean either",
            fix="give every tool a name of its own",
        )

"""Base classes of every configuration."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from rlhf_core.plugins.component_calls import StageTimeout
from rlhf_core.plugins.entry_points import distribution_of
from rlhf_core.plugins.validation import explain_invalid
from rlhf_core.types.errors import ConfigError, PluginError, RlhfError, error_text

if TYPE_CHECKING:
    from rlhf_core.plugins.context import BuildContext
    from rlhf_core.types.rollouts import Prompt


class Config(BaseModel):
    """Frozen pydantic model that refuses unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, protected_namespaces=())

    no_effect: ClassVar[Mapping[str, str]] = {}
    """Settings of related components that would have no effect here -> why; they are refused with that reason."""

    not_inputs: ClassVar[Set[str]] = frozenset()
    """Settings that name files which a run writes, or that may change: others that name one are compared when the run
    goes on."""

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any], where: str = "", registry: Any = None) -> Self:
        """Build from plain values; ``where`` says what they are of, and ``registry`` looks up names of components, if
        any.

        Raises:
            ConfigError: keys or values cannot be used; lists all of them, each with its dotted key.
            RlhfError: the first error of the toolkit's own that was raised inside.
        """
        try:
            return cls.model_validate(dict(settings), context=None if registry is None else {"registry": registry})
        except ValidationError as error:
            raise explain_invalid(error, cls, where=where) from error

    def allow_unsafe(self) -> Self:
        """What ``--unsafe-local-execution`` stands for: the setting of that name, wherever a component has it.

        Raises:
            ConfigError: none has.
        """
        allowed = {"unsafe_local_execution": True}
        changed = updated(self, lambda part: allowed if allowed.keys() <= type(part).model_fields.keys() else {})
        if changed is self:
            raise ConfigError(
                "--unsafe-local-execution has no effect", why="nothing here runs programs", fix="leave it out"
            )
        return changed

    @model_validator(mode="before")
    @classmethod
    def _refuse_without_effect(cls, value: Any) -> Any:
        for key in cls.no_effect.keys() & value.keys() if isinstance(value, dict) else ():
            name = cls.model_fields["name"].default if "name" in cls.model_fields else ""
            owner = f" with '{name}'" if isinstance(name, str) and name else ""
            raise ConfigError(f"{key} has no effect{owner}", why=cls.no_effect[key], fix="leave it out")
        return value

    @model_validator(mode="before")
    @classmethod
    def _keep_section_defaults(cls, value: Any) -> Any:
        """A mapping changes a section's default instead of replacing it: what it leaves out stays as the class says."""
        if not isinstance(value, dict):
            return value
        merged = dict(value)
        for key, given in value.items():
            default = cls.model_fields[key].default if key in cls.model_fields else None
            if isinstance(given, dict) and isinstance(default, Config):
                merged[key] = {**default.model_dump(exclude_unset=True), **given}
        return merged


class ComponentConfig(Config):
    """Configuration of a component: what an entry point names.

    A subclass declares its options as fields and says in :attr:`component` what is built from them. That is imported
    late, so that listing, help, schema and dry run never import torch:

    Example:
        class GSPOConfig(ComponentConfig):
            name: str = "gspo"
            component: ClassVar[str] = "acme_gspo.loss:GSPOLoss"
            clip_range: float = 3e-4
    """

    name: str
    """Which component; the entry point's name."""

    component: ClassVar[str] = ""
    """``module:name`` of a class or function that makes the component. It is called with the configuration,
    ``GSPOLoss(config)``; with ``(config, ctx)`` if its second parameter is required or called ``ctx``; with nothing if
    it takes nothing and there are no settings. ``module:Class.from_config`` names a class method. Where something is
    to be decided, define :meth:`build` instead. If a base class defines ``build`` and a
    subclass sets ``component``, the subclass's is used, and the other way round.

    A class that also has fields made with ``component("judge")`` gives that annotation a name outside the class."""

    consumes: ClassVar[str | None] = None
    """For losses: ``token_advantages``, ``pairs``, ``unpaired`` or ``labels``; matched to the trainer by the plan."""

    recipe: ClassVar[Mapping[str, Any]] = {}
    """For losses: slot -> settings that its paper goes with, such as a reduction or an advantage. They replace the
    trainer's own, and anything the user says replaces them."""

    @classmethod
    def recipe_of(cls, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """For data sets: what goes with the rows that these options (not yet validated) choose, such as stop strings or
        the prompt format. Anything the user says replaces it. Of several data sets' stop strings all are used; another
        setting only where they agree.

        Example:
            {"model": {"prompt_format": "raw"}, "trainer": {"sampling": {"stop": ["</answer>"]}}}
        """
        return {}

    min_group_size: ClassVar[int] = 1
    """For advantages: the fewest completions a prompt needs for the estimate to mean anything."""

    @property
    def least_group_size(self) -> int:
        """:attr:`min_group_size` with these very settings; with 2 or more, constant groups get zeros."""
        return self.min_group_size

    has_critic: ClassVar[bool] = False
    """For advantages: it brings a critic (``CriticAdvantage``)."""

    learns_from_rows: ClassVar[bool] = False
    """For trainers: it learns from rows of a data set, and need not sample."""

    has_workers: ClassVar[bool] = False
    """For rewards: it scores in worker processes of its own."""

    downloads: ClassVar[bool] = True
    """For datasets: reading the rows may need the network, so a dry run does not read them."""

    @classmethod
    def diagnose(cls) -> str:
        """What `rlhf doctor` is to say about this machine, "" for nothing. Quick, and nothing is downloaded.

        Raises:
            UserError: the machine lacks what the component needs; shown as a warning.
        """
        return ""

    def conditions(self) -> Mapping[str, str]:
        """Facts about this machine that decide how the component works on it; kept in plan, trace and summary.

        Raises:
            UserError: the machine lacks what the component needs.
        """
        return {}

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Let a subclass's ``component`` take the place of an inherited ``build``."""
        super().__pydantic_init_subclass__(**kwargs)
        if "component" in vars(cls) and "build" not in vars(cls):
            cls.build = ComponentConfig.build

    def build(self, ctx: BuildContext) -> Any:
        """Return the component. Called once per process, before step 0.

        Raises:
            PluginError: :attr:`component` names nothing that can be imported and called.
        """
        if not self.component:
            raise TypeError(f"{type(self).__name__} has neither a component string nor a build(self, ctx)")
        target = import_component(type(self))
        return target(*arguments(target, self, ctx))

    def preflight(self, ctx: BuildContext) -> None:
        """Check everything that can be checked cheaply (files, columns, ranges) before any expensive work.

        With ``ctx.dry_run`` nothing may be downloaded, trained or written.

        Raises:
            UserError: the input cannot work; says what to change.
        """


def updated(value: Any, update: Callable[[Config], Mapping[str, Any]]) -> Any:
    """``value`` with every Config in it updated by what ``update`` says of it; a Config without a change is itself."""
    if isinstance(value, Config):
        parts: dict[str, Any] = {k: updated(getattr(value, k), update) for k in type(value).model_fields}
        changed = {k: v for k, v in parts.items() if v != getattr(value, k)} | dict(update(value))
        return value.model_copy(update=changed) if changed else value
    if isinstance(value, dict):
        return {k: updated(v, update) for k, v in cast("dict[str, Any]", value).items()}
    if isinstance(value, list | tuple):
        return type(value)(updated(one, update) for one in cast("Sequence[Any]", value))
    return value


def import_component(cls: type[ComponentConfig]) -> Callable[..., Any]:
    """The class or function that ``cls.component`` names."""
    value = cls.component
    module, _, attributes = value.partition(":")
    if not module or not attributes:
        raise _broken(cls, "it is not of the form module:name", "write it as package.module:Class")
    try:
        target: Any = importlib.import_module(module)
        for attribute in attributes.split("."):
            target = getattr(target, attribute)
    except (RlhfError, KeyboardInterrupt, StageTimeout):
        raise
    except BaseException as error:
        raise _broken(cls, error_text(error), "install what is missing, or correct the string") from (error)
    if not callable(target):
        raise _broken(cls, f"it is a {type(target).__name__}", "name a class, or a function that returns the component")
    return target


def arguments(target: Callable[..., Any], config: ComponentConfig, ctx: Any) -> tuple[Any, ...]:
    """Arguments of a component's constructor: none if it takes none and there are no settings; config and context if
    its second parameter is required or is called ``ctx``; otherwise the config.
    """
    try:
        parameters = list(inspect.signature(target).parameters.values())
    except ValueError:  # some classes written in C have no signature
        return (config,)
    if not parameters and set(type(config).model_fields) <= {"name"}:
        return ()
    second = next((p for p in parameters[1:2] if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)), None)
    if second is None or (second.default is not second.empty and second.name != "ctx"):
        return (config,)
    return (config, ctx)


def _broken(cls: type[ComponentConfig], why: str, fix: str) -> PluginError:
    origin = distribution_of(cls.__module__, cls.__qualname__)
    return PluginError(
        f"the component of {cls.__qualname__} cannot be loaded: {cls.component!r}",
        where=f"{origin or cls.__module__}, {cls.__module__}:{cls.__qualname__}.component",
        why=why,
        fix=fix,
    )


class VerifierConfig(ComponentConfig):
    """Base of a verifier's Config. It is built in a worker process: the context has a registry, no run config."""

    needs_answer: ClassVar[bool] = True
    """Whether the verdict compares with ``Prompt.answer``; if so, a dataset without answers is refused."""

    def check_prompt(self, prompt: Prompt) -> str | None:
        """Why no completion of this prompt could be judged (for example a reference answer that does not parse); None
        if it can. Called for every row when the dataset loads, so it must be quick; the error names file and line.
        """
        return None

    @property
    def format_markers(self) -> tuple[str, ...]:
        """Strings that no completion brings unless its prompt asks for them, such as ``<answer>``, and without which
        every verdict is 0. A run whose prompts do not hold them is refused.
        """
        return ()

    @property
    def seconds(self) -> float:
        """The longest that a verdict takes with these settings, by the verifier's own deadlines; 0 if it has none."""
        return 0.0

    @property
    def busy_seconds(self) -> float:
        """The longest that a verdict takes on a machine that is busy with other things; the worker's deadline unless
        the user sets one.
        """
        return self.seconds

    @property
    def secrets(self) -> tuple[str, ...]:
        """Environment variables with keys or tokens that its worker needs, which gets no others of that kind."""
        return ()


Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
HOUR, DAY = 3600.0, 86400.0


class DeadlineSettings(Config):
    """Longest time for each stage, in seconds. What takes longer is taken to hang: the run ends with exit code 1 and
    says which component it was, in which step, and at which line; the last complete checkpoint stays.
    """

    build_s: Seconds = DAY
    """Loading models and data, building components (training an ensemble of reward models included)."""
    rollout_s: Seconds = 4 * HOUR
    """One call of the agent or the rollout engine."""
    reward_s: Seconds = HOUR
    """One call of a reward, of a batch's completions or of one rank's share."""
    update_s: Seconds = DAY
    """One whole step."""
    evaluation_s: Seconds = DAY
    """One evaluation, benchmarks included."""
    checkpoint_s: Seconds = HOUR
    """Writing a checkpoint or the final model."""
    listener_s: Seconds = HOUR
    """One call of a hook, a monitor or a tracker."""
    close_s: Seconds = 600.0
    """Closing one component at the end of the run (a tracker may have to send what it holds)."""

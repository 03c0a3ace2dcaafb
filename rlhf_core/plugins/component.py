"""Base classes of every configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from rlhf_core.plugins.construct import construct
from rlhf_core.plugins.validation import explain_invalid
from rlhf_core.types.errors import ConfigError

if TYPE_CHECKING:
    from rlhf_core.plugins.context import BuildContext


class Config(BaseModel):
    """Frozen pydantic model that refuses unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, protected_namespaces=())

    no_effect: ClassVar[Mapping[str, str]] = {}
    """Settings of related components that would have no effect here -> why; they are refused with that reason."""

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any], where: str = "", registry: Any = None) -> Self:
        """Build from plain values.

        Args:
            settings: by name.
            where: what they are of, for the error.
            registry: where names of components are looked up; None for settings that hold none.

        Raises:
            ConfigError: keys or values cannot be used; lists all of them, each with its dotted key.
            RlhfError: the first error of the toolkit's own that was raised inside.
        """
        try:
            return cls.model_validate(dict(settings), context=None if registry is None else {"registry": registry})
        except ValidationError as error:
            raise explain_invalid(error, cls, where=where) from error

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
    to be decided, define :meth:`build` instead. Of a base class's ``build`` and a subclass's ``component`` the nearer
    counts.

    A class that also has fields made with ``component("judge")`` gives that annotation a name outside the class."""

    consumes: ClassVar[str | None] = None
    """For losses: ``token_advantages``, ``pairs``, ``unpaired`` or ``labels``; matched to the trainer by the plan."""

    recipe: ClassVar[Mapping[str, Any]] = {}
    """For losses: slot -> settings that its paper goes with, such as a reduction or an advantage. They replace the
    trainer's own, and anything the user says replaces them."""

    @classmethod
    def recipe_of(cls, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """For data sets: what goes with the rows that these options choose, such as stop strings or the prompt format.

        Anything the user says replaces it. Of several data sets' stop strings all are used; another setting only where
        they agree.

        Args:
            options: as the user wrote them, not yet validated.

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

        Example:
            {"isolation": "namespaces, seccomp, landlock 7, resource limits"}

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
        return construct(self, ctx)

    def preflight(self, ctx: BuildContext) -> None:
        """Check everything that can be checked cheaply (files, columns, ranges) before any expensive work.

        With ``ctx.dry_run`` nothing may be downloaded, trained or written.

        Raises:
            UserError: the input cannot work; says what to change.
        """

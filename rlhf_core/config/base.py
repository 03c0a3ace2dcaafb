"""Base classes of every configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, ConfigDict, model_validator

if TYPE_CHECKING:
    from rlhf_core.context import BuildContext


class Config(BaseModel):
    """Frozen pydantic model that refuses unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _keep_recipe(cls, value: Any) -> Any:
        """A mapping changes a section's default instead of replacing it: the fields it leaves out stay as vetted."""
        if not isinstance(value, dict):
            return value
        sections = {
            k: cls.model_fields[k].default
            for k, v in value.items()
            if isinstance(v, dict) and k in cls.model_fields and isinstance(cls.model_fields[k].default, Config)
        }
        return {**value, **{k: {**d.model_dump(exclude_unset=True), **value[k]} for k, d in sections.items()}}


class ComponentConfig(Config):
    """Configuration of a component: what an entry point names.

    A subclass declares its options as fields and builds the component late, so that listing,
    help, schema and dry run never import torch:

    Example:
        class GSPOConfig(ComponentConfig):
            name: str = "gspo"
            clip_range: float = 3e-4

            def build(self, ctx):
                from .loss import GSPOLoss
                return GSPOLoss(self)
    """

    name: str
    """Which component; the entry point's name."""

    consumes: ClassVar[str | None] = None
    """For losses: ``token_advantages``, ``pairs``, ``judged`` or ``labels``; matched to the trainer by the plan."""

    recipe: ClassVar[Mapping[str, Any]] = {}
    """For losses: slot -> settings that its paper goes with, such as a reduction or an advantage. They replace the
    trainer's own, and anything the user says replaces them."""

    min_group_size: ClassVar[int] = 1
    """For advantages: the fewest completions a prompt needs for the estimate to mean anything."""

    @property
    def least_group_size(self) -> int:
        """:attr:`min_group_size` with these very settings; with 2 or more, constant groups get zeros."""
        return self.min_group_size

    has_critic: ClassVar[bool] = False
    """For advantages: it brings a critic (``CriticAdvantage``)."""

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

    def build(self, ctx: BuildContext) -> Any:
        """Return the component. Called once per process, before step 0."""
        raise TypeError(f"{type(self).__name__} does not define build(self, ctx)")

    def preflight(self, ctx: BuildContext) -> None:
        """Check everything that can be checked cheaply (files, columns, ranges) before any expensive work.

        With ``ctx.dry_run`` nothing may be downloaded, trained or written.

        Raises:
            UserError: the input cannot work; says what to change.
        """

"""How the kit reports a property that does not hold."""

from __future__ import annotations

from rlhf_core.config import ComponentConfig


def require(holds: bool, config: ComponentConfig, rule: str, seen: str, fix: str = "") -> None:
    """Raise ``AssertionError`` unless ``holds``, naming the component, the ``rule`` (a sentence), what was ``seen``
    instead and the ``fix``."""
    require_of(holds, f"{type(config).__name__} ('{config.name}')", rule, seen, fix)


def require_of(holds: bool, who: str, rule: str, seen: str, fix: str = "") -> None:
    """:func:`require` for what has no configuration; ``who`` names it."""
    if not holds:
        raise AssertionError("\n".join([f"{who}: {rule}", f"  seen: {seen}", *([f"  fix: {fix}"] if fix else [])]))

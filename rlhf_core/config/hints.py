"""What a key of another library is called here, asked of installed distributions when a key is unknown.

Entry-point group ``rlhf.key_hints``: a function of the key, its value, the registry and the chosen components, which
returns a sentence or "", for example ``TRL's beta is trainer.kl.coefficient here``.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_core.config.key_places import KeyPlaces
from rlhf_core.config.layers import as_mapping, plain
from rlhf_core.plugins.kinds import KINDS
from rlhf_core.plugins.registry import Registry

log = logging.getLogger("rlhf.plugins")
GROUP = "rlhf.key_hints"


def keys_in(sentence: str) -> list[str]:
    """Settings that a hint names.

    Example:
        >>> keys_in("TRL's beta is trainer.kl.coefficient here"), keys_in("TRL's use_peft is not needed")
        (['trainer.kl.coefficient'], [])
    """
    return re.findall(r"\bis ([a-z_0-9.]+) here\b", sentence)


class KeyHints:
    """Asks for hints about the keys of one configuration.

    Args:
        registry: knows what is installed.
        settings: the run's, with what the algorithm brings along; labelled or not.
    """

    def __init__(self, registry: Registry, settings: Mapping[str, Any]) -> None:
        self.registry, self.settings = registry, settings
        sections = {slot: as_mapping(slot, settings.get(slot)) for slot in KINDS}
        self.chosen = {
            slot: str(plain(section["name"]))
            for slot, section in sections.items()
            if isinstance(section, Mapping) and "name" in section
        }

    def __call__(self, path: Sequence[str], value: Any) -> str:
        """A sentence for the key at the end of ``path``: its name here, or where such a key belongs; "" for neither."""
        from rlhf_core.plugins.disabled import disabled_distributions
        from rlhf_core.plugins.entry_points import scan

        off, places = set(disabled_distributions()), KeyPlaces(self.registry, self.settings)(path, value)
        for distribution, _, point in scan():
            if point.group != GROUP or distribution in off:
                continue
            try:
                hint = point.load()(path[-1], value, self.registry, self.chosen)
            except Exception as error:  # the unknown key is what the user has to hear of
                log.debug("hints of %s failed: %s: %s", distribution, type(error).__name__, error)
                continue
            if hint and (len(path) > 1 or not places or keys_in(hint)):
                return str(hint)  # one without a key says less than the place of our own key of that name
        return places

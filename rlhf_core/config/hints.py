"""Hints for an unknown key: where a key of that name belongs, and what installed distributions say of it.

Entry-point group ``rlhf.key_hints`` has functions of the key, its value, the registry and the chosen components;
``rlhf.usage_hints`` has functions of click's error, the command line and :class:`KeyHints`. Each returns a text or "",
for example ``TRL's beta is trainer.kl.coefficient here``.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from rlhf_core.config.recipe import chosen_names, plain
from rlhf_core.config.run import RunConfig
from rlhf_core.data.settings import SourceSettings, source_options
from rlhf_core.plugins.registry import KINDS, Registry
from rlhf_core.plugins.validation import sections_of
from rlhf_core.types.errors import UserError

log = logging.getLogger("rlhf.plugins")
GROUP = "rlhf.key_hints"
USAGE_GROUP = "rlhf.usage_hints"
NEAREST = 3
"""Most places that are named."""


def answers(group: str, *question: Any) -> Iterator[str]:
    """What the functions of an entry-point group answer."""
    from rlhf_core.plugins.entry_points import disabled_distributions, entries_of, load_entry

    for entry in entries_of(group, disabled_distributions()):
        try:
            answer = load_entry(entry, f"hints '{entry.name}'", "")(*question)
        except (Exception, SystemExit) as error:  # the error that is explained is what the user has to hear of
            log.debug("hints of %s failed: %s: %s", entry.distribution, type(error).__name__, error)
            continue
        if answer:
            yield str(answer)


class KeyHints:
    """Knows every key that one configuration may have with the components that it chooses, and asks for hints."""

    def __init__(self, registry: Registry, settings: Mapping[str, Any]) -> None:
        self.registry, self.settings = registry, settings
        self.chosen = {slot: str(plain(s["name"])) for slot, s in chosen_names(settings).items() if slot in KINDS}

    def __call__(self, path: Sequence[str], value: Any) -> str:
        """A sentence for the key at the end of ``path``: its name here, or where such a key belongs; "" for neither."""
        known = self.places(path)
        for hint in answers(GROUP, path[-1], value, self.registry, self.chosen):
            if len(path) > 1 or not known or re.search(r"\bis [a-z_0-9.]+ here\b", hint):
                return hint  # one without a key says less than the place of our own key of that name
        return known

    def places(self, path: Sequence[str]) -> str:
        """``"did you mean 'reward.parts'?"`` for a key that belongs elsewhere; "" if none is called so."""
        keys = [key for key in self._keys() if key.rpartition(".")[2] == path[-1]]
        if not keys:
            return ""
        keys = [key for key in keys if key.split(".")[0] == path[0]] or keys
        nearest = sorted(keys, key=lambda key: key.count("."))[:NEAREST]
        return f"did you mean {' or '.join(repr(key) for key in nearest)}?"

    def _keys(self) -> Iterator[str]:
        """Dotted keys, sections before what is in them."""
        yield from _below(RunConfig, "")
        for slot, name in self.chosen.items():
            if slot in RunConfig.model_fields:
                yield from self._of_component(slot, name, slot)
        yield from _below(SourceSettings, "dataset")
        for options in source_options(plain(self.settings.get("dataset"))):
            yield from self._of_component("dataset", str(options.get("name")), "dataset")

    def _of_component(self, kind: str, name: str, prefix: str) -> Iterator[str]:
        try:
            yield from _below(self.registry.load(kind, name), prefix)
        except UserError:  # it is refused elsewhere
            return


def _below(model: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        key = f"{prefix}.{name}" if prefix else name
        if name != "name":
            yield key
        for section in sections_of(field.annotation)[:1]:
            yield from _below(section, key)

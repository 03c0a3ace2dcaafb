"""The kinds of data that `rlhf data generate` makes."""

from __future__ import annotations

from collections.abc import Mapping

from rlhf_plugin_datagen.demonstrations import demonstrations, estimate_demonstrations
from rlhf_plugin_datagen.grades import estimate_grades, grades
from rlhf_plugin_datagen.items import Kind
from rlhf_plugin_datagen.preferences import estimate_preferences, preferences

KINDS: Mapping[str, Kind] = {
    "preferences": Kind(preferences, estimate_preferences),
    "sft": Kind(demonstrations, estimate_demonstrations),
    "grades": Kind(grades, estimate_grades),
}

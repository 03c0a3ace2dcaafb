"""docs/reference/config.md: the keys of a run's YAML."""

from __future__ import annotations

from rlhf_core.config.run import RunConfig
from rlhf_core.data.settings import DatasetSettings, SourceSettings
from rlhf_core.models.config import LoraSettings
from scripts.reference.fields import rows_of, table_of

INTRO = """# Configuration of a run

Defaults of the classes < the algorithm's recipe < YAML files from left to right < short options such as `--reward` <
`--set a.b=c`. `rlhf config show --origin` says where each value came from. An unknown key is refused, with the nearest
known one. A component is a name (`reward: ensemble`) or a mapping (`reward: {name: ensemble, ...}`) with the settings
listed in [components](components.md).
"""


def page() -> str:
    sections = {
        "The run": RunConfig,
        "`model.lora`": LoraSettings,
        "`dataset`": DatasetSettings,
        "One of `dataset.sources`": SourceSettings,
    }
    tables = ((title, table_of(rows_of(model, "", None))) for title, model in sections.items())
    return INTRO + "".join(f"\n## {title}\n\n{table}" for title, table in tables)

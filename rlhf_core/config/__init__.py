"""Configuration: base classes, loading, errors, the registry. Defaults < YAML files left to right < ``--set a.b=c``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlhf_core._surface import surface

if TYPE_CHECKING:
    from rlhf_core.config.load import load_yaml as load_yaml
    from rlhf_core.config.load import merge_settings as merge_settings
    from rlhf_core.config.load import parse_settings as parse_settings
    from rlhf_core.config.load import read_yaml as read_yaml
    from rlhf_core.config.run import RunConfig as RunConfig
    from rlhf_core.plugins.component import ComponentConfig as ComponentConfig
    from rlhf_core.plugins.component import Config as Config
    from rlhf_core.plugins.context import BuildContext as BuildContext
    from rlhf_core.plugins.entry_points import foreign_code as foreign_code
    from rlhf_core.plugins.registry import Registry as Registry
    from rlhf_core.plugins.slots import component as component
    from rlhf_core.types.errors import ConfigError as ConfigError
    from rlhf_core.types.errors import PluginError as PluginError
    from rlhf_core.types.errors import RlhfError as RlhfError
    from rlhf_core.types.errors import UserError as UserError
    from rlhf_core.types.errors import did_you_mean as did_you_mean

__getattr__, __dir__ = surface(__name__)

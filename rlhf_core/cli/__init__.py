"""The `rlhf` command, and what a command of a plugin needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlhf_core._surface import surface

if TYPE_CHECKING:
    from rlhf_core.cli.common import context_of as context_of
    from rlhf_core.cli.common import emit_json as emit_json
    from rlhf_core.cli.common import open_registry as open_registry
    from rlhf_core.cli.common import table as table
    from rlhf_core.cli.episodes import load_sampler as load_sampler
    from rlhf_core.cli.episodes import print_turn as print_turn
    from rlhf_core.cli.groups import OpenGroup as OpenGroup
    from rlhf_core.cli.scoring import check_output as check_output
    from rlhf_core.cli.scoring import chosen_reward as chosen_reward

__getattr__, __dir__ = surface(__name__)

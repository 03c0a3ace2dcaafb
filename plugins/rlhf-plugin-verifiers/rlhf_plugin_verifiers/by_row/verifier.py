"""Asks the verifier that a row names."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rlhf_core.rewards import Sample, Score, ScoreStatus
from rlhf_plugin_verifiers.graded import why_refused

if TYPE_CHECKING:
    from rlhf_core.config import BuildContext
    from rlhf_plugin_verifiers.by_row.config import ByRowConfig


class ByRowVerifier:
    """See :class:`ByRowConfig`."""

    def __init__(self, config: ByRowConfig, ctx: BuildContext) -> None:
        self.config, self.ctx = config, ctx
        self._built: dict[int, Any] = {id(v): v.build(ctx) for v in config.table.values()}

    def verify(self, sample: Sample) -> Score:
        why = why_refused(self.config, sample.prompt)
        if why is not None:
            return Score.failed(ScoreStatus.MISSING, why)
        verifier, prompt = self.config.choose(sample.prompt)
        if id(verifier) not in self._built:  # the table keeps it alive
            self._built[id(verifier)] = verifier.build(self.ctx)
        return self._built[id(verifier)].verify(replace(sample, prompt=prompt))

    def close(self) -> None:
        """Close the verifiers that can be."""
        for verifier in self._built.values():
            getattr(verifier, "close", lambda: None)()

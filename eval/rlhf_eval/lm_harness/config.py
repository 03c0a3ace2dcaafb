"""``lm_eval:TASK`` as a benchmark. Nothing here imports lm_eval or torch."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from pydantic import Field

from rlhf_core.config import ComponentConfig, PluginError

if TYPE_CHECKING:
    from rlhf_core.config import BuildContext
    from rlhf_eval.lm_harness.tasks import LmEvalBenchmark


class LmEvalConfig(ComponentConfig):
    """A task of EleutherAI's lm-evaluation-harness, with its prompts, filters and metrics, on this toolkit's engine."""

    name: str = "lm_eval"
    task: str
    """Name of a task, for example ``gsm8k_cot``."""
    path: str | None = None
    """Local JSON lines file instead of the hub's data set (its test split), with the columns of the published one."""
    shots_path: str | None = None
    """Local file for the split that the task takes its worked examples from, if it takes them from one."""
    include_path: str | None = None
    """Folder with further task files."""
    limit: int | None = Field(default=None, ge=1)
    """Only the first documents."""
    shots: int | None = Field(default=None, ge=0)
    """Worked examples; None leaves the task's own number."""
    max_tokens: int = Field(default=1024, ge=1)
    """Most tokens of a completion where the task does not say; lm_eval itself takes 256, which cuts reasoning off."""
    chat: bool = False
    """Apply the model's chat template."""

    def preflight(self, ctx: BuildContext) -> None:
        """Check that lm_eval is there and knows the task, and that local files exist."""
        need_lm_eval()
        from rlhf_eval.lm_harness.tasks import check_task

        check_task(self)

    def build(self, ctx: BuildContext) -> LmEvalBenchmark:
        """Return the benchmark, or say what to install: an import error from inside lm_eval would not."""
        need_lm_eval()
        from rlhf_eval.lm_harness.tasks import LmEvalBenchmark

        return LmEvalBenchmark(self, ctx)


def need_lm_eval() -> None:
    if find_spec("lm_eval") is None:
        raise PluginError("lm-evaluation-harness is not installed", fix="pip install 'rlhf-eval[lm-eval]'")

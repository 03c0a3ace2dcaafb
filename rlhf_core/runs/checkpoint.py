"""Checkpoints: atomic, pickle-free, complete enough to resume bit for bit."""

from __future__ import annotations

import contextlib
import logging
import re
import shutil
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rlhf_core.data.atomic import whole_folder
from rlhf_core.data.jsonl import record_of_run
from rlhf_core.data.manifest import MANIFEST, find_damage
from rlhf_core.distributed.group import RankZero
from rlhf_core.distributed.rank_zero import alone
from rlhf_core.distributed.whole_weights import gather_weights
from rlhf_core.models.random_state import rng_state, set_rng_state
from rlhf_core.plugins import hooks as hk
from rlhf_core.plugins.strategy_protocols import Strategy
from rlhf_core.runs.component_set import ComponentSet
from rlhf_core.runs.run_dir import RunDir
from rlhf_core.types.errors import RunDirError
from rlhf_core.types.tree import SHARDED, load_tree, same, save_tree

if TYPE_CHECKING:
    import torch


log = logging.getLogger("rlhf.checkpoint")
_NAME = re.compile(r"step-(\d{6,})$")


class CheckpointStore:
    """The ``checkpoints`` folder of a run."""

    def __init__(self, folder: Path, keep: int = 2) -> None:
        self.folder, self.keep = folder, keep

    def steps(self) -> list[int]:
        """Steps with a complete checkpoint, ascending."""
        matches = [_NAME.match(p.name) for p in self.folder.glob("step-*")]
        return sorted(int(m.group(1)) for m in matches if m)

    def path(self, step: int) -> Path:
        """Folder of one step's checkpoint."""
        return self.folder / f"step-{step:06d}"

    @contextlib.contextmanager
    def writing(self, step: int) -> Generator[Path, None, None]:
        """Yield a folder to fill: ``model`` in Hugging Face form, the tree ``state``, and with a sharded strategy
        ``shard-RANK`` of each rank and ``sharded`` of all. It becomes the step's checkpoint when it is whole.

        The oldest ones go.
        """
        with whole_folder(self.path(step)) as folder:
            yield folder
        for old in self.steps()[: -self.keep]:
            shutil.rmtree(self.path(old), ignore_errors=True)

    def newest_undamaged(self) -> int | None:
        """Step of the newest checkpoint whose files are what was written; None if there is no checkpoint.

        Damaged ones that are newer are set aside, for the run is to write these steps again.
        """
        damaged: dict[int, str] = {}
        for step in reversed(self.steps()):
            problems = find_damage(self.path(step))
            damage = [f"{MANIFEST} is missing"] if problems is None else problems
            if not damage:
                self._set_aside(damaged, step)
                return step
            damaged[step] = damage[0] + (f", and {len(damage) - 1} more" if len(damage) > 1 else "")
        if damaged:
            raise RunDirError(
                f"every checkpoint in '{self.folder}' is damaged",
                why="; ".join(f"step {step}: {damage}" for step, damage in damaged.items()),
                fix="copy the run again if this is a copy, else start a new run",
            )
        return None

    def _set_aside(self, damaged: Mapping[int, str], chosen: int) -> None:
        for step, damage in damaged.items():
            folder = self.path(step).with_suffix(".damaged")
            shutil.rmtree(folder, ignore_errors=True)
            self.path(step).rename(folder)
            text = "the checkpoint of step %d is damaged (%s): going on from step %d; it is kept as '%s'"
            log.warning(text, step, damage, chosen, folder)

    def read(self, step: int, rank: int = 0) -> tuple[Path, dict[str, Any]]:
        """Folder and state of a checkpoint, this rank's shard included."""
        path = self.path(step)
        try:
            state = load_tree(path, "state")
            written = len(state.get("ranks", ())) or rank + 1
            shard = f"shard-{rank if rank < written else 0}"  # a rank that was not there takes what all have alike
            return path, {**state, **(load_tree(path, shard) if (path / f"{shard}.json").is_file() else {})}
        except Exception as error:
            raise RunDirError(
                f"checkpoint '{path}' cannot be read: {error}", fix="remove that folder to resume from the one before"
            ) from error


WriteModel = Callable[[Path, Mapping[str, Any]], None]
"""Fills a folder with a model whose weights are given by name."""


class Checkpoint(NamedTuple):
    """A checkpoint to go on from."""

    path: Path
    state: dict[str, Any]

    @property
    def model(self) -> Path:
        """Folder of its weights, in Hugging Face form."""
        return self.path / "model"

    @property
    def step(self) -> int:
        """Steps finished."""
        return int(self.state["step"])

    @property
    def offsets(self) -> dict[str, tuple[int, str]]:
        """Length of each of the run's streams, and hash of it; errors as of `record_of_run`."""
        with record_of_run(self.path / "state.json"):
            return {name: (int(length), str(digest)) for name, (length, digest) in self.state["offsets"].items()}


class CheckpointManager(CheckpointStore):
    """Saves what every rank has, restores it, and writes ``final/``."""

    def __init__(
        self, run_dir: RunDir, strategy: Strategy, hooks: hk.HookBus, components: ComponentSet, counts: Counter[str]
    ) -> None:
        super().__init__(run_dir.checkpoints)
        self.dir, self.strategy, self.hooks = run_dir, strategy, hooks
        self.components, self.counts = components, counts

    def latest(self) -> Checkpoint | None:
        """The newest checkpoint that is whole, this rank's shard included; None if there is none.

        Rank 0 looks for it, so that all ranks go on from the same.

        ``state["ranks"]`` is what each rank goes on with, and ``state["written_by"]`` what each of those had that wrote
        it, of which there may have been more or fewer.
        """
        with alone(self.strategy, "looking for the newest whole checkpoint"):
            newest = self.newest_undamaged() if self.strategy.rank == 0 else None
        step = self.strategy.gather_objects(newest)[0]
        if step is None:
            return None
        path, state = self.read(step, self.strategy.rank)
        ranks = self.strategy.world_size
        by_process = (path / "shard-0.json").is_file() and not state.get("divisible")
        if by_process and (len(state["ranks"]) != ranks or not self.strategy.sharded):
            raise RunDirError(
                f"the checkpoint of step {step} holds parts that only the {len(state['ranks'])} processes can read "
                "which wrote them",
                where=str(path),
                why="its strategy stores state by rank, not by parameter",
                fix=f"the same strategy, and --nproc {len(state['ranks'])} or a launcher with as many processes",
            )
        written_by = state["ranks"]
        return Checkpoint(path, {**state, "ranks": for_ranks(written_by, ranks), "written_by": written_by})

    def saved(self, step: int) -> bool:
        """True if this step's checkpoint is on disk."""
        return step in self.steps()

    def save(
        self,
        step: int,
        state: dict[str, Any],
        model: torch.nn.Module,
        write_model: WriteModel,
        rank_state: Mapping[str, Any] | None = None,
        beside: Sequence[tuple[torch.nn.Module, WriteModel]] = (),
    ) -> None:
        """Save a checkpoint after ``step`` steps: streams, and every rank's random numbers and component states.

        ``write_model`` and those of further models (``beside``) get full weights on rank 0, gathered before, or each
        when it is looked up (:func:`rlhf_core.distributed.whole_weights.gather_weights`). ``rank_state`` is kept for
        each rank, in ``state["ranks"]``; ``state`` too with a sharded strategy.
        """
        this_rank = {
            **(rank_state or {}),
            "rng": rng_state(),
            "components": self.components.state_dict(),
            "hook_errors": dict(self.hooks.errors),
        }
        ranks = RankZero(self.strategy).gather(this_rank)
        writes = self.strategy.rank == 0
        with alone(self.strategy, f"writing the checkpoint of step {step}"):
            with self.writing(step) if writes else contextlib.nullcontext() as folder:
                divisible = self.strategy.sharded and self._write_shard(self.strategy.gather_objects(folder)[0], state)
                if self.strategy.sharded:
                    self.strategy.barrier(f"every rank writing its part of the checkpoint of step {step}")
                gather_weights(self.strategy, model, _writing(write_model, folder, "model"))
                for part, write in beside:
                    gather_weights(self.strategy, part, _writing(write, folder))
                if folder is not None:
                    shared = {} if self.strategy.sharded else state
                    facts = {
                        "step": step,
                        "ranks": ranks,
                        "divisible": divisible,
                        "counts": dict(self.counts),
                        "offsets": self.dir.offsets(),
                    }
                    save_tree(folder, "state", {**shared, **facts})
            if writes:
                self.hooks.fire("rlhf_checkpoint_saved", hk.CheckpointSaved(step, self.path(step)))
        self.strategy.barrier(f"rank 0 writing the checkpoint of step {step}")

    def _write_shard(self, folder: Path, state: dict[str, Any]) -> bool:
        """This rank's part of a state; whether other numbers of ranks can read it."""
        from rlhf_core.distributed.whole_weights import take_out, write_sharded

        plain_state, tensors = take_out(state)
        save_tree(folder, f"shard-{self.strategy.rank}", plain_state)
        if tensors:
            write_sharded(folder / SHARDED, tensors)
        return bool(tensors) or not _holds_tensors(plain_state)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go on with a checkpoint's component states and random numbers.

        Building a component may draw random numbers, so this comes after everything is built.
        """
        this_rank = checkpoint.state["ranks"][self.strategy.rank]
        self.components.load_state_dict(this_rank["components"])
        self.hooks.errors = Counter(this_rank["hook_errors"])
        set_rng_state(this_rank["rng"])

    def write_final(self, model: torch.nn.Module, write: WriteModel) -> None:
        """Let rank 0 write ``final/`` from the weights of all ranks; it appears only once it is whole."""
        staging = whole_folder(self.dir.final) if self.strategy.rank == 0 else contextlib.nullcontext()
        with alone(self.strategy, "writing the final model"), staging as folder:
            gather_weights(self.strategy, model, _writing(write, folder))
        self.strategy.barrier("rank 0 writing the final model")


OWN = ("rng", "hook_errors")
"""What may differ from rank to rank and means the same on any: nothing that is drawn from global generators decides
what a run samples or learns, whose seeds come from steps and prompts."""

DIVIDED = ("source",)
"""What the trainer divides anew: rollouts that were sampled ahead."""


def for_ranks(ranks: Sequence[Mapping[str, Any]], world_size: int) -> list[Mapping[str, Any]]:
    """The states of so many ranks; those that there are if there are as many."""
    if len(ranks) == world_size:
        return list(ranks)
    first = ranks[0]
    shared = [key for key in first if key not in OWN + DIVIDED]
    differing = [
        f"{key}/{part}" if part else key
        for key in shared
        for part in (map(str, first[key]) if isinstance(first[key], Mapping) and first[key] else [""])
        if any(not same(_part(first[key], part), _part(rank[key], part)) for rank in ranks)
    ]
    if differing:
        raise RunDirError(
            f"{len(ranks)} processes kept different states of {', '.join(differing)}, which {world_size} cannot share",
            why="what a component counted or sampled belongs to one process",
            fix=f"--nproc {len(ranks)}, or a launcher with {len(ranks)} processes in all",
        )
    return [first] * world_size


def _part(state: Any, name: str) -> Any:
    return state.get(name) if name and isinstance(state, Mapping) else state


def _holds_tensors(tree: Any) -> bool:
    """Whether there is a tensor of at least one dimension in it: of a strategy, its own rank's part."""
    if isinstance(tree, Mapping):
        return any(map(_holds_tensors, tree.values()))
    if isinstance(tree, (list, tuple)):
        return any(map(_holds_tensors, tree))
    return bool(getattr(tree, "ndim", 0)) and hasattr(tree, "is_leaf")


def _writing(write: WriteModel, folder: Path | None, name: str = "") -> Callable[[Mapping[str, Any]], None]:
    """What writes weights into a folder, or below it; only rank 0 has the folder, and calls this."""

    def written(weights: Mapping[str, Any]) -> None:
        assert folder is not None, "rank 0 writes"
        write(folder / name, weights)

    return written

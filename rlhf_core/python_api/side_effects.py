"""What a run changes in its process, put back as it was."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import signal
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def unchanged_process() -> Iterator[None]:
    """Leave the caller's torch settings, random states, logging, signals and environment as they were."""
    with contextlib.ExitStack() as stack:
        for keep in (_torch, _random_states, _logging, _signals, _variables, _accelerate):
            stack.enter_context(keep())
        yield


@contextlib.contextmanager
def _torch() -> Iterator[None]:
    import torch

    from rlhf_core.models.layers import matmul

    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    fill: Any = torch.utils.deterministic
    filled, grad, replaced = fill.fill_uninitialized_memory, torch.is_grad_enabled(), matmul.replaced()
    torch.set_grad_enabled(True)
    try:
        yield
    finally:
        torch.set_grad_enabled(grad)
        torch.set_num_threads(threads)
        torch.set_default_dtype(dtype)
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        fill.fill_uninitialized_memory = filled
        matmul.use_matmul_backend("onednn" if replaced else "torch")


@contextlib.contextmanager
def _random_states() -> Iterator[None]:
    import numpy as np
    import torch

    plain, arrays, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    try:
        yield
    finally:
        random.setstate(plain)
        np.random.set_state(arrays)
        torch.set_rng_state(cpu)
        if cuda:
            torch.cuda.set_rng_state_all(cuda)


@contextlib.contextmanager
def _logging() -> Iterator[None]:
    from transformers.utils import logging as of_transformers

    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    verbosity, bars = of_transformers.get_verbosity(), of_transformers.is_progress_bar_enabled()
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        of_transformers.set_verbosity(verbosity)
        (of_transformers.enable_progress_bar if bars else of_transformers.disable_progress_bar)()


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # not in the main thread, which alone may set them
            for number, handler in before.items():
                if signal.getsignal(number) is not handler and handler is not None:
                    signal.signal(number, handler)


@contextlib.contextmanager
def _variables() -> Iterator[None]:
    before = dict(os.environ)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update({name: value for name, value in before.items() if os.environ.get(name) != value})


@contextlib.contextmanager
def _accelerate() -> Iterator[None]:
    """accelerate keeps one state per process, with its device and precision; a fresh one stays fresh."""
    from accelerate.state import AcceleratorState, GradientState, PartialState

    shared: list[Any] = [PartialState._shared_state, AcceleratorState._shared_state, GradientState._shared_state]
    before = [dict(state) for state in shared]
    try:
        yield
    finally:
        for state, earlier in zip(shared, before):
            state.clear()
            state.update(earlier)

"""On PYTHONPATH it gives a process the card: those that `rlhf doctor` starts."""

from tests.shadow_cuda import plugin as plugin

"""What a run frees stays with the process, so that the next update does not wait for new pages."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource, sys
import torch
from rlhf_core.runs.launch.process import keep_freed_memory

def faults(megabytes):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(megabytes << 20, dtype=torch.uint8)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def least(megabytes=64):  # the heap needs a few rounds until a place fits
    return min(faults(megabytes) for _ in range(8))

before = least()
keep_freed_memory()
kept = least()
keep_freed_memory(False)
print(before, kept, least(256))  # more than the heap holds free
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_freed_memory_is_used_again_and_given_back_after_a_run_in_python() -> None:
    done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True)
    before, kept, after = map(int, done.stdout.split())
    assert kept < before / 10
    assert kept < after / 10

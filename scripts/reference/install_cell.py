# Installs the toolkit where it is missing. Wheels: run `make dist` in its repository, and upload this notebook and the
# folder dist to the service; or set RLHF_WHEELS to another folder or to the address of a page with them.
import importlib
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

if find_spec("rlhf_studies") is None:
    wheels = os.environ.get("RLHF_WHEELS") or next(
        (f for f in ("dist", ".") if [*Path(f).glob("rlhf_core-*.whl")]), "dist"
    )
    if "://" not in wheels and not [*Path(wheels).glob("rlhf_core-*.whl")]:
        raise FileNotFoundError(
            f"rlhf is not installed, and {Path(wheels).resolve()} has no rlhf_core-*.whl: run `make dist` in the "
            "toolkit's repository and upload its folder dist beside this notebook, or set RLHF_WHEELS to where it is"
        )
    packages = ["rlhf-core[all]", "rlhf-studies[speech]"]
    subprocess.check_call([sys.executable, "-m", "pip", "install", "-q", "--find-links", wheels, *packages])
    importlib.invalidate_caches()

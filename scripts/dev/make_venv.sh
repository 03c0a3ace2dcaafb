#!/bin/sh
# usage: make_venv.sh PYTHON VENV
# Creates a virtual environment, or says what is missing. Does nothing if it is there.
set -eu
python=$1 venv=$2

[ -x "$venv/bin/python" ] && exit 0

if ! command -v "$python" >/dev/null 2>&1; then
    echo "error: '$python' was not found." >&2
    echo "  fix: install Python 3.11 or newer, or name one: make quickstart PYTHON=/path/to/python3" >&2
    exit 2
fi
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "error: Python 3.11 or newer is needed, but '$python' is $("$python" -c 'import platform; print(platform.python_version())')." >&2
    echo "  fix: name a newer one, for example: make quickstart PYTHON=python3.12" >&2
    exit 2
fi
if ! "$python" -c 'import ensurepip' 2>/dev/null; then
    echo "error: '$python' cannot create virtual environments with pip (module ensurepip is missing)." >&2
    echo "  fix: install your system's package for it, for example: apt-get install python3-venv" >&2
    exit 2
fi
echo "Creating $venv with $("$python" --version)"
exec "$python" -m venv "$venv"

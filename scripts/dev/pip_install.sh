#!/bin/sh
# usage: pip_install.sh PYTHON ARGUMENT...
# `pip install` into PYTHON's environment; by uv, which takes a fifth of pip's time, where UV names its program.
# uv reads none of pip's settings: give it its own (UV_FIND_LINKS, UV_DEFAULT_INDEX).
set -eu
python=$1
shift
if [ -n "${UV:-}" ]; then
    exec "$UV" pip install --python "$python" --no-sources "$@"
fi
exec "$python" -m pip install --disable-pip-version-check --no-compile "$@"

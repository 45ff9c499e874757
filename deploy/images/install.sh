#!/bin/sh
# Fill the virtual environment $1 with what the services need and with the extras named after it, no more.
# Every file that is installed has a hash in requirements.lock.
set -eu
venv=$1
shift
for extra in $*; do
    set -- "$@" --extra "$extra"
    shift
done
uv pip install --python "$venv/bin/python" --no-cache --compile-bytecode \
    --require-hashes --constraint requirements.lock -r pyproject.toml ${OVERRIDE:+--override "$OVERRIDE"} "$@"

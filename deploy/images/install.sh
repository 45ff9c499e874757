#!/bin/sh
# Fill the virtual environment $1 with what the services need and with the extras named after it, no more.
# Every file that is installed has a hash in the lock file: $LOCK, else requirements.lock.
set -eu
venv=$1
shift
for extra in $*; do
    set -- "$@" --extra "$extra"
    shift
done
uv pip install --python "$venv/bin/python" --no-cache --compile-bytecode \
    --require-hashes --constraint "${LOCK:-requirements.lock}" -r pyproject.toml "$@"

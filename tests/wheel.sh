#!/bin/sh
# Builds the wheel, installs it into an environment of its own and uses it from an empty folder, so that a file missing
# from the wheel or an import that only works inside the source tree is found.
#   usage: sh tests/wheel.sh PYTHON
set -eu
python=$1
tree=$(pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -m build --quiet --wheel --outdir "$work/dist" "$tree"
"$python" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check --constraint "$tree/constraints.txt" "$work"/dist/*.whl
cd "$work"
"$work/venv/bin/python" "$tree/tests/wheel_check.py"
"$work/venv/bin/fedceo" list --json > list.json

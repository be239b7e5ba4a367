#!/usr/bin/env bash
# The race and the sweeps on a machine that has a GPU and no network, unattended:
#     bash benchmarks/on_gpu.sh race|scale OUT
# OUT is the folder for the results; the peers are read from .gpu/peers.tar.xz, which peers/vendor.py writes.
set -euo pipefail
what=${1:?race or scale} out=${2:?the folder for the results}
cd "$(dirname "$0")/.."
peers=$HOME/peers
if [ ! -e "$peers/ready" ]; then
  mkdir -p "$peers"
  tar xJf .gpu/peers.tar.xz -C "$peers"
  touch "$peers/ready"
fi
export PYTHONPATH=$PWD/src:$peers PYTHONUNBUFFERED=1
case $what in
  race) python3 benchmarks/gpu_race.py --out "$out/race-h200.json" "${@:3}" ;;
  scale) python3 benchmarks/scale.py --device cuda --out "$out/scale-h200.json" "${@:3}" ;;
  *) echo "$what: expected race or scale" >&2; exit 2 ;;
esac

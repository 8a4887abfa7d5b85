#!/usr/bin/env bash
# Download an official SAM2.1 checkpoint (default: base_plus) into checkpoints/ of this repository, from any working directory.
# The arguments are those of `triton-sam download sam2`; the variable PYTHON names the interpreter.
set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" # the script works without an installation
exec "${PYTHON:-python3}" -m triton_sam download --directory "$root/checkpoints" sam2 "$@"

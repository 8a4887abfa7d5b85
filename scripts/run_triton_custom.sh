#!/usr/bin/env bash
# Serve your own SAM2 checkpoint: export it, unless the repository has it already, then run Triton.
set -euo pipefail

usage() {
    cat <<'HELP'
usage: SAM2_CHECKPOINT=/abs/file.pt [SAM2_MODEL_CFG=NAME] scripts/run_triton_custom.sh [MODEL_REPOSITORY]

Exports the checkpoint into MODEL_REPOSITORY (default: model_repository of this project), unless the newest version there
was exported from the same file. Then serves it with scripts/run_triton.sh, whose variables apply as well.

The export runs with the Python of this host if that has the extra `export`. Otherwise it runs in the image
triton-sam-export:pytorch, which the script builds with docker or podman if it is missing.

  SAM2_CHECKPOINT   absolute path of a SAM2.1 or SAM2.0 checkpoint
  SAM2_MODEL_CFG    model configuration, for example configs/sam2.1/sam2.1_hiera_l.yaml (default: from the file name)
  PYTHON            interpreter with the extra: pip install -c constraints.txt -e ".[export]" (default: see above)
HELP
}

case "${1:-}" in
    -h | --help)
        usage
        exit 0
        ;;
esac
checkpoint=${SAM2_CHECKPOINT:-}
if [[ -z $checkpoint || $checkpoint != /* ]]; then
    echo "run_triton_custom.sh: set SAM2_CHECKPOINT to the absolute path of a checkpoint" >&2
    exit 2
fi
if [[ ! -f $checkpoint ]]; then
    echo "run_triton_custom.sh: there is no checkpoint at $checkpoint" >&2
    exit 1
fi
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=/dev/null
source "$root/scripts/lib/containers.sh"
repository=${1:-$root/model_repository}

# Whether the newest version of the encoder was exported from the checkpoint: the ONNX file has its SHA-256.
is_exported() {
    local newest
    newest=$(find "$repository/sam2_encoder" -mindepth 2 -maxdepth 2 -name model.onnx 2>/dev/null | sort -V | tail -n 1)
    [[ -n $newest ]] && grep -aqF "$hash" "$newest"
}

# macOS has shasum instead of sha256sum.
hash=$( (sha256sum "$checkpoint" || shasum -a 256 "$checkpoint") 2>/dev/null | cut -d ' ' -f 1) || true
if [[ -z $hash ]]; then
    echo "run_triton_custom.sh: cannot read $checkpoint" >&2
    exit 1
fi

# Print an interpreter of this host that can export.
exporting_python() {
    local candidate
    for candidate in python3 "$root/.venv/bin/python"; do
        if "$candidate" - 2>/dev/null <<'PYTHON'; then
import importlib.util, sys
sys.exit(not all(map(importlib.util.find_spec, ("torch", "torchvision", "sam2", "onnx", "onnxscript", "onnxruntime"))))
PYTHON
            echo "$candidate"
            return
        fi
    done
    return 1
}

# Export in the image. The repository and the checkpoint are mounted, and the caller owns the written files.
export_in_image() {
    local engine image=triton-sam-export:pytorch configuration=${SAM2_MODEL_CFG:-}
    if [[ ${TRITON_LOCAL:-0} == 1 ]] || ! engine=$(container_engine); then
        echo "run_triton_custom.sh: neither this host's Python nor a container can export: start docker or podman, or run" \
            "(cd $root && python3 -m venv .venv && . .venv/bin/activate && pip install -c constraints.txt -e \".[local,export]\")" >&2
        return 1
    fi
    if ! "$engine" image inspect "$image" >/dev/null 2>&1; then
        echo "run_triton_custom.sh: building $image, which exports checkpoints" >&2
        CONTAINER_ENGINE=$engine TARGET=export EXTRAS=export "$root/scripts/build_image.sh" "$image" >&2 || return 1
    fi
    local options=(--rm --user "$(id -u):$(id -g)" --env HOME=/tmp
        -v "$(cd -- "$repository" && pwd):/models" -v "$checkpoint:/checkpoints/$(basename "$checkpoint"):ro")
    # Rootless podman maps the caller to root by default.
    [[ $(basename "$engine") == podman && $(id -u) != 0 ]] && options+=(--userns keep-id)
    if [[ -f $configuration ]]; then
        options+=(-v "$(realpath "$configuration"):/checkpoints/$(basename "$configuration"):ro")
        configuration=/checkpoints/$(basename "$configuration")
    fi
    "$engine" run "${options[@]}" --entrypoint triton-sam "$image" export sam2 \
        --checkpoint "/checkpoints/$(basename "$checkpoint")" --model-repository /models \
        ${configuration:+--model-cfg "$configuration"}
}

if is_exported; then
    echo "run_triton_custom.sh: $repository holds this checkpoint already"
else
    mkdir -p "$repository"
    if [[ -n ${PYTHON:-} ]] || python=$(exporting_python); then
        options=()
        [[ -n ${SAM2_MODEL_CFG:-} ]] && options=(--model-cfg "$SAM2_MODEL_CFG")
        PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" "${PYTHON:-$python}" "$root/scripts/export_sam2_to_onnx.py" \
            --checkpoint "$checkpoint" --output-dir "$repository" ${options[@]+"${options[@]}"}
    else
        export_in_image
    fi
fi
exec "$root/scripts/run_triton.sh" "$repository"

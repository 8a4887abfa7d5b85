#!/usr/bin/env bash
# Serve a model repository with Triton, in a container where docker or podman runs, otherwise with the local server.
set -euo pipefail

usage() {
    cat <<'HELP'
usage: [HTTP_PORT=8000] [GRPC_PORT=8001] [METRICS_PORT=8002] [TRITON_TAG=TAG] scripts/run_triton.sh [MODEL_REPOSITORY]

Serves MODEL_REPOSITORY until Ctrl-C. The default is ./models if that folder holds models, otherwise model_repository of
this project. Where docker or podman answers, the script runs NVIDIA's container with this package, and builds the image
if it is missing (see scripts/build_image.sh). Elsewhere it runs `triton-sam serve`, and first installs what that needs
into .venv of this project.

  BIND_ADDRESS      address to listen on (default: 127.0.0.1, for this host only, because Triton has no passwords;
                    0.0.0.0 lets everybody in whom the firewall lets through)
  TRITON_TAG        release of Triton (default: the one in the Dockerfile)
  TRITON_IMAGE      another image; one without this package, such as NVIDIA's own, nvcr.io/nvidia/tritonserver:TAG,
                    serves encoders and decoders only
  CONTAINER_NAME    name of the container, for example for `docker logs` (default: sam2-triton-server)
  CONTAINER_ENGINE  docker or podman (default: the one that answers)
  SHM_SIZE          shared memory of the container (default: 1g); on a CPU it holds the cached embeddings
  TRITON_LOCAL=1    do not use a container
  PYTHON            interpreter for the local server, with the extra `local` (default: one that has it)
HELP
}

case "${1:-}" in
    -h | --help)
        usage
        exit 0
        ;;
    -*)
        echo "run_triton.sh: there is no option '$1'" >&2
        usage >&2
        exit 2
        ;;
esac

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=/dev/null
source "$root/scripts/lib/containers.sh"
repository=${1:-}
if [[ -z $repository ]]; then
    repository=$root/model_repository
    if compgen -G './models/*/config.pbtxt' >/dev/null; then
        repository=./models
    fi
fi
if [[ ! -d $repository ]]; then
    echo "run_triton.sh: there is no model repository at $repository" >&2
    exit 1
fi
repository=$(cd -- "$repository" && pwd)
http_port=${HTTP_PORT:-8000} grpc_port=${GRPC_PORT:-8001} metrics_port=${METRICS_PORT:-8002}
address=${BIND_ADDRESS:-127.0.0.1}

# Whether an interpreter has the packages for `triton-sam serve`.
can_serve() {
    PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" "$1" - >/dev/null 2>&1 <<'PYTHON'
import onnxruntime
from triton_sam.local_server.installation import find_libpython, find_wheel
find_wheel()
find_libpython()
PYTHON
}

# Print an interpreter that can serve. If none exists, create the environment .venv.
local_python() {
    local candidate install='pip install -c constraints.txt -e ".[local]"'
    for candidate in python3 "$root/.venv/bin/python"; do
        if can_serve "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    if [[ -e $root/.venv ]]; then
        echo "run_triton.sh: the local server is not installed: (cd $root && . .venv/bin/activate && $install)" >&2
        return 1
    fi
    if python3 -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 13))' 2>/dev/null; then
        candidate=(python3 -m venv "$root/.venv")
    elif command -v uv >/dev/null 2>&1; then
        candidate=(uv venv --quiet --seed --python 3.12 "$root/.venv")
    else
        echo "run_triton.sh: the local server needs Python 3.10, 3.11 or 3.12: see $root/docs/how-to/install.md" >&2
        return 1
    fi
    echo "run_triton.sh: installing the local server into $root/.venv" >&2
    if ! { "${candidate[@]}" && cd -- "$root" && .venv/bin/python -m pip install --quiet -c constraints.txt -e '.[local]'; } >&2; then
        rm -rf "$root/.venv" # otherwise the next start would take half an environment for a whole one
        echo "run_triton.sh: this failed: (cd $root && ${candidate[*]} && . .venv/bin/activate && $install)" >&2
        return 1
    fi
    echo "$root/.venv/bin/python"
}

if [[ ${TRITON_LOCAL:-0} == 1 ]]; then
    engine=''
elif ! engine=$(container_engine); then
    echo "run_triton.sh: neither docker nor podman answers: serving without a container, with \`triton-sam serve\`" >&2
fi
echo "run_triton.sh: serving $repository at http://$address:$http_port" >&2
if [[ -z $engine ]]; then
    python=${PYTHON:-$(local_python)}
    export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
    exec "$python" -m triton_sam serve --model-repository "$repository" --host "$address" \
        --http-port "$http_port" --grpc-port "$grpc_port" --metrics-port "$metrics_port"
fi

# Whether a model needs this package in the image: a session model, or an ensemble that calls one of our Python models.
needs_package() {
    grep -qs "triton_sam" "$1"/*/model.py || grep -qs '_preprocess"' "$1/config.pbtxt"
}

tag=$(triton_tag "$root")
image=${TRITON_IMAGE:-}
if [[ -z $image ]]; then
    image=nvcr.io/nvidia/tritonserver:$tag
    for folder in "$repository"/*/; do
        if needs_package "${folder%/}"; then
            image=triton-sam:$tag
            break
        fi
    done
    if [[ $image == triton-sam:* ]] && ! "$engine" image inspect "$image" >/dev/null 2>&1; then
        echo "run_triton.sh: building $image, which the session models need" >&2
        if ! CONTAINER_ENGINE=$engine "$root/scripts/build_image.sh" "$image" >&2; then
            echo "run_triton.sh: $image could not be built. TRITON_LOCAL=1 serves without a container, and" \
                "TRITON_IMAGE=nvcr.io/nvidia/tritonserver:$tag serves encoders and decoders alone" >&2
            exit 1
        fi
    fi
fi
name=${CONTAINER_NAME:-sam2-triton-server}
if "$engine" container inspect "$name" >/dev/null 2>&1; then
    echo "run_triton.sh: there is a container $name already: end it with \`$engine stop $name\`, or set CONTAINER_NAME" >&2
    exit 1
fi

# The image of this project loads only models with all their weights, restarts Triton when a model dies, refuses to load
# models over the network, and sets Triton's options for the models, such as GPU memory for embeddings.
server=(triton-sam container)

# Whether the image has this package. NVIDIA's image, including copies under other names, lacks it.
has_package() {
    [[ $image == triton-sam:* ]] && return
    [[ $image == nvcr.io/* ]] && return 1
    "$engine" run --rm --entrypoint sh "$image" -c 'command -v triton-sam' >/dev/null 2>&1
}

# Without the package, Triton fails for a folder without weights, and for a model whose Python package is missing. It
# cannot serve session models, and only they need that memory.
if ! has_package; then
    server=(tritonserver --model-repository=/models --model-control-mode=explicit)
    found=''
    for folder in "$repository"/*/; do
        model=$(basename "$folder")
        weights=$(find "$folder" -mindepth 2 -maxdepth 2 -type f ! -name '.*' 2>/dev/null | head -n 1 || true)
        if grep -qs 'platform: *"ensemble"' "$folder/config.pbtxt"; then
            weights=ensemble
        fi
        if needs_package "${folder%/}"; then
            echo "run_triton.sh: $model is left out, because it needs the image of scripts/build_image.sh" >&2
        elif [[ -n $weights ]]; then
            server+=("--load-model=$model")
            found=yes
        fi
    done
    if [[ -z $found ]]; then
        echo "run_triton.sh: no model in $repository has weights that can be read: export one with \`triton-sam setup\`" >&2
        exit 1
    fi
fi

gpus=()
if command -v nvidia-smi >/dev/null 2>&1; then
    gpus=(--gpus all)
    [[ $(basename "$engine") == podman ]] && gpus=(--device nvidia.com/gpu=all) # a CDI device, see docs/how-to/deploy.md
fi
# Bash 3.2 (macOS) treats an empty array as an unset variable, so this uses ${array[@]+...}.
exec "$engine" run --rm --name "$name" ${gpus[@]+"${gpus[@]}"} --shm-size "${SHM_SIZE:-1g}" \
    -p "$address:$http_port:8000" -p "$address:$grpc_port:8001" -p "$address:$metrics_port:8002" \
    -v "$repository:/models:ro" "$image" "${server[@]}"

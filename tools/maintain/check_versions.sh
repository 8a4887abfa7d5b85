#!/usr/bin/env bash
# Run the tests that need no PyTorch with the lowest and the highest versions that pyproject.toml allows.
set -euo pipefail

usage() {
    cat <<'HELP'
usage: tools/maintain/check_versions.sh [ENVIRONMENT ...]

An environment is PYTHON-RESOLUTION. PYTHON is 3.10, 3.11 or 3.12. RESOLUTION is lowest or highest (with the extras local
and service), or client (without extras, so that numpy may be 2; the server runs in the highest environment).
The default is lowest and highest of all three Pythons, and the client with 3.12. The script needs uv (pip install uv)
and these Pythons, on the PATH or where uv finds them. Each environment takes about five minutes on two cores.

  ENVIRONMENTS   folder for the environments (default: a temporary folder, which is removed)
  RUN            a command to put before each run of tests, for example "nice"
HELP
}

case "${1:-}" in
    -h | --help)
        usage
        exit 0
        ;;
esac

cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.."
server='' temporary=''
# shellcheck disable=SC2317 # called by the trap
clean_up() {
    [[ -z $server ]] || { kill "$server" && wait "$server"; } || true
    [[ -z $temporary ]] || rm -rf "$temporary"
}
trap clean_up EXIT
if [[ -z ${ENVIRONMENTS:-} ]]; then
    ENVIRONMENTS=$(mktemp -d)
    temporary=$ENVIRONMENTS
fi
export ENVIRONMENTS PYTHONPATH=$PWD # this checkout, not an installed copy
mkdir -p "$ENVIRONMENTS"

names=("$@")
((${#names[@]})) || names=(3.{10,11,12}-{lowest,highest} 3.12-client)
if ((${#names[@]} > 1)); then
    broken=()
    for name in "${names[@]}"; do
        tools/maintain/check_versions.sh "$name" || broken+=("$name")
    done
    if ((${#broken[@]})); then
        echo "check_versions.sh: failed: ${broken[*]}" >&2
        exit 1
    fi
    exit 0
fi

name=${names[0]} python=${names[0]%-*}
read -ra run <<<"${RUN:-}"
failed=0
without_server=(unit/{inputs,masks,transport,client,_common} unit/test_properties.py)
with_server=(served/test_{client,basic,session_model,onnxruntime_backend}.py unit/repository service/test_v{0,1}.py)

# environment NAME RESOLUTION [EXTRA ...]: install the requirements of pyproject.toml, and the tools of the tests.
environment() {
    local folder=$ENVIRONMENTS/$1 resolution=$2
    shift 2
    uv pip compile --quiet --python "$python" --resolution "$resolution" "${@/#/--extra=}" pyproject.toml -o "$folder.txt"
    uv venv --quiet --clear --python "$python" "$folder"
    uv pip install --quiet --python "$folder/bin/python" -r "$folder.txt" pytest pytest-{timeout,xdist} filelock hypothesis psutil
    if (($#)); then # for the tests of the service and of RLE
        uv pip install --quiet --python "$folder/bin/python" -r "$folder.txt" httpx pyyaml jsonschema pycocotools onnx
    fi
    uv pip install --quiet --python "$folder/bin/python" --no-deps --editable .
    echo "${folder##*/}: $(grep -E '^(numpy|pillow|tritonclient|onnxruntime|fastapi)==' "$folder.txt" | paste -sd ' ')"
}

# tests FILE ...: run these test files one by one, so that RUN can schedule each of them.
tests() {
    local file
    for file in "$@"; do
        echo "$file"
        "${run[@]}" "$ENVIRONMENTS/$name/bin/python" -m pytest -q -p no:cacheprovider "test/$file" ||
            failed=1
    done
}

# Start a server in the highest environment of this Python. Clients find it by TRITON_URL.
serve() {
    "$ENVIRONMENTS/$python-highest/bin/triton-sam" serve --quiet --models sam2 --{http,grpc,metrics}-port=0 \
        >"$ENVIRONMENTS/$name.url" &
    server=$!
    for _ in {1..600}; do
        TRITON_URL=$(head -n 1 "$ENVIRONMENTS/$name.url")
        [[ -z $TRITON_URL ]] || break
        sleep 0.1
    done
    export TRITON_URL
}

case $name in
    3.*-lowest) environment "$name" lowest-direct local service ;;
    3.*-highest) environment "$name" highest local service ;;
    3.*-client)
        environment "$python-highest" highest local service
        environment "$name" highest
        tests "${without_server[@]}"
        serve
        tests served/test_basic.py
        exit "$failed"
        ;;
    *)
        echo "check_versions.sh: there is no environment '$name': see --help" >&2
        exit 2
        ;;
esac
tests "${without_server[@]}" "${with_server[@]}"
exit "$failed"

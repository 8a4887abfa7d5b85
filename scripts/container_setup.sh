#!/usr/bin/env bash
# In the image of `Dockerfile`, target export: download an official checkpoint and export it into the volume /models.
set -euo pipefail

usage() {
    cat <<'HELP'
usage: container_setup.sh FAMILY SIZE [options of `triton-sam setup`]

Fills an empty model repository with the config.pbtxt files and the small default model, then runs `triton-sam setup
FAMILY SIZE`. Does nothing when that was done before and the models are still there, so that it suits an init container.
Both places can be named:

  TRITON_SAM_REPOSITORY   model repository (default: /models)
  TRITON_SAM_SEED         repository to copy from (default: the one of this image)
  FORCE=1                 export again
HELP
}

case "${1:-}" in
    -h | --help)
        usage
        exit 0
        ;;
esac
if [[ $# -lt 2 ]]; then
    usage >&2
    exit 2
fi
repository=${TRITON_SAM_REPOSITORY:-/models}
seed=${TRITON_SAM_SEED:-$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)/model_repository}
export TRITON_SAM_REPOSITORY=$repository

# Several pods may share the volume and start at once: one works, the others wait and find it done.
if command -v flock >/dev/null 2>&1; then
    exec 9>"$repository/.triton-sam-lock"
    flock 9
fi
for folder in "$seed"/*/; do
    name=$(basename "$folder")
    [[ -e $repository/$name/config.pbtxt ]] && continue
    mkdir -p "$repository/$name"
    cp -r "$folder/." "$repository/$name/"
done

# One line a finished setup, its arguments and the models that it wrote: an init container runs at every start of a pod.
done_before=$repository/.triton-sam-setup
is_done() {
    local arguments list model
    local -a models
    while IFS=$'\t' read -r arguments list; do
        [[ $arguments == "$1" ]] || continue
        IFS=$'\t' read -ra models <<<"$list"
        for model in "${models[@]}"; do
            [[ -e $repository/$model ]] || continue 2
        done
        return 0
    done < <(cat "$done_before" 2>/dev/null)
    return 1
}
if [[ ${FORCE:-0} != 1 ]] && is_done "$*"; then
    echo "container_setup.sh: $* is in $repository already"
    exit 0
fi
started=$(mktemp)
trap 'rm -f "$started"' EXIT
sleep 0.1 # a file system counts time in steps of some milliseconds
if command -v triton-sam >/dev/null 2>&1; then
    triton-sam setup "$@"
else
    "${PYTHON:-python3}" -m triton_sam setup "$@"
fi
written=$(cd -- "$repository" && find . -name '*.onnx' -newer "$started" | sort | tr '\n' '\t')
printf '%s\t%s\n' "$*" "$written" >>"$done_before"

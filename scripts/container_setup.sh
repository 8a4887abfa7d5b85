#!/usr/bin/env bash
# Download an official checkpoint and export it into the volume /models. This runs in the Dockerfile's image `export`.
set -euo pipefail

usage() {
    cat <<'HELP'
usage: container_setup.sh FAMILY SIZE [options of `triton-sam setup`]

Copies the config.pbtxt files and the small default model into an empty model repository, then runs `triton-sam setup
FAMILY SIZE`. When an earlier run has done this and its models still exist, the script does nothing, so that it can be an
init container.

  TRITON_SAM_REPOSITORY   model repository to fill (default: /models)
  TRITON_SAM_SEED         model repository to copy from (default: the one of this image)
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

# Several pods may share the volume and start simultaneously. One does the work while the others wait.
if command -v flock >/dev/null 2>&1; then
    exec 9>"$repository/.triton-sam-lock"
    flock 9
fi
for folder in "$seed"/*/; do
    name=$(basename "$folder")
    [[ -e $repository/$name/config.pbtxt ]] && continue
    # Copy to another name first, so that an interrupted copy is repeated.
    copy=$repository/.seed-$name
    rm -rf "$copy"
    cp -r "${folder%/}" "$copy"
    if [[ -d $repository/$name ]]; then # a folder without a configuration, for example with weights alone
        mv "$copy/config.pbtxt" "$copy.pbtxt"
        cp -r "$copy/." "$repository/$name/"
        mv "$copy.pbtxt" "$repository/$name/config.pbtxt" # last, because it marks a complete copy
        rm -rf "$copy"
    else
        mv "$copy" "$repository/$name"
    fi
done

# An init container runs at every start of a pod. Each line of this file is a finished setup: its arguments and models.
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
    echo "container_setup.sh: $repository holds $* already"
    exit 0
fi
started=$repository/.triton-sam-started # in the volume, whose file server may have another clock
trap 'rm -f "$started"' EXIT
: >"$started"
sleep 0.1 # file times have a resolution of some milliseconds, so that new files are newer than $started
if command -v triton-sam >/dev/null 2>&1; then
    triton-sam setup "$@"
else
    "${PYTHON:-python3}" -m triton_sam setup "$@"
fi
written=$(cd -- "$repository" && find . -name '*.onnx' -newer "${started##*/}" | sort | tr '\n' '\t')
# These files replace those of earlier setups, whose lines are therefore removed.
kept=$done_before.new
while IFS=$'\t' read -r arguments list; do
    replaced=0
    IFS=$'\t' read -ra models <<<"$list"
    for model in "${models[@]}"; do
        [[ $'\t'$written == *$'\t'"$model"$'\t'* ]] && replaced=1
    done
    [[ $arguments == "$*" || $replaced == 1 ]] || printf '%s\t%s\n' "$arguments" "$list"
done < <(cat "$done_before" 2>/dev/null) >"$kept"
printf '%s\t%s\n' "$*" "$written" >>"$kept"
mv "$kept" "$done_before"

#!/usr/bin/env bash
# Send an image and a prompt with curl, and print the mask.
set -euo pipefail

usage() {
    cat <<'HELP'
usage: scripts/infer_example.sh HOST PORT IMAGE_B64_OR_FILE PROMPT_JSON

Posts an image (a file, or base64 text) and a prompt to /v2/models/sam2/infer and prints the result_json of the answer:
{"mask": {"data": base64 PNG, "width", "height", "score"}, "masks": [...], "image_id", "image_size", "timings"}, or
{"error": {"code", "message"}} with exit status 1. Example:

  scripts/infer_example.sh localhost 8000 test/images/shapes.jpg '{"points": [[200, 180]], "labels": [1]}'

PROMPT_JSON: {"points": [[x, y], ...], "labels": [1 or 0, ...], "boxes": [[x1, y1, x2, y2], ...], "multimask": true,
"rle": true}, where each key is optional. Instead of an image, you may pass "" and the {"image_id": ...} of an earlier
answer.

  MODEL          the model to call (default: sam2)
HELP
}

case "${1:-}" in
    -h | --help)
        usage
        exit 0
        ;;
esac
if [[ $# -ne 4 ]]; then
    usage >&2
    exit 2
fi
url=http://$1:$2/v2/models/${MODEL:-sam2}/infer

# Python writes and reads the JSON. The body goes through a pipe, because an image is too long for a command line.
export IMAGE=$3 PROMPT=$4
body() {
    python3 -c '
import base64, json, os, sys
image, prompt = os.environ["IMAGE"], os.environ["PROMPT"]
if len(image) < 4096 and os.path.isfile(image):
    with open(image, "rb") as file:
        image = base64.b64encode(file.read()).decode()
try:
    base64.b64decode("".join(image.split()), validate=True)
except ValueError:
    sys.exit(f"infer_example.sh: {image[:200]} is neither a file nor base64 text")
inputs = {"prompt_json": prompt, **({"image_b64": image} if image else {})}
tensors = [{"name": name, "shape": [1], "datatype": "BYTES", "data": [text]} for name, text in inputs.items()]
print(json.dumps({"inputs": tensors, "outputs": [{"name": "result_json"}]}))'
}
request=$(body)
printf '%s' "$request" |
    curl --silent --show-error --max-time 300 --header "Content-Type: application/json" --data-binary @- "$url" |
    python3 -c '
import json, sys
text = sys.stdin.read()
if not text:
    sys.exit(1)  # curl has printed the reason
try:
    answer = json.loads(text)
except ValueError:
    sys.exit("infer_example.sh: this answer is not from Triton: " + " ".join(text.split())[:200])
if not isinstance(answer, dict) or "outputs" not in answer:
    sys.exit("infer_example.sh: " + str(answer.get("error", answer) if isinstance(answer, dict) else answer))
result = answer["outputs"][0]["data"][0]
print(result)
sys.exit("error" in json.loads(result))'

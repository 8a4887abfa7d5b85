#!/usr/bin/env bash
# Send an image and a prompt with curl, print the answer, and write the mask to a file.
set -euo pipefail

usage() {
    cat <<'HELP'
usage: scripts/infer_example.sh [HOST [PORT [IMAGE_B64_OR_FILE PROMPT_JSON]]]

Posts an image (a file, or base64 text) and a prompt to /v2/models/sam2/infer, prints the result_json of the answer, and
writes its mask to a PNG file. Without arguments, it segments the ball in test/images/shapes.jpg on localhost, port 8000,
like this command:

  scripts/infer_example.sh localhost 8000 test/images/shapes.jpg '{"points": [[200, 180]], "labels": [1]}'

PROMPT_JSON: {"points": [[x, y], ...], "labels": [1 or 0, ...], "boxes": [[x1, y1, x2, y2], ...], "multimask": true,
"rle": true}, where each key is optional. Without points and boxes, the server encodes the image, and there is no mask.
Instead of an image, you may pass "" and the {"image_id": ...} of an earlier answer.

result_json is {"mask": {"data": base64 PNG, "width", "height", "score"}, "masks": [...], "image_id", "image_size",
"timings"}, or, if the server refuses the request, {"error": {"code", "message"}}: then the script also prints the error,
writes no file, and exits with status 1.

  OUT            file for the mask (default: test/output/mask.png of this project)
  MODEL          the model to call (default: sam2)
HELP
}

case "${1:-}" in
    -h | --help)
        usage
        exit 0
        ;;
esac
if [[ $# -gt 4 || $# -eq 3 ]]; then
    usage >&2
    exit 2
fi
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
model=http://${1:-localhost}:${2:-8000}/v2/models/${MODEL:-sam2}
image=${3-$root/test/images/shapes.jpg}
prompt=${4-'{"points": [[200, 180]], "labels": [1]}'}
export OUT=${OUT:-$root/test/output/mask.png}

# Print the shape of the model's inputs, from its configuration. A model with batches, as in this project's first
# version, has one more dimension. Without an answer, the shape is [1], as in our session models.
shape() {
    curl --silent --max-time 10 "$model/config" 2>/dev/null | python3 -c '
import json, sys
config = json.load(sys.stdin)
(dims,) = (tensor["dims"] for tensor in config["input"] if tensor["name"] == "prompt_json")
print([1] * (len(dims) + bool(config.get("max_batch_size"))))' 2>/dev/null || echo '[1]'
}
SHAPE=$(shape)
export SHAPE

# Python writes and reads the JSON. The image is piped, because it may be too long for a command line.
body() {
    printf '%s\n%s' "${prompt//$'\n'/ }" "$image" | python3 -c '
import base64, json, os, sys
prompt, image = sys.stdin.readline().rstrip("\n"), sys.stdin.read()
if len(image) < 4096 and os.path.isfile(image):
    with open(image, "rb") as file:
        image = base64.b64encode(file.read()).decode()
try:
    base64.b64decode("".join(image.split()), validate=True)
except ValueError:
    sys.exit(f"infer_example.sh: {image[:200]} is neither a file nor base64 text")
inputs = {"prompt_json": prompt, **({"image_b64": image} if image else {})}
shape = json.loads(os.environ["SHAPE"])
tensors = [{"name": name, "shape": shape, "datatype": "BYTES", "data": [text]} for name, text in inputs.items()]
print(json.dumps({"inputs": tensors, "outputs": [{"name": "result_json"}]}))'
}
request=$(body)
printf '%s' "$request" |
    curl --silent --show-error --max-time 300 --header "Content-Type: application/json" --data-binary @- "$model/infer" |
    python3 -c '
import base64, json, os, sys
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
print(result, flush=True)
result = json.loads(result)
if "error" in result:
    error = result["error"]
    sys.exit("infer_example.sh: " + error["code"] + ": " + error["message"])
if result["mask"] is None:
    sys.exit(0)  # the image was encoded, and there was no prompt
path = os.environ["OUT"]
try:
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with open(path, "wb") as file:
        file.write(base64.b64decode(result["mask"]["data"]))
except OSError as error:
    sys.exit(f"infer_example.sh: cannot write {path}: {error.strerror}")
score = result["mask"]["score"]
print(f"infer_example.sh: mask with score {score:.2f} written to {path}", file=sys.stderr)'

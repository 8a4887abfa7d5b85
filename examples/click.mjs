// Upload an image to Triton and segment the object at a point, without packages (Node 18 or newer):
//
//   node examples/click.mjs http://localhost:8000 photo.jpg 200 180 mask.png
import { readFile, writeFile } from "node:fs/promises";
import { pathToFileURL } from "node:url";

export class Sam {
  constructor(url, model = "sam2") {
    this.endpoint = `${url}/v2/models/${model}/infer`;
  }

  /** Upload the bytes of an image file. The server encodes it and returns its id. */
  async setImage(file) {
    this.file = file;
    const answer = await this.infer([], ["image_id", "image_size"], file);
    [this.imageId] = answer.image_id;
    return answer.image_size; // width, height
  }

  /** Return the mask (bytes of a PNG) and the score of the object at points [[x, y], ...], labelled 1 or 0. */
  async click(points, labels) {
    const prompt = [
      { name: "point_coords", datatype: "FP32", shape: [1, points.length, 2], data: points.flat() },
      { name: "point_labels", datatype: "FP32", shape: [1, labels.length], data: labels },
      { name: "output_format", datatype: "BYTES", shape: [1], data: ["png"] },
    ];
    const id = { name: "image_id", datatype: "BYTES", shape: [1], data: [this.imageId] };
    const outputs = ["encoded_masks", "iou_predictions"];
    const answer = await this.infer([id, ...prompt], outputs).catch((error) => {
      if (!error.message.includes("UNKNOWN_IMAGE_ID")) throw error;
      return this.infer(prompt, outputs, this.file); // the server lost the image: send it with the prompt
    });
    return { mask: answer.encoded_masks[0], score: answer.iou_predictions[0] };
  }

  /** Call the model; `file` goes behind the JSON as the binary input `image`. */
  async infer(inputs, names, file) {
    const outputs = names.map((name) => ({ name, parameters: { binary_data: name === "encoded_masks" } }));
    const binary = file ? lengthPrefixed(file) : new Uint8Array();
    const image = { name: "image", datatype: "BYTES", shape: [1], parameters: { binary_data_size: binary.length } };
    const head = new TextEncoder().encode(JSON.stringify({ inputs: file ? [image, ...inputs] : inputs, outputs }));
    const headers = { "Inference-Header-Content-Length": `${head.length}` };
    const response = await fetch(this.endpoint, { method: "POST", headers, body: new Blob([head, binary]) });
    const body = new Uint8Array(await response.arrayBuffer());
    const size = Number(response.headers.get("Inference-Header-Content-Length") ?? body.length);
    const answer = JSON.parse(new TextDecoder().decode(body.subarray(0, size)));
    if (!response.ok) throw new Error(answer.error);

    let start = size;
    const tensors = answer.outputs.map(({ name, data, parameters }) => {
      if (data) return [name, data];
      const part = body.subarray(start, (start += parameters.binary_data_size));
      return [name, byteStrings(part)]; // encoded_masks is the only binary output requested
    });
    return Object.fromEntries(tensors);
  }
}

/** BYTES on the wire: each element is its length (4 bytes, little-endian) and its bytes. */
function lengthPrefixed(bytes) {
  const result = new Uint8Array(4 + bytes.length);
  new DataView(result.buffer).setUint32(0, bytes.length, true);
  result.set(bytes, 4);
  return result;
}

function byteStrings(part) {
  const view = new DataView(part.buffer, part.byteOffset, part.byteLength);
  const elements = [];
  for (let at = 0; at < part.length; ) {
    const length = view.getUint32(at, true);
    elements.push(part.subarray(at + 4, at + 4 + length));
    at += 4 + length;
  }
  return elements;
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) {
  const [url, path, x, y, out] = process.argv.slice(2);
  if (!out) {
    console.error("usage: node click.mjs URL IMAGE X Y OUT.png");
    process.exit(2);
  }
  const sam = new Sam(url);
  await sam.setImage(await readFile(path));
  const { mask, score } = await sam.click([[Number(x), Number(y)]], [1]);
  await writeFile(out, mask);
  console.log(`score ${score.toFixed(3)}: ${out}`);
}

"""Modules of the page that read and write files and streams, against Python."""

import base64
import io
import json
import zipfile

import numpy as np
from support.contents import zipped
from support.tools import filled_each

from triton_sam.masks.rle import mask_to_rle

BYTES = """const bytesOf = (text) => Uint8Array.from(atob(text), (each) => each.charCodeAt(0));
  const textOf = async (blob) => {
    const bytes = new Uint8Array(await blob.arrayBuffer());
    return btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
  };"""
UNZIP = f"""async (text, {{ unzip }}) => {{ {BYTES}
  try {{
    const files = await unzip(new Blob([bytesOf(text)]));
    return Object.fromEntries(await Promise.all([...files].map(async ([name, blob]) => [name, await textOf(blob)])));
  }} catch (problem) {{
    return problem.message;
  }} }}"""
READ_COCO = """(text, { readCoco }) => {
  try { return readCoco(text); } catch (problem) { return problem.message; } }"""
NAMES = ("a.jpg", "images/1/grün.png", "数.txt", "x" * 300, "project.json", "empty", "deep/er/b")


def text_of(content):
    return base64.b64encode(content).decode()


def drawn_files(seed, count=40):
    """Return names and contents of files, some of them empty."""
    rng = np.random.default_rng(seed)
    chosen = [rng.permutation(NAMES)[: rng.integers(0, len(NAMES))] for _ in range(count)]
    return [{str(name): rng.bytes(int(10 ** rng.uniform(-0.5, 4))) for name in names} for names in chosen]


def test_python_reads_the_zip_files_of_the_page_and_the_page_those_of_python(modules):
    source = f"""async (files, {{ zip }}) => {{ {BYTES}
      return textOf(await zip(files.map(([name, text]) => ({{ name, content: bytesOf(text) }})))); }}"""
    drawn = drawn_files(1)
    texts = [[[name, text_of(content)] for name, content in files.items()] for files in drawn]
    for text, files in zip(modules.run("zip", source, texts), drawn, strict=True):
        with zipfile.ZipFile(io.BytesIO(base64.b64decode(text))) as archive:
            assert archive.testzip() is None
            assert {name: archive.read(name) for name in archive.namelist()} == files
            assert archive.namelist() == list(files)
    found = modules.run("zip", UNZIP, [text_of(zipped(files)) for files in drawn if files])
    assert found == [dict(each) for each in texts if each]


def test_a_project_may_be_larger_than_what_a_browser_reads_at_once(modules):
    """Chromium reads at most 2 GB of a file; here it is 1500 bytes."""
    source = f"""async (text, all) => {{
      const plain = Blob.prototype.arrayBuffer;
      Blob.prototype.arrayBuffer = async function () {{
        if (this.size > 1500) throw new DOMException("The file could not be read", "NotReadableError");
        return plain.call(this);
      }};
      try {{ return await ({UNZIP})(text, all); }} finally {{ Blob.prototype.arrayBuffer = plain; }} }}"""
    files = {str(number): bytes([number]) * 1000 for number in range(4)}
    [found] = modules.run("zip", source, [text_of(zipped(files))])
    assert found == {name: text_of(content) for name, content in files.items()}


def test_damaged_and_packed_zip_files_are_refused(modules):
    """A changed byte of a content, a missing end and a compressed file are errors, and none gives other contents."""
    rng = np.random.default_rng(2)
    damaged = []
    for files in drawn_files(2):
        content = zipped({**files, "last": b"something to damage"})
        start = content.rindex(b"something to damage")
        place, end = start + int(rng.integers(0, 19)), int(rng.integers(0, start + 19))
        damaged.append(content[:place] + bytes([content[place] ^ 1 << int(rng.integers(0, 8))]) + content[place + 1 :])
        damaged.append(content[:end])
    damaged += [zipped({"a": bytes(1000)}, zipfile.ZIP_DEFLATED), b"", b"no ZIP at all" * 9]
    for found in modules.run("zip", UNZIP, list(map(text_of, damaged))):
        assert isinstance(found, str)
        assert found.startswith(("the file is damaged", "not a ZIP file"))


def test_coco_files_are_read_in_all_three_forms(modules):
    """Masks as text, as lists and as polygons; annotations without a pixel are left out."""
    rng = np.random.default_rng(4)
    texts, expected = [], []
    for _ in range(40):
        height, width = (int(value) for value in rng.integers(1, 40, 2))
        images = [{"id": 7, "file_name": "a/b\\c.png", "width": width, "height": height}]
        images.append({"id": 9, "file_name": "none.png", "width": 1, "height": 1})
        annotations, objects = [], []
        for number in range(int(rng.integers(0, 6))):
            mask = rng.random((height, width)) < rng.choice([0, 0.1, 0.5, 1])
            form = int(rng.integers(0, 3))
            if form == 2:
                rings = [rng.uniform(-2, 42, (int(rng.integers(3, 6)), 2)).round(2) for _ in range(rng.integers(1, 3))]
                mask = filled_each(rings, (height, width))
            segmentation = [ring.ravel().tolist() for ring in rings] if form == 2 else mask_to_rle(mask, form == 0)
            members = {"name": f"object {number}", "category_id": int(rng.integers(1, 3))}
            members |= {"score": 0.25} if number % 2 else {}
            annotations.append({"image_id": 7, "segmentation": segmentation, **members})
            if mask.any():
                label = ["dog" * 20, ""][members["category_id"] - 1]
                fact = {"label": label, "name": members["name"], "rle": mask_to_rle(mask), "area": int(mask.sum())}
                rows, columns = np.nonzero(mask)
                low, high = (columns.min(), rows.min()), (columns.max() + 1, rows.max() + 1)
                box = [int(low[0]), int(low[1]), int(high[0] - low[0]), int(high[1] - low[1])]
                objects.append({**fact, "bbox": box, "score": members.get("score", 1)})
        categories = [{"id": 1, "name": "dog" * 21}]  # the service accepts 60 characters
        texts.append(json.dumps({"images": images, "annotations": annotations, "categories": categories}))
        expected.append([["a/b/c.png", objects], ["none.png", []]])
    assert modules.run("coco", READ_COCO, texts) == expected


def annotated(segmentation, image=1):
    image_facts = {"id": 1, "file_name": "shapes.jpg", "width": 8, "height": 6}
    return json.dumps({"images": [image_facts], "annotations": [{"image_id": image, "segmentation": segmentation}]})


def test_files_that_are_no_coco_are_refused_with_their_fault(modules):
    cases = {
        "nothing": "the file is not valid JSON",
        '{"images": 1}': "the file is not a COCO data set: it needs images and annotations",
        "null": "the file is not a COCO data set: it needs images and annotations",
        annotated([], 2): "annotation 1: its image_id is unknown",
        annotated({"size": [6, 8]}): "annotation 1: its mask has no run lengths",
        annotated(
            {"size": [8, 6], "counts": [48]}
        ): "annotation 1: its mask is missing, or has another size than the image",
        annotated({"counts": [48]}): "annotation 1: its mask is missing, or has another size than the image",
        annotated({"size": [6, 8], "counts": [47]}): "annotation 1: its run lengths are damaged",
        annotated({"size": [6, 8], "counts": [50, -2]}): "annotation 1: its run lengths are damaged",
        annotated({"size": [6, 8], "counts": "00"}): "annotation 1: its run lengths are damaged",
    }
    assert modules.run("coco", READ_COCO, list(cases)) == list(cases.values())


def test_events_of_the_service_are_read_however_they_are_cut(modules):
    """A chunk may end in the middle of an event or of a character, and nothing is read after the event "done"."""
    rng = np.random.default_rng(5)
    inputs, expected = [], []
    for _ in range(80):
        events = [
            (str(rng.choice(["object", "progress"])), {"text": "grün 数", "n": n}) for n in range(rng.integers(0, 5))
        ]
        ending = str(rng.choice(["done", "error", "broken"]))
        blocks = [": a comment"]
        for name, data in events:
            blocks += [f"event: {name}\ndata: {json.dumps(data, ensure_ascii=False)}", ": still alive"]
        if ending != "broken":
            data = {"detail": "the GPU is gone", "status": 502, "code": "triton"}
            blocks += [f"event: {ending}\ndata: {json.dumps(data)}", 'event: object\ndata: {"late": 1}']
        content = "".join(f"{block}\n\n" for block in blocks).encode()
        cuts = sorted(rng.integers(0, len(content), rng.integers(0, 9)).tolist())
        inputs.append([text_of(content[a:b]) for a, b in zip([0, *cuts], [*cuts, None], strict=True)])
        heard = [[name, data] for name, data in events] + ([["done", data]] if ending == "done" else [])
        ends = {"done": None, "error": [502, "the GPU is gone"], "broken": [0, "the connection to the service broke"]}
        expected.append([heard, ends[ending]])
    source = f"""async (chunks, {{ hear }}) => {{ {BYTES}
      const body = new ReadableStream({{ start(stream) {{
        for (const chunk of chunks) stream.enqueue(bytesOf(chunk));
        stream.close();
      }} }});
      const heard = [];
      try {{
        await hear({{ body }}, (name, data) => heard.push([name, data]));
        return [heard, null];
      }} catch (problem) {{
        return [heard, [problem.status, problem.message]];
      }} }}"""
    assert modules.run("rest", source, inputs) == expected


def test_a_file_holds_the_masks_of_its_image_though_another_one_opens_meanwhile(modules):
    """Objects of the next image have the same numbers. An object with an empty mask is left out."""
    source = """async (rles, { saveCoco }) => {
      const { fetch } = globalThis, { createObjectURL } = URL, { click } = HTMLAnchorElement.prototype;
      let [shown, saved] = [0, null];
      HTMLAnchorElement.prototype.click = () => {};
      URL.createObjectURL = (blob) => ((saved = blob), "");
      globalThis.fetch = async () => ((shown = 1), Response.json({ masks: [{ score: 1, area: 1, rle: rles[2] }] }));
      const objects = [null, 1, 2].map((found) => ({ name: "cell", points: [], box: null, found }));
      const resultOf = ({ found }) => ({ found: found && { score: 1, area: 2 - found, rle: rles[shown] } });
      await saveCoco({ name: "a" }, { drawn: objects, resultOf, optionsOf: () => ({}) }, {});
      Object.assign(globalThis, { fetch });
      Object.assign(URL, { createObjectURL });
      Object.assign(HTMLAnchorElement.prototype, { click });
      return JSON.parse(await saved.text()).annotations.map(({ segmentation }) => segmentation); }"""
    rles = ["of this image", "of the next image", "of the click"]
    assert modules.run("saves", source, [rles]) == [["of the click", "of this image"]]

"""One table of mistakes: each is one line on standard error, an exit code, and no request, file or trace of it.

Nothing listens at the URL that the commands find in the environment: an error that a command finds only after it has
asked a server would be another one. Tables are by command. A check that several commands share is in one of them.
"""

import shlex
import sys

import numpy as np
import pytest
from PIL import Image
from support.annotated import write_data_set
from support.commands import copy_committed
from support.contents import files_below
from support.tracked import write_clip

from triton_sam._common.bundle import bundled
from triton_sam.cli import main

NOWHERE = "127.0.0.1:9"
CHECKPOINT = bundled("checkpoints") / "sam2.1_hiera_micro.pt"
PREDICT = [
    # the image
    ("predict absent.jpg --point 1,1", "no image at"),
    ("predict empty.jpg --point 1,1", "0 bytes"),
    ("predict page.jpg --point 1,1", "not an image"),
    # prompts
    ("predict photo.png", "the prompt is missing: give --point X,Y, --box X1,Y1,X2,Y2 or --text"),
    ("predict photo.png --point=-5,-5", "point (-5, -5) lies outside the image"),
    ("predict photo.png --point nan,1", "NaN"),
    ("predict photo.png --box 30,30,10,10", "swapped corners"),
    ("predict photo.png --box 0,0,9,9 --box 9,9,20,20 --point 1,1", "several boxes"),
    ("predict photo.png --point 1,1 --clip-to-box", "--clip-to-box is for --box"),
    ("predict photo.png --box 0,0,9,9 --keep-clicked", "--keep-clicked is for --point"),
    # files
    ("predict photo.png --point 1,1 --out no/mask.png", "there is no folder"),
    ("predict photo.png --point 1,1 --overlay no/mask.png", "there is no folder"),
    ("predict photo.png --point 1,1 --out .", "it is a folder"),
    ("predict photo.png --point 1,1 --out mask.png --overlay clip/../mask.png", "both write"),
    ("predict photo.png --box 0,0,9,9 --box 9,9,20,20 --out mask.png --overlay mask_1.png", "both write"),
    ("predict photo.png --point 1,1 --out mask.jpg", "must end in one of .png, .json, .geojson"),
    ("predict photo.png --point 1,1 --out mask.png --format coco", "must end in .json with --format coco"),
    ("predict photo.png --point 1,1 --overlay drawn.jpg", "--overlay"),
    ("predict photo.png --point 1,1 --logits logits.png", "must end in .npy"),
    ("predict photo.png --point 1,1 --format rle", "--format is for --out"),
    ("predict photo.png --point 1,1 --mask-threshold 99", "mask_threshold must be a number within -32..32"),
    ("predict photo.png --point 1,1 --out - --json", "both write to standard output"),
    ("predict photo.png small.png --point 1,1 --out -", "--out - takes one file, not 2"),
    ("predict photo.png --point 1,1 --out - --all-candidates", "--out - takes one file, not 3"),
    ("predict photo.png photo.png --point 1,1", "is named twice"),
    ("predict *.gif --point 1,1", "no file fits this pattern"),
    ("predict photo.png small.png --point 60,40", "small.png: point (60, 40) lies outside"),
    ("predict photo.png --mask-input absent.npy", "No such file"),
    ("predict photo.png --mask-input integers.npy", "mask_input is an empty mask"),
    # the server
    ("predict photo.png --point 1,1 --url ftp://x", "scheme"),
    ("predict photo.png --point 1,1", "triton-sam serve"),
    ("predict photo.png --point 1,1 --local --url x", "give --url or --local, not both"),
    ("predict photo.png --point 1,1 --model-repository models", "--model-repository is for --local"),
]
WORDS = [
    ("predict photo.png --threshold 0.2 --point 1,1", "--threshold is for --text and --example"),
    ("predict photo.png --text bus --point 1,1", "--point cannot be combined with --text and --example"),
    ("predict photo.png --text bus --multimask", "--multimask is for clicks"),
    ("predict photo.png --text bus --keep-clicked", "the clean-up options are for clicks"),
    ("predict photo.png --text bus --model sam2", "sam2 cannot find words: give --model sam3"),
    ("predict photo.png --text bus --example-image x.png", "--example-image needs --example or --example-mask"),
    ("predict photo.png --example-image x.png", "--example-image is for --text and --example"),
    ("predict photo.png --example-mask none.png", "none.png is not an image that can be read as a mask"),
    ("predict photo.png --text ' '", "a text is empty"),
    ("predict photo.png --text bus --limit 0", "limit must be a whole number of at least 1"),
    ("predict photo.png --example 100,100,200,200", "lies outside the image, which has 64 x 48 pixels"),
    ("predict photo.png --not-example 1,1,9,9", "at least one with label 1"),
]
EVERYTHING = [
    ("everything photo.png --overlay a.png --label-image a.png", "or another result: name another file"),
    ("everything photo.png --overlay photo.png", "photo.png is an image of this command"),
    ("everything photo.png --label-image labels.tif", "--label-image labels.tif: the name must end in .png"),
    ("everything *.gif", "no file fits this pattern"),
    ("everything photo.png --coco none/coco.json", "there is no folder"),
    ("everything photo.png --out clip", "it is a folder"),
    ("everything photo.png small.png --overlay none/a.png", "there is no folder"),
]
TRACK = [
    ("track clip --out out --format png", "nothing to track"),
    ("track clip --out out --format png --point 0:1,1 --object 2", "--object 2 has no prompt"),
    ("track clip --out out --format png --point 6:1,1", "there is no frame 6: the video has the frames 0 to 5"),
    ("track clip --out out --format png --point 1:1,1 --every 2", "frame 1 is not tracked with --every 2"),
    ("track clip --out out --format png --point 0:1,1 --every 0", "--every must be at least 1"),
    ("track clip --out out --format png --point 0:1,1 --range 4:4", "no frame to track"),
    ("track clip --out out --format png --point 0:1,1 --quality 0", "--quality must be 1 to 100, not 0: leave it out"),
    ("track clip --out out --format png --object 300 --point 0:1,1", "object ids up to 255"),
    ("track clip --out out --format png --box 0:1,1,5,5 --box 0:2,2,6,6", "one box or one mask"),
    ("track clip --out out --format png --mask 0:none.png", "the mask none.png cannot be read"),
    ("track clip --out out --format png --prompts none.json", "none.json cannot be read: No such file or directory"),
    ("track clip --out out --format png --prompts none.json --point 0:1,1", "not both"),
    ("track clip --out out --format png --prompts object.json", "object.json"),
    ("track clip --out out --format png --prompts dots.json", "dots.json"),
    # words
    ("track clip --out out --format rle --text bus --point 0:1,1", "give --text or prompts of objects, not both"),
    ("track clip --out out --format rle --text-every 2 --point 0:1,1", "--text-every is for --text"),
    ("track clip --out out --format rle --text bus --reverse", "leave --reverse out"),
    ("track clip --out out --format rle --text bus --threshold 7", "threshold"),
    (
        "track clip --out out --format rle --text bus --text-every 3 --every 2",
        "must be a multiple of --every (2), not 3",
    ),
    ("track clip --out out --format rle --text bus --text-every 0", "--text-every must be at least 1, not 0"),
    (
        "track clip --out out --format rle --text bus --range 9:",
        "there is no frame to search from frame 9 on: the video",
    ),
    ("track clip --out out --format rle --text bus --range 2:1", "from frame 2 to 1: the video has the frames 0 to 5"),
]
ANNOTATE = [
    ("annotate set/boxes.json --out out --with boxes --limit 0", "--limit must be at least 1"),
    ("annotate set/boxes.json --out out --with boxes --threads 0", "--threads must be at least 1"),
    (
        "annotate set/boxes.json --out out --with boxes --points-per-side 8",
        "--points-per-side is for --with everything",
    ),
    ("annotate set/boxes.json --out out --with boxes --prompts gone.json", "gone.json cannot be read"),
    ("annotate set/boxes.json --out out --with boxes --url a --local", "--url or --local, not both"),
    ("annotate set/boxes.json --out out --with masks --model sam3", "sam3 takes no mask"),
    ("annotate set --out out --with everything --prompts a.json", "--prompts is for --with boxes, points and masks"),
    *(
        (f"annotate set/boxes.json --out out --with {more} --class-names cat", "--class-names is for --with boxes")
        for more in ("boxes", "masks", "boxes --prompts set/boxes.json")
    ),
    ("annotate set --out out --with everything --points-per-side 0", "points_per_side"),
    *((f"annotate set --out out --with {task}", "--prompts FILE") for task in ("points", "boxes", "masks")),
    ("annotate page.mp4 --out out --with everything", "cannot be opened as a video"),
    ("annotate set --out out --with everything --images set", "--images is for a list (.txt) or a COCO data set"),
    ("annotate set --out out --with boxes --prompts images.json", "the COCO file has no annotations"),
    ("annotate set --out out --with everything --level 1", "are for --large"),
    ("annotate set --out out --with everything --format gpkg", "--format gpkg is for --large"),
    ("annotate set --out out --with everything --address auto", "--address is for --engine ray"),
    ("annotate set --out out --with everything --actors 4", "--actors is for --engine ray"),
    ("annotate set --out out --with everything --engine ray --part 0/2", "--part or --engine ray"),
    ("annotate set --out out --with everything --engine ray --actors 0", "--actors must be at least 1"),
    # words
    ("annotate set --out out --with words", "--with words needs --text"),
    ("annotate set/boxes.json --out out --with boxes --text bus", "--text is for --with words"),
    ("annotate set/boxes.json --out out --with boxes --nms 0.5", "--threshold, --nms and --max-instances are for"),
    ("annotate set --out out --with words --text bus --text bus", "a --text is given twice"),
    ("annotate set --out out --with words --text bus --model sam2", "sam2 cannot find words: give --model sam3"),
]
LARGE = [
    ("large slide.tif", "give --point or --box, or `triton-sam large everything`"),
    ("large slide.tif --point 1,1 --map", "is not georeferenced"),
    ("large slide.tif --point 9999,1", "9999, 1 lies outside the image, which has 300 x 220 pixels"),
    ("large slide.tif --point 5,5 --view 50,50,90,90", "5, 5 lies outside the view 50, 50, 90, 90"),
    ("large slide.tif --point 5,5 --view nan,0,5,5", "--view holds NaN or infinity: give finite numbers"),
    ("large slide.tif -q --everything --tile 10", "tile must be at least 64 pixels, not 10"),
    ("large slide.tif -q --everything --overlap 900", "overlap must be 0 to 512 pixels, half a tile of 1024, not 900"),
    ("large slide.tif -q --everything --level 7", "level must be 0, the only one of slide.tif, not 7"),
    ("large slide.tif --point 1,1 --overlay gone/a.png", "cannot write gone/a.png: there is no folder gone"),
    ("large slide.tif --everything --out clip", "cannot write clip: it is a folder"),
    ("large slide.tif --point 1,1 --out slide.tif", "slide.tif is an image of this command"),
    ("large slide.tif --point 1,1 --overlay slide.tif", "--overlay slide.tif: the name must end in .png"),
    ("large slide.tif --point 1,1 --channels 7", "slide.tif has 3 channels, 0 to 2, and --channels names 7"),
    ("large slide.tif --point 1,1 --index C=2", "give --channels 2 for a channel"),
    ("large photo.png --point 3,4", "photo.png cannot be read as a large image: give a TIFF file"),
    ("large photo.png --point 3,4", "use `triton-sam predict`"),
    ("large clip --point 1,1", "clip is a folder, but not one of an OME-Zarr image: give a TIFF file"),
    ("large gone.tif --point 1,1", "gone.tif: there is no such file"),
    ("annotate slide.tif --large --out out --with masks", "--large is for --with boxes, points, everything and words"),
    ("annotate slide.tif --large --out out --with everything --format coco", "--format coco is not for --large: use"),
    ("annotate slide.tif --large --out out --with everything --tile 10", "--tile must be at least 64"),
    ("annotate slide.tif --large --out out --with everything --overlap 600", "--overlap must be 0 to 512"),
    ("annotate slide.tif --large --out out --with everything --level -1", "--level must be at least 0"),
    ("annotate slide.tif --large --out out --with everything --level 9", "slide.tif: there is no level 9"),
]
VERIFY = [
    ("verify image sam2 --checkpoint no_such_hiera_tiny.pt", "no checkpoint at"),
    ("verify sam2 --random --size micro --url 127.0.0.1:9", "nothing answers at http://127.0.0.1:9"),
    (f"verify sam2 --checkpoint {CHECKPOINT} --name nope --exported set", "no weights for nope"),
    (f"verify sam2 --checkpoint {CHECKPOINT} --name nope --local", "give --exported or --url"),
    ("verify sam3 --checkpoint x.pt --size tiny", "--size is for --random"),
    ("verify sam3 --checkpoint x.pt --full", "--full is for --random"),
    ("verify sam3 --random --model-cfg x.yaml --size tiny", "--size, --full and --model-cfg say the same"),
    ("verify words sam3 --random --name x", "--name is for models that exist already"),
    ("verify video sam2 --random --frames 3", "at least 4 frames"),
    ("verify video-words sam3 --random --frames 1", "there must be 2 frames"),
    ("verify everything sam2 --random --points-per-side 0", "must be at least 1"),
    ("verify sam3 --checkpoint x.pt --seed 0", "--seed is for --random"),
    ("verify openvino sam2 --size tiny", "--size is for a fresh export"),
    ("verify openvino sam2 --random --exported .", "--exported and --name are for models that exist"),
]
MODELS = [
    ("config", "nothing to set"),
    ("config nope --gpus 0", "no nope_encoder"),
    ("config --no-tf32", "give --accelerator cuda"),
    ("config --gpu-memory-limit 5", "give --accelerator cuda"),
    ("config --max-points 5", "give --decoder-accelerator tensorrt"),
    ("config --max-prompts 5 --accelerator tensorrt", "give --decoder-accelerator tensorrt"),
    ("config --max-images 5 --accelerator cuda", "give --accelerator tensorrt"),
    ("config --engine-cache /x --gpus 0", "give --accelerator or --decoder-accelerator tensorrt"),
    ("config --precision bf16", "give --accelerator openvino"),
    ("config --accelerator openvino --no-tf32", "give --accelerator cuda"),
    ("config --accelerator openvino --gpus 0", "for CPUs"),
    ("config --decoder-in-session --accelerator cuda", "--decoder-in-session is for CPUs"),
    ("config --decoder-in-session --gpus 0", "--decoder-in-session is for CPUs"),
    ("alias add ../evil sam2", "is not a valid model name"),
    ("download sam2 tiny", "--model-repository is for SAM3's ONNX files"),
    ("download sam3 checkpoint", "--model-repository is for SAM3's ONNX files"),
    ("setup sam1 --standard-operators", "is for sam2, not for sam1"),
    ("setup sam1 --checkpoint x.pt --mirror http://x", "--mirror is for official files"),
    ("setup sam1 --checkpoint x.pt --directory x", "--directory is for downloads"),
    ("models --model-repository no/such", "no/such"),
    ("models --catalogue --url x", "--catalogue lists what can be downloaded"),
    ("service --model-repository models", "--model-repository is for --local"),
]
HUB = [
    ("download sam3 tiny", "'tiny': one of fp32, fp16, checkpoint"),
    ("setup sam3 fp32 --precision fp16", "sam3 fp32 with --precision fp16: give only one of them"),
    ("setup sam3 --directory x", "--directory is for checkpoints"),
    ("download sam3 --directory x", "--directory is for checkpoints"),
    ("setup sam3 --precision int8", "fp32, fp16"),
    ("setup sam3 --trace", "--trace is for checkpoints"),
    ("setup sam2 --concepts", "sam2 has no models for words: leave --concepts out"),
    ("setup sam3 fp16 --concepts", "--concepts needs the checkpoint: triton-sam setup sam3 --concepts"),
    ("setup sam3 fp16 --video", "--video needs the checkpoint: triton-sam setup sam3 --video"),
    ("setup sam3 --text-encoder lite", "--text-encoder changes an export, and the published ONNX files need none"),
    ("setup sam3 --concepts --text-encoder lite", "--text-encoder lite: there is no such folder"),
    ("setup sam2 --text-encoder lite", "--text-encoder is for sam3, not for sam2"),
]
MEASUREMENTS = [
    ("benchmark --local --url localhost:1", "not both"),
    ("benchmark --url http://a:1 --url https://b:2", "https://b:2 and http://a:1 use the same protocol"),
    ("benchmark --only nonsense", "'nonsense' is unknown"),
    ("benchmark --compare pytorch", "'pytorch' is unknown"),
    ("benchmark --duration nan", "above 0"),
    ("benchmark --load-duration inf", "finite"),
    ("benchmark --think nan", "at least 0"),
    ("benchmark --only none", "nothing to measure"),
    ("benchmark --image nowhere.jpg", "nowhere.jpg"),
    ("benchmark --weights nowhere.pt", "nowhere.pt"),
    ("benchmark --weights random:huge", "huge"),
    ("benchmark", "nothing answers"),
    ("benchmark --decoder-in-session", "--decoder-in-session is for --local"),
    ("evaluate images --dataset coins --dataset coins", "needs a name of its own"),
    ("evaluate videos --dataset clips --dataset clips", "needs a name of its own"),
    ("evaluate images --dataset clips", "by two commands"),
    ("evaluate --dataset clips --dataset coins", "by two commands"),
    ("demo --url x --model-repository models", "leave it out, or --url"),
    ("demo --out page.jpg", "page.jpg is a file: give a folder"),
    ("doctor --metrics-url nonsense", "not the URL of metrics"),
    ("doctor --metrics-url http://[", "not the URL of metrics"),
]
MISSING = [
    ("ray", "annotate set/boxes.json --out out --with boxes --engine ray", "[ray]"),
    ("pyarrow", "annotate set --out out --with everything --format parquet", "[parquet]"),
    ("contourpy", "annotate set --out out --with everything --format yolo", "[polygons]"),
    ("pyogrio", "annotate slide.tif --large --out out --with everything --format gpkg", "needs the gpkg extra"),
    ("upath", "annotate memory://bucket/photos --out out --with everything", "remote"),
    ("matplotlib", "benchmark --out out", "matplotlib is missing"),
    ("shtab", "completion bash", "completion"),
]
USAGE = [
    ("large slide.tif --point 1,1 --everything", "unrecognized arguments: --point 1,1"),
    ("large everything slide.tif --view 0,0,9,9", "unrecognized arguments: --view 0,0,9,9"),
    ("large slide.tif --point 1,1 --level 1", "unrecognized arguments: --level 1"),
    ("large precompute slide.tif --out x", "unrecognized arguments: --out x"),
    ("evaluate --dataset coins --prompt box", "unrecognized arguments: --prompt box"),
    ("alias nonsense", "invalid choice: 'nonsense'"),
    ("evaluate image", "did you mean images?"),
    ("alias add mine", "the following arguments are required: VARIANT"),
    ("alias x --of sam2 --sam2 sam2", "unrecognized arguments: --sam2 sam2"),
    ("verify sam2", "one of the arguments --checkpoint --random is required"),
    ("verify sam22 --random", "invalid choice: 'sam22'"),
    ("verify vidoe sam2 --random", "argument COMPARISON: invalid choice: 'vidoe'"),
    ("verify sam2 --random --frames 8", "unrecognized arguments: --frames 8"),
    ("verify video sam1 --random", "invalid choice: 'sam1'"),
    ("verify video-words sam2 --random", "invalid choice: 'sam2'"),
    ("verify sam1-everything --random --precision fp16", "invalid choice: 'fp16'"),
    ("predict", "the following arguments are required"),
    ("predict photo.png --point a,b", "argument --point: 'a,b' is not X,Y or X,Y,LABEL"),
    ("predict photo.png --point 1,2,7", "argument --point"),
    ("track clip --out out --point 1,2", "argument --point"),
    ("track clip --out out --point 0:1", "argument --point"),
    ("track clip --out out --range 5", "argument --range"),
    ("track clip --out out --object 0", "argument --object"),
    ("large slide.tif --point 1,1 --channels 0,1", "is not one channel or three"),
    ("annotate set --with everything --out out --stretch=99,1", "argument --stretch: '99,1' is not"),
    ("annotate set --with everything --out out --part=3/3", "is not I/N with I from 0 to N - 1"),
    ("annotate set --with everything --out out --index=Z=-1", "argument --index: 'Z=-1' is not"),
    ("everything photo.png --points-per-side 1.5", "--points-per-side must be a whole number, not '1.5'"),
    ("everything photo.png --pred-iou-thresh=abc", "--pred-iou-thresh must be a number, not 'abc'"),
    # what was probably meant
    ("predct photo.png", "; did you mean predict?"),
    ("predict photo.png --pont 3,4", "error: unrecognized arguments: --pont 3,4; did you mean --point?"),
    ("annotate set --with words --out x --words dog", "; did you mean --text?"),
    ("predict photo.png --point -5,-5", "; write a value that begins with a minus sign as --point=-5,-5"),
]
REPOSITORY = ("config", "alias", "download sam", "setup")
"""Commands that get the repository of the test."""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Return a folder with the files of the tables."""
    folder = tmp_path_factory.mktemp("errors")
    (folder / "empty.jpg").touch()
    for name in ("page.jpg", "page.mp4"):
        (folder / name).write_text("<html>")
    Image.new("RGB", (64, 48)).save(folder / "photo.png")
    Image.new("RGB", (32, 24)).save(folder / "small.png")
    Image.new("RGB", (300, 220)).save(folder / "slide.tif")
    np.save(folder / "integers.npy", np.zeros((256, 256), np.int32))
    write_clip(folder / "clip", 6)
    (folder / "object.json").write_text("{}")
    (folder / "images.json").write_text('{"images": []}')
    (folder / "numbers.json").write_text("[1]")
    (folder / "dots.json").write_text('[{"object_id": 1, "frame": 0, "dots": []}]')
    write_data_set(folder / "set", 1)
    copy_committed(folder / "models", "sam2", "sam2_encoder", "sam2_decoder")
    return folder


@pytest.fixture(autouse=True)
def surroundings(files, monkeypatch):
    monkeypatch.chdir(files)
    monkeypatch.setenv("TRITON_URL", NOWHERE)
    monkeypatch.setenv("HF_ENDPOINT", f"http://{NOWHERE}")
    monkeypatch.setattr("triton_sam.export.registry.export", lambda *_: pytest.fail("it exported"))


def mistakes(rows: list[tuple[str, str]], code: int, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Run commands; return what is wrong with the answers, all at once."""
    wrong = []
    for line, words in rows:
        arguments = shlex.split(line)
        if line.startswith(REPOSITORY):
            arguments += ["--model-repository", "models"]
        try:
            ended = main(arguments)
        except SystemExit as stopped:
            ended = int(stopped.code or 0)
        captured = capsys.readouterr()
        *hint, error = reversed(captured.err.splitlines()) if captured.err else [""]
        is_one_line = hint == ([] if code == 1 else [f"see `{error.partition(': ')[0]} --help`"])
        if (ended, words in error, captured.out, is_one_line) != (code, True, "", True):
            wrong.append(f"{line}: expected {words!r}, got {ended}: {captured.err or captured.out}")
    return wrong


TABLES = [PREDICT, WORDS, EVERYTHING, TRACK, ANNOTATE, VERIFY, MODELS, HUB, MEASUREMENTS]


@pytest.mark.parametrize("rows", TABLES, ids=lambda rows: rows[0][0].partition(" ")[0])
def test_a_mistake_is_one_line_and_leaves_nothing(rows, files, capsys):
    before = files_below(files)
    assert mistakes(rows, 1, capsys) == []
    assert files_below(files) == before


def test_a_mistake_about_a_large_image_is_one_line(files, capsys):
    pytest.importorskip("zarr")
    pytest.importorskip("tifffile")
    assert mistakes(LARGE, 1, capsys) == []


@pytest.mark.parametrize(("package", "line", "words"), MISSING)
def test_a_missing_package_is_named_before_anything_is_done(package, line, words, files, monkeypatch, capsys):
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, "triton_sam.benchmark.plot", raising=False)
    before = files_below(files)
    assert mistakes([(line, words)], 1, capsys) == []
    assert files_below(files) == before


def test_what_cannot_be_parsed_ends_with_2(capsys):
    assert mistakes(USAGE, 2, capsys) == []


def test_no_hint_where_nothing_is_similar(capsys):
    for line in ("predict x.jpg --qqqqqq", "qqqqqq", "predict x.jpg --point", "models one two"):
        with pytest.raises(SystemExit):
            main(line.split())
        error = capsys.readouterr().err
        assert "did you mean" not in error
        assert "minus sign" not in error

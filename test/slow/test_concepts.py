"""Words and example boxes through a real Triton: equal to transformers' Sam3Model, one encode."""

import gc
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.export]
pytest.importorskip("torch")

from PIL import Image  # noqa: E402
from support.conditions import eventually, wait_until  # noqa: E402
from support.family_exports import sam3_concepts, sam3_video_words  # noqa: E402
from support.processes import kill_model  # noqa: E402
from support.session_requests import inferences  # noqa: E402
from support.two_workers import return_free_memory  # noqa: E402
from support.video_graphs import write_video_models  # noqa: E402

from triton_sam import (  # noqa: E402
    SAM2TritonClient,
    SAM2VideoClient,
    VideoRules,
    find_in_video,
    track_words,
)
from triton_sam.cli import main  # noqa: E402
from triton_sam.concepts.instances import without_doubles  # noqa: E402
from triton_sam.export.sam3.reference import Sam3ConceptReference  # noqa: E402
from triton_sam.families import get_family  # noqa: E402
from triton_sam.local_server import LocalServer  # noqa: E402
from triton_sam.sessions.configs import write_programs  # noqa: E402
from triton_sam.verify import format_table  # noqa: E402
from triton_sam.verify.concepts import (  # noqa: E402
    LIMITS,
    ConceptTransport,
    answered_cases,
    verify_concepts,
)
from triton_sam.verify.video import VideoTransport  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
PHOTO = Image.open(ROOT / "test/images/coffee.jpg").convert("RGB")
ALL = {"threshold": 0.0, "limit": 2}


@pytest.fixture(scope="module")
def exported():
    return sam3_concepts()


@pytest.fixture(scope="module")
def words_server(exported, tmp_path_factory):
    repository = shutil.copytree(exported.repository, tmp_path_factory.mktemp("words") / "models")
    write_programs(repository, get_family("sam3"), video=False)
    write_video_models(repository)
    with LocalServer(repository, models=["sam3", "sam2_video"]) as running:
        yield running


@pytest.fixture(scope="module")
def video_server(tmp_path_factory):
    """A server whose tracker is SAM3's, so that it searches the frames of videos itself."""
    repository = shutil.copytree(sam3_video_words().repository, tmp_path_factory.mktemp("video_words") / "models")
    write_programs(repository, get_family("sam3"))
    with LocalServer(repository, models=["sam3"]) as running:
        yield running


@pytest.fixture
def client(words_server):
    with SAM2TritonClient(words_server.grpc_url, "sam3", timeout=300) as made:
        yield made


def noise(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 255, (60, 80, 3), np.uint8)


def computed(client: SAM2TritonClient) -> list[int]:
    """Return the numbers of requests that the encoders of clicks and of words have answered."""
    return [inferences(client._transport, model) for model in ("sam3_encoder", "sam3_concept_encoder")]


def moving(count: int) -> list[np.ndarray]:
    """Return the frames of a clip."""
    return [np.roll(noise(11), 3 * index, axis=1) for index in range(count)]


def test_instances_equal_the_official_detector(exported, request):
    """Detector, models in this process and server exist one after the other, because each takes gigabytes."""
    answered = answered_cases(Sam3ConceptReference(exported.model.concepts, None), PHOTO)
    del exported.model
    few = [case for case in answered if case.title in ("one word", "two words with both boxes")]
    with SAM2TritonClient(transport=ConceptTransport(get_family("sam3"), exported.files), model_type="sam3") as inside:
        rows = list(verify_concepts(few, "inside", inside, PHOTO))
    del inside
    gc.collect()
    return_free_memory()
    words_server = request.getfixturevalue("words_server")
    for name, url, cases in (("http", words_server.http_url, few), ("grpc", words_server.grpc_url, answered)):
        with SAM2TritonClient(url, "sam3", timeout=300) as client:
            rows += verify_concepts(cases, name, client, PHOTO)
    print(format_table(rows, LIMITS["fp32"]))
    assert all(row.passes(LIMITS["fp32"]) for row in rows)
    assert all((row.official > 2) == (row.case != "no instance") for row in rows)
    assert len(rows) == 7 + 2 + 2


@pytest.mark.parametrize("clicks_first", [False, True])
def test_words_and_clicks_cost_one_encode(client, clicks_first):
    image, before = noise(1 + clicks_first), computed(client)
    if clicks_first:
        client.set_image(image)
        client.segment(box=[5, 5, 40, 40])
    found = client.find(["a", "b"], image=image, **ALL)
    client.find(["b", "c"], image=found.image, **ALL)
    clicked = client.segment(box=[5, 5, 40, 40], image=found.image)
    wait_until(lambda: computed(client) == [number + 1 for number in before])
    with SAM2TritonClient(client.url, "sam3", embeddings="client", timeout=300) as alone:
        alone.set_image(image)
        (expected,) = alone.segment(box=[5, 5, 40, 40])
    np.testing.assert_array_equal(clicked[0].mask, expected.mask)
    assert clicked[0].score == pytest.approx(expected.score, abs=1e-6)


def test_annotate_finds_the_same(client, words_server, tmp_path):
    (tmp_path / "in").mkdir()
    for number in (1, 3):
        Image.fromarray(noise(number)).save(tmp_path / "in" / f"{number}.png")
    words = ["--with", "words", "--text", "a", "--text", "b", "--threshold", "0", "--max-instances", "1"]
    command = ["annotate", str(tmp_path / "in"), *words, "--url", words_server.grpc_url, "--timeout", "200"]
    assert main([*command, "--out", str(tmp_path / "out"), "-q"]) == 0
    found = json.loads((tmp_path / "out/coco.json").read_text())
    ids = [(each["image_id"], each["category_id"]) for each in found["annotations"]]
    assert ids == [(1, 1), (1, 2), (2, 1), (2, 2)]
    expected = client.find(["a", "b"], image=tmp_path / "in/3.png", threshold=0, limit=1)
    assert [each["segmentation"] for each in found["annotations"][2:]] == [each.to_rle() for each in expected]


def test_track_finds_the_objects_of_a_video(client, words_server, tmp_path):
    """Weights are random, so each searched frame may have new objects; the masks must be those of both models."""
    (tmp_path / "clip").mkdir()
    for index, frame in enumerate(moving(3)):
        Image.fromarray(frame).save(tmp_path / f"clip/{index}.png")
    parameters = {"threshold": 0, "limit": 2}
    with SAM2VideoClient(words_server.grpc_url, timeout=200) as tracker:
        objects = find_in_video(client, tracker, tmp_path / "clip", "a", every=2, new_threshold=0, **parameters)
        expected = without_doubles(client.find("a", image=tmp_path / "clip/0.png", **parameters))
        first = [each for each in objects if each.frame == 0]
        assert [each.mask.tobytes() for each in first] == [each.mask.tobytes() for each in expected]
        assert first
        with tracker.open(tmp_path / "clip") as video:
            for each in objects:
                video.add(each.frame, each.object_id, mask=each.mask)
            tracked = {(index, id_): segment for index, found in video.propagate() for id_, segment in found.items()}
    options = ["--text", "a", "--text-every", "2", "--threshold", "0", "--new-threshold", "0", "--limit", "2"]
    command = ["track", str(tmp_path / "clip"), *options, "--url", words_server.grpc_url, "--timeout", "200"]
    assert main([*command, "--format", "rle", "--out", str(tmp_path / "out"), "-q"]) == 0
    rows = [json.loads(line) for line in (tmp_path / "out/masks.jsonl").read_text().splitlines()]
    assert len(rows) == 3 * len(objects)
    assert {(row["frame"], row["object_id"]): row["rle"]["counts"] for row in rows} == {
        key: segment.to_rle()["counts"] for key, segment in tracked.items()
    }


WORD_RULES = VideoRules(
    score_threshold_detection=0,
    new_det_thresh=0,
    hotstart_delay=2,
    hotstart_unmatch_thresh=2,
    hotstart_dup_thresh=2,
    recondition_every_nth_frame=2,
)
"""Weights are random, so the rules must take detections of any score and remove no object early."""


def test_words_are_followed_by_a_served_tracker_as_by_one_in_this_process(client, words_server):
    clip = moving(4)
    family = get_family("sam2").at(512)
    followed = []
    with (
        SAM2VideoClient(words_server.grpc_url, timeout=200) as served,
        SAM2VideoClient(transport=VideoTransport(family, client._transport), timeout=200) as inside,
    ):
        for tracker in (served, inside):
            with tracker.open(clip) as video:
                found = dict(track_words(client, video, ["a", "b"], rules=WORD_RULES, limit=2))
                corrected = video.add(1, 1, points=[[30, 30]], labels=[1])
                later = dict(video.propagate(start=2))
            followed.append((found, corrected, later))
    (found, corrected, later), (same_found, same_corrected, same_later) = followed
    assert list(found) == [0, 1, 2, 3]
    assert max(map(len, found.values())) > 1
    assert {segment.label for segments in found.values() for segment in segments.values()} == {"a", "b"}
    for one, other in ((found, same_found), (later, same_later), ({1: {1: corrected}}, {1: {1: same_corrected}})):
        assert [list(segments) for segments in one.values()] == [list(segments) for segments in other.values()]
        for frame, segments in one.items():
            for object_id, segment in segments.items():
                np.testing.assert_array_equal(segment.mask, other[frame][object_id].mask)


def test_the_health_of_words(words_server, capsys):
    assert main(["health", "--url", words_server.http_url, "--timeout", "200"]) == 0
    assert "words of sam3: work" in capsys.readouterr().err


@pytest.mark.nightly
def test_words_tracker_and_clicks_take_one_pass_of_the_backbone_per_frame(video_server):
    clip = moving(3)
    with (
        SAM2TritonClient(video_server.grpc_url, "sam3", timeout=300) as finder,
        SAM2VideoClient(video_server.grpc_url, model_type="sam3", timeout=300) as tracker,
        tracker.open(clip) as video,
    ):
        before = computed(finder)
        found = dict(track_words(finder, video, ["a", "b"], rules=WORD_RULES, limit=1))
        corrected = min(video.object_ids)
        video.add(1, corrected, points=[[30, 30]], labels=[1])
        later = dict(video.propagate(start=1))
        after = computed(finder)
    assert {segment.label for segments in found.values() for segment in segments.values()} == {"a", "b"}
    assert [corrected in segments for segments in later.values()] == [True, True]
    # Only the encoder for clicks has a backbone: the other one continues from its states.
    assert after == [number + len(clip) for number in before]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("servers", "family", "killed"), [("words_server", "sam2", "sam3"), ("video_server", "sam3", "sam3_video")]
)
def test_killing_a_process_in_the_middle_changes_no_mask(request, servers, family, killed):
    """Triton starts again, without the session of the video and without the image of the search."""
    running, clip, followed = request.getfixturevalue(servers), moving(4), []
    with (
        SAM2TritonClient(running.grpc_url, "sam3", timeout=300, retries=5) as finder,
        SAM2VideoClient(running.grpc_url, model_type=family, timeout=300, retries=5) as tracker,
    ):

        def kill() -> None:
            restarts, models = running.restarts, finder._transport.ready_models()
            kill_model(running.pid, killed)
            wait_until(lambda: running.restarts > restarts)
            eventually(lambda: finder._transport.ready_models() == models, 600)

        for act in (None, kill):

            def after_frame(done: int, _: int | None, act: Callable[[], None] | None = act) -> None:
                if act is not None and done == 2:
                    act()

            with tracker.open(clip) as video:
                tracked = track_words(finder, video, ["a", "b"], rules=WORD_RULES, limit=2, on_progress=after_frame)
                followed.append(
                    [
                        (frame, object_id, each.label, each.score, each.mask.tobytes())
                        for frame, segments in tracked
                        for object_id, each in segments.items()
                    ]
                )
                assert bool(video.restored) == (act is not None)
    assert len(followed[0]) > len(clip)
    assert followed[0] == followed[1]

"""`triton-sam evaluate`: simulated clicks and metrics with values computed by hand, and one run on a real server."""

import json
import signal
import weakref
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from support.commands import call
from support.rectangles import mask

from triton_sam.commands import _server
from triton_sam.errors import InputError, ServerTimeoutError
from triton_sam.masks import Segment

pytest.importorskip("scipy", reason="needs the evaluate extra")
pytest.importorskip("skimage", reason="needs the evaluate extra")

from triton_sam.evaluation import runner
from triton_sam.evaluation.clicks import Click, next_click, shaken_box, tight_box
from triton_sam.evaluation.datasets import Dataset, Sample
from triton_sam.evaluation.metrics import Answer, ObjectResult, spearman, summarize
from triton_sam.evaluation.runner import EvaluationSettings, measure

LABELS = mask((2, 3, 9, 10)) * np.uint8(4) + mask((15, 5, 26, 16)) * np.uint8(9)
"""Two objects: 7x7 pixels with the centre (5, 6), and 11x11 pixels with the centre (20, 10)."""


class Oracle:
    """A client that knows the truth, as no network does. Masks after the first click lack the pixels of ``misses``."""

    def __init__(self, labels=LABELS, misses=None):
        self.labels = labels
        self.misses = np.zeros_like(labels, bool) if misses is None else misses
        self.rounds = []

    def set_image(self, image):
        assert (image.height, image.width) == self.labels.shape

    def segment(
        self, point_coords=None, point_labels=None, box=None, mask_input=None, multimask_output=False, *, logits=None
    ):
        if box is not None:
            centres = [(int((x1 + x2) / 2), int((y1 + y2) / 2)) for x1, y1, x2, y2 in box]
            return [self.reply(index, x, y) for index, (x, y) in enumerate(centres)]
        self.rounds.append((point_coords, point_labels, mask_input, multimask_output))
        replies = []
        for index, points in enumerate(point_coords.astype(int)):
            x, y = points[0]
            kept = ~self.misses if len(points) == 1 else np.ones_like(self.misses)
            replies.append(replace(self.reply(index, x, y, kept), **({} if logits else {"logits": None})))
            if multimask_output:
                replies[-1:] = [self.nothing(index, 0.9), replies[-1], self.nothing(index, 0.2)]
        return replies

    def reply(self, index, x, y, kept=True):
        found = (self.labels == self.labels[y, x]) & kept
        return Segment(found, 0.5, np.full((256, 256), 1.0 + index, np.float32), index)

    def nothing(self, index, score):
        return Segment(np.zeros_like(self.labels, bool), score, np.zeros((256, 256), np.float32), index)


def dataset(labels=LABELS, name="made by hand"):
    return Dataset(name, "", (lambda: Sample("one", Image.new("RGB", labels.shape[::-1]), labels),))


def results(client, settings, data=None):
    return [trial.result() for _, trials in measure(client, data or dataset(), settings) for trial in trials]


# Metrics


@pytest.mark.parametrize(
    ("scores", "ious", "expected"),
    [
        ((0.1, 0.2, 0.3, 0.9), (0.1, 0.3, 0.2, 0.4), 1 - 6 * 2 / (4 * 15)),
        ((0.7, 0.7, 0.9), (0.1, 0.2, 0.3), 1.5 / np.sqrt(1.5 * 2)),  # ranks 1.5, 1.5, 3
        ((0.5, 0.5), (0.1, 0.2), None),
        ((0.5,), (0.1,), None),
    ],
)
def test_spearman_shares_ranks_and_may_be_undefined(scores, ious, expected):
    measured = spearman([Answer(iou, score) for iou, score in zip(ious, scores, strict=True)])
    assert measured == (None if expected is None else pytest.approx(expected))


def result_by_hand(ious, candidates, box):
    answers = tuple(Answer(iou, 0.1 * number) for number, iou in enumerate(ious))
    return ObjectResult("one", 1, 9, (), answers, tuple(Answer(*pair) for pair in candidates), Answer(box, box))


def test_the_summary_holds_the_means_over_the_objects():
    summary = summarize(
        [
            result_by_hand((0.2, 0.86, 0.95), ((0.3, 0.9), (0.8, 0.1), (0.1, 0.2)), 0.9),
            result_by_hand((0.6, 0.70, 0.85), ((0.5, 0.1), (0.4, 0.2), (0.7, 0.3)), 0.5),
        ]
    )
    assert (summary.images, summary.objects) == (1, 2)
    assert summary.clicks == pytest.approx((0.4, 0.78, 0.9))
    assert summary.quartiles[0] == pytest.approx((0.3, 0.5))
    assert summary.best_by_truth == pytest.approx(0.75)
    assert summary.best_by_score == pytest.approx(0.5)
    assert summary.box == pytest.approx(0.7)
    assert summary.shaken_box is None
    assert [(t.iou, t.clicks, t.reached) for t in summary.targets] == [(0.85, 2.5, 1.0), (0.90, 3.0, 0.5)]
    assert summary.spearman["box"] == pytest.approx(1.0)
    assert summary.spearman["click"] is None  # both scores are 0
    with pytest.raises(InputError):
        summarize([])


# Measurement


def test_perfect_answers_give_perfect_metrics():
    client = Oracle()
    small, large = results(client, EvaluationSettings(clicks=3, box_jitter=0.1))
    assert (small.label, small.area, large.label, large.area) == (4, 49, 9, 121)
    assert small.prompts == (Click(5, 6, 1),)  # without an error there are no more clicks and no more calls
    assert [answer.iou for answer in small.clicks] == [1, 1, 1]
    assert [answer.iou for answer in small.candidates] == [0, 1, 0]
    assert small.box.iou == small.shaken_box.iou == 1
    assert len(client.rounds) == 2
    summary = summarize([small, large])
    assert (summary.best_by_truth, summary.best_by_score) == (1, 0)


@pytest.mark.parametrize("feed_mask", [True, False])
def test_an_error_is_corrected_and_the_last_mask_is_sent(feed_mask):
    client = Oracle(misses=mask((20, 0, 30, 20)))
    small, large = results(client, EvaluationSettings(clicks=3, feed_mask=feed_mask))
    assert [answer.iou for answer in small.clicks] == [1, 1, 1]
    assert [answer.iou for answer in large.clicks] == pytest.approx([5 / 11, 1, 1])
    assert [click.label for click in large.prompts] == [1, 1]
    assert large.prompts[1].x >= 20
    coords, labels, mask_input, _ = client.rounds[-1]
    assert coords.shape == (1, 2, 2)
    assert labels.tolist() == [[1, 1]]
    if feed_mask:
        np.testing.assert_array_equal(mask_input, np.full((1, 1, 256, 256), 2.0))  # the logits of the second object
    else:
        assert mask_input is None


def test_the_seed_selects_the_measured_objects():
    labels = np.zeros((20, 300), np.uint16)
    for number in range(20):
        labels[5:10, 15 * number : 15 * number + 5] = 1000 + number

    def chosen(**options):
        found = results(Oracle(labels), EvaluationSettings(1, **options), dataset(labels))
        return [result.label for result in found]

    assert len(chosen(most_objects=5)) == 5
    assert chosen(most_objects=5) == chosen(most_objects=5) != chosen(most_objects=5, seed=1)
    assert len(chosen()) == 20  # they need more than one request
    labels[:] = 0
    with pytest.raises(InputError, match="made by hand contains no objects"):
        chosen()


def test_masks_of_a_large_image_are_not_kept(monkeypatch):
    monkeypatch.setattr("triton_sam.evaluation.runner._MAX_BATCH", 1)
    references = []
    for _, trials in measure(Oracle(), dataset(), EvaluationSettings(1)):
        assert all(reference() is None for reference in references)
        references += [weakref.ref(trial.truth) for trial in trials]
        del trials
    assert len(references) == 2


# The command


@pytest.fixture
def folder(tmp_path):
    """A folder with two images that have label masks, and one image that has none."""
    for name in ("a", "b", "alone"):
        Image.new("RGB", (30, 20), (40, 90, 40)).save(tmp_path / f"{name}.png")
    for name in ("a", "b"):
        Image.fromarray(LABELS).save(tmp_path / f"{name}_labels.png")
    return tmp_path


def test_the_command_measures_on_a_real_server(server, folder, tmp_path, capsys):
    out = tmp_path / "results"
    line = f"evaluate --url {server.http_url} --dataset {folder} --count 1 --clicks 2 --box-jitter 0.1 --json"
    assert call(line, "--out", out) == 0
    printed = capsys.readouterr()
    assert "1 file(s) without a partner or a package left out: alone.png" in printed.err
    result = json.loads(printed.out)
    assert result == json.loads((out / "evaluation.json").read_text())
    (data,) = result["datasets"]
    assert data["complete"] is True
    assert data["summary"]["images"] == 1
    assert data["summary"]["objects"] == len(data["objects"]) == 2
    for each in data["objects"]:
        assert len(each["clicks"]) == 2
        assert len(each["candidates"]) == 3
        answers = [*each["clicks"], *each["candidates"], each["box"], each["shaken_box"]]
        assert all(0 <= answer["iou"] <= 1 and np.isfinite(answer["score"]) for answer in answers)
    for name in ("iou.png", f"examples_{folder.name}.png"):
        with Image.open(out / name) as plot:
            assert plot.width > 400


class FailingClient(Oracle):
    """A replacement for the client of the command. It fails on the second image."""

    url = "http://nowhere"
    failure: BaseException
    misses = None

    def __init__(self, *_, **__):
        super().__init__(misses=self.misses)
        self.images = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def set_image(self, image):
        self.images += 1
        if self.images > 1:
            raise self.failure


@pytest.mark.parametrize(
    ("failure", "code", "text"),
    [(KeyboardInterrupt(), 130, "interrupted"), (ServerTimeoutError("no answer"), 1, "error: no answer")],
)
def test_measurements_before_a_failure_are_printed(folder, monkeypatch, capsys, failure, code, text):
    monkeypatch.setattr(FailingClient, "failure", failure, raising=False)
    monkeypatch.setattr(_server, "SAM2TritonClient", FailingClient)
    assert call(f"evaluate --dataset {folder} --clicks 2") == code
    printed = capsys.readouterr()
    assert f"{folder.name} (partial)" in printed.out
    rows = {line[:34].strip(): line[34:].strip() for line in printed.out.splitlines()}
    assert (rows["images"], rows["objects"], rows["mean IoU  1 click"]) == ("1", "2", "1.000")
    assert text in printed.err


def test_further_interrupts_lose_no_measurements(folder, monkeypatch, capsys):
    class InterruptedClient(FailingClient):
        failure = KeyboardInterrupt()

        def __exit__(self, *_):
            raise KeyboardInterrupt

    table = runner.table

    def interrupted_table(reports):
        signal.raise_signal(signal.SIGINT)
        return table(reports)

    monkeypatch.setattr(_server, "SAM2TritonClient", InterruptedClient)
    monkeypatch.setattr(runner, "table", interrupted_table)
    assert call(f"evaluate --dataset {folder} --clicks 2") == 130
    assert f"{folder.name} (partial)" in capsys.readouterr().out


def test_a_family_that_takes_no_mask_gets_clicks_alone(folder, monkeypatch, capsys):
    clients = []

    class Tracker(FailingClient):
        misses = mask((20, 0, 30, 20))

        def __enter__(self):
            clients.append(self)
            return self

    monkeypatch.setattr(_server, "SAM2TritonClient", Tracker)
    assert call(f"evaluate --model sam3 --dataset {folder} --count 1 --clicks 3 --json") == 0
    assert json.loads(capsys.readouterr().out)["settings"]["feed_mask"] is False
    assert len(clients[0].rounds) > 2
    assert all(mask_input is None for _, _, mask_input, _ in clients[0].rounds)


# Clicks


def test_no_pixel_is_clicked_twice_and_a_perfect_mask_gets_no_click():
    truth = mask((2, 3, 9, 10))
    assert next_click(truth, truth) is None
    assert next_click(truth, mask(), [Click(5, 6, 1)]) not in (None, Click(5, 6, 1))
    assert next_click(mask((4, 4, 5, 5)), mask(), [Click(4, 4, 1)]) is None


@pytest.mark.export
def test_the_next_click_equals_that_of_sam2():
    torch = pytest.importorskip("torch")
    reference = pytest.importorskip("sam2.modeling.sam2_utils").sample_one_point_from_error_center
    rng = np.random.default_rng(0)
    for _ in range(50):
        truth, found = (
            mask(*((x, y, x + w, y + h) for x, y, w, h in rng.integers(0, 12, (3, 4)) * (2, 1, 1, 1))) for _ in range(2)
        )
        if (truth == found).all():
            continue
        points, labels = reference(torch.tensor(truth)[None, None], torch.tensor(found)[None, None])
        assert next_click(truth, found) == Click(*points[0, 0].int().tolist(), int(labels[0, 0]))


def test_tight_boxes_fit_and_shaken_boxes_stay_within_the_limits():
    truth = mask((2, 3, 9, 10))
    np.testing.assert_array_equal(tight_box(truth), [2, 3, 9, 10])
    rng = np.random.default_rng(1)
    boxes = np.stack([shaken_box(mask((0, 0, 30, 12)), 0.1, rng) for _ in range(400)])
    assert boxes.min() >= 0
    assert (boxes[:, 2:] <= (30, 20)).all()
    assert (boxes[:, :2] < boxes[:, 2:]).all()
    below = boxes[:, 3] - 12  # this side is free to move both ways: 20 of 1024 pixels are 0.39 of 20
    assert np.abs(below).max() == pytest.approx(20 * 20 / 1024, abs=1e-4)
    assert abs(below.mean()) < 0.05
    np.testing.assert_array_equal(shaken_box(truth, 0.0, rng), tight_box(truth))

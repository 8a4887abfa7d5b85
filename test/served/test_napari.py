"""Requests of the plugin of napari to a real Triton, without napari and Qt."""

import contextlib
import queue
import threading

import numpy as np
import pytest
from PIL import Image
from support import clip
from support.conditions import PATIENCE, wait_until

from triton_sam import SAM2TritonClient, SAM2VideoClient
from triton_sam.families import get_family
from triton_sam.integrations.napari.jobs import Ended, Masks, NewObjects, Preview, Progress
from triton_sam.integrations.napari.requests import Clients, Model, Requests, models_at
from triton_sam.integrations.napari.sources import Prompt, Source
from triton_sam.masks.segment import Segment

SEARCH = {"points_per_side": 4, "pred_iou_thresh": 0.3, "stability_score_thresh": 0.5}
CLICK = Prompt(((210.0, 350.0),), (1,))


class Plugin:
    """Requests for one layer, and the events that they tell."""

    def __init__(self, clients, source) -> None:
        self.events: queue.Queue = queue.Queue()
        self.gate = threading.Lock()
        self.source = source
        self.requests = Requests(clients, source, self.tell)

    def tell(self, event):
        self.events.put(event)
        with self.gate:  # the sender goes on when it is free
            pass

    def next(self, *kinds):
        """Return the next event of one of these types, and skip others."""
        while not isinstance(event := self.events.get(timeout=120), kinds):
            assert not isinstance(event, Ended), event
        return event

    def whole(self, plane, patch):
        mask = np.zeros(self.source.size[::-1], bool)
        mask[patch.place] = patch.mask
        return mask


@contextlib.contextmanager
def plugin(clients, source):
    running = Plugin(clients, source)
    try:
        yield running
    finally:
        running.requests.close()
        running.requests._thread.join(PATIENCE)


@pytest.fixture(scope="module")
def photo(images):
    return np.asarray(Image.open(images / "shapes.jpg").convert("RGB"))


@pytest.fixture
def clients(server):
    (model,) = models_at(server.grpc_url)
    assert model == Model("sam2", "sam2")
    return Clients(server.grpc_url, model)


@pytest.fixture(scope="module")
def official(server):
    """The client that masks are compared with."""
    with SAM2TritonClient(server.grpc_url) as client:
        yield client


def test_masks_in_a_stack_equal_those_of_the_client(clients, official, photo):
    stack = np.stack([photo, photo[::-1]])
    boxed = Prompt(box=(100.0, 100.0, 400.0, 400.0))
    with plugin(clients, Source([stack], rgb=True)) as running:
        running.requests.prepare((1,))
        running.requests.segment((0,), 1, CLICK)
        running.requests.segment((1,), 2, boxed)
        found = {each.plane: each.patches for each in (running.next(Masks), running.next(Masks))}
        for plane, number, prompt in (((0,), 1, CLICK), ((1,), 2, boxed)):
            (expected,) = official.segment(**prompt.arguments(), image=official.encode(stack[plane]))
            assert (running.whole(plane, found[plane][number]) == expected.mask).all()
        running.requests.forget((0,), 1)
        assert running.next(Masks).patches == {1: None}


def test_of_many_positions_of_the_mouse_few_are_sent(clients, photo):
    with plugin(clients, Source([photo], rgb=True)) as running:
        running.requests.segment((), 1, CLICK)
        running.next(Masks)
        before = clients.clicks.requests_sent
        for x in range(200):
            running.requests.preview((), Prompt(((100.0 + x, 200.0),), (1,)))
        preview = running.next(Preview)
        assert preview.plane == ()
        assert clients.clicks.requests_sent - before < 100
        running.requests.leave()
        running.requests.segment((), 1, CLICK)
        assert running.whole((), running.next(Masks).patches[1]).any()


def test_everything_with_progress_and_cancel(clients, official, photo):
    with plugin(clients, Source([photo], rgb=True)) as running:
        with running.gate:
            running.requests.forget((), 1)
            running.requests.everything((), **SEARCH)
            running.requests.everything((), **SEARCH)
        running.next(Masks)
        assert running.events.get(timeout=60) == Ended("one job at a time: cancel the other one first", is_job=False)
        assert running.next(Progress).total == 16
        patches = running.next(NewObjects).patches
        expected = official.everything(photo, **SEARCH)
        assert len(patches) == len(expected) > 0
        assert all((running.whole((), one) == other.mask).all() for one, other in zip(patches, expected, strict=True))
        assert running.next(Ended).text == f"{len(patches)} objects found"
        with running.gate:
            running.requests.everything((), points_per_side=32)
            running.next(Progress)
            running.requests.cancel()
        while (event := running.events.get(timeout=60)) != Ended("cancelled"):
            assert isinstance(event, Progress)


def test_a_large_image_is_asked_part_by_part(clients, photo):
    whole = np.full((1200, 5000, 3), 40, np.uint8)
    whole[300 : 300 + photo.shape[0], 3000 : 3000 + photo.shape[1]] = photo
    x, y = 3000 + CLICK.points[0][0], 300 + CLICK.points[0][1]
    with plugin(clients, Source([whole, whole[::2, ::2]], rgb=True)) as running:
        running.requests.segment((), 1, Prompt(((x, y),), (1,)))
        patch = running.next(Masks).patches[1]
        mask = running.whole((), patch)
        assert mask[int(y), int(x)]
        assert not mask[:, :1900].any()
        running.requests.find((), ["dog"], 0.3)
        assert "crop the layer" in running.events.get(timeout=60).text
        with running.gate:
            running.requests.everything((), tile=1200, points_per_side=2)
            assert running.next(Progress).total > 3
            running.requests.cancel()
            wait_until(running.requests._stop.is_set)
        while (event := running.events.get(timeout=60)) != Ended("cancelled"):
            assert isinstance(event, Progress)


def test_words_become_new_objects(clients, photo, monkeypatch):
    masks = [np.zeros(photo.shape[:2], bool) for _ in range(3)]
    masks[0][10:20, 30:50] = masks[2][5:9, 5:9] = True  # the second one is empty
    asked = []

    async def find(texts, *, image, threshold):
        asked.append((texts, image.shape, threshold))
        return [Segment(mask, 0.9, None) for mask in masks]

    monkeypatch.setattr(clients.clicks, "find_async", find)
    with plugin(clients, Source([photo], rgb=True)) as running:
        running.requests.find((), ["dog"], 0.4)
        assert "choose a SAM3 model" in running.next(Ended).text
        monkeypatch.setattr(type(clients.clicks), "family", get_family("sam3"))
        running.requests.find((), ["dog", "cat"], 0.4)
        patches = running.next(NewObjects).patches
        assert [(each.row, each.column, each.mask.shape) for each in patches] == [(10, 30, (10, 20)), (5, 5, (4, 4))]
        assert running.next(Ended).text == "2 instances found"
    assert asked == [(["dog", "cat"], photo.shape, 0.4)]


def test_a_stack_is_followed_as_the_video_client_does_it(server):
    frames = np.stack([np.asarray(clip.image(index).convert("RGB")) for index in range(6)])
    x, y = clip.START
    point = Prompt(((x + 2.0 * clip.STEP, float(y)),), (1,))
    model = Model("sam2", "sam2")
    with SAM2VideoClient(server.grpc_url) as client, client.open(frames) as video:
        video.add(2, 7, [list(point.points[0])], [1])
        expected = {frame: found[7].mask for frame, found in video.propagate(start=2)}
        expected.update((frame, found[7].mask) for frame, found in video.propagate(start=2, reverse=True))
    clients = Clients(server.grpc_url, model)
    with plugin(clients, Source([frames], rgb=True)) as running:
        over_the_border = Prompt((), (), (-1.0, 5.0, 20.0, 25.0))
        running.requests.track({((2,), 7): point, ((2,), 8): over_the_border}, (0,), 0)
        shown = {}
        while not isinstance(event := running.events.get(timeout=120), Ended):
            if isinstance(event, Masks):
                shown[event.plane[0]] = event.patches[7]
        assert event == Ended("6 planes done")
        running.requests.track({}, (0,), 0)
        assert "in one of the planes first" in running.next(Ended).text
        assert sorted(shown) == sorted(expected) == list(range(6))
        for frame, patch in shown.items():
            mask = np.zeros_like(expected[frame]) if patch is None else running.whole((), patch)
            assert (mask == expected[frame]).all()

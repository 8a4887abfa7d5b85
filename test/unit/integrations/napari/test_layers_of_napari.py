"""The napari plugin without napari and without a server: planes, prompts, requests, and masks in an array of labels."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest
from support.conditions import PATIENCE

from triton_sam.errors import ConfigurationError, ImageError
from triton_sam.integrations.napari.layers import Labels, Patch, patch_of
from triton_sam.integrations.napari.requests import Clients, Model, Requests
from triton_sam.integrations.napari.sources import Prompt, Source, collect, differences

GREY = np.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5)


def test_a_plane_of_a_stack_is_grey_between_the_limits():
    source = Source([GREY.astype(np.uint16)], limits=(60, 119))
    assert (source.stack, source.size, source.is_large) == ((2, 3), (5, 4), False)
    pixels = source.pixels((1, 2))
    assert (pixels.dtype, pixels.shape) == (np.uint8, (4, 5, 3))
    assert pixels[..., 0].tolist() == np.round((GREY[1, 2] - 60) * (255 / 59)).tolist()
    assert (pixels[..., 0] == pixels[..., 2]).all()
    assert source.pixels((0, 0)).max() == 0  # below the lower limit
    assert [source.has(each) for each in ((1, 2), (-1, 0), (0, 3))] == [True, False, False]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.full((2, 2), True), 255),
        (np.full((2, 2, 3), 7, np.uint8), 7),
        (np.full((2, 2, 4), 0.5, np.float32), 128),
        (np.full((2, 2, 3), np.nan), 0),
    ],
    ids=["bool", "uint8", "float", "nan"],
)
def test_values_that_need_no_limits(values, expected):
    pixels = Source([values], rgb=values.ndim == 3).pixels(())
    assert pixels.shape == (2, 2, 3)
    assert (pixels == expected).all()


def test_layers_that_cannot_be_sent():
    with pytest.raises(ImageError, match="convert the layer to uint8"):
        Source([np.zeros((2, 2, 3), np.int32)], rgb=True).pixels(())
    with pytest.raises(ImageError, match="3 or 4 channels"):
        Source([np.zeros((2, 2, 5))], rgb=True)
    with pytest.raises(ImageError, match="at least two axes"):
        Source([np.zeros(5)])


def test_a_pyramid_is_read_part_by_part():
    whole = np.random.default_rng(3).integers(0, 255, (4, 5000, 300), np.uint8)
    source = Source([whole, whole[:, ::4, ::4]], limits=(0, 255))
    assert source.is_large
    image = source.large((3,))
    assert image.size == (300, 5000)
    assert (image.window((0, 100, 300, 400), 1024).pixels[..., 1] == whole[3, 100:400]).all()
    assert image.window((0, 0, 300, 5000), 1024).pixels.shape == (1024, 61, 3)


def test_frames_along_each_axis():
    source = Source([GREY.astype(np.uint8)], limits=(0, 255))
    frames = source.frames((0, 2), 0)
    assert len(frames) == 2
    assert (np.asarray(frames[1])[..., 0] == GREY[1, 2]).all()
    assert (frames.plane(1), frames.shows((1, 2)), frames.shows((1, 1))) == ((1, 2), True, False)
    assert [np.asarray(each)[0, 0, 0] for each in source.frames((1, 0), 1)] == [60, 80, 100]
    with pytest.raises(ImageError, match="this layer is a single image"):
        Source([GREY[0, 0]], limits=(0, 9)).frames((), -1)


def test_points_and_boxes_become_prompts_of_planes_and_objects():
    points = [[0.2, 10, 20], [0, 11, 21], [3, 5, 6], [0, 1, 2]]
    boxes = [[[0, 30, 40], [0, 30, 60], [0, 50, 60], [0, 50, 40]], [[3, 0, 0], [3, 9, 9], [3, 0, 9], [3, 9, 0]]]
    found = collect(points, {"object": [1, 1, 1, 2], "label": [1, 0, 1, 1]}, boxes, {"object": [1, 4]})
    assert found == {
        ((0,), 1): Prompt(((20.0, 10.0), (21.0, 11.0)), (1, 0), (40.0, 30.0, 60.0, 50.0)),
        ((3,), 1): Prompt(((6.0, 5.0),), (1,)),
        ((0,), 2): Prompt(((2.0, 1.0),), (1,)),
        ((3,), 4): Prompt(box=(0.0, 0.0, 9.0, 9.0)),
    }
    after = {**found, ((0,), 2): Prompt(((3.0, 1.0),), (1,))}
    del after[(3,), 4]
    assert differences(found, after) == ({((0,), 2): after[(0,), 2]}, [((3,), 4)])
    assert differences({}, found) == (found, [])
    assert collect(np.empty((0, 2)), {"object": [], "label": []}, [], {"object": []}) == {}


def test_prompts_outside_of_the_image_move_to_its_border():
    prompt = Prompt(((-3.0, 50.0),), (1,), (-5.0, 2.0, 90.0, 99.0)).within((64, 48))
    assert prompt.arguments() == {
        "point_coords": ((0.0, 47.0),),
        "point_labels": (1,),
        "box": (0.0, 2.0, 64.0, 48.0),
    }


def square(x: int, y: int, side: int = 4) -> Patch:
    return Patch(np.ones((side, side), bool), y, x)


def labels_of(data: np.ndarray) -> Labels:
    return Labels(SimpleNamespace(data=data, refresh=lambda: None))


def test_labels_show_objects_and_leave_paint_alone():
    data = np.zeros((2, 10, 10), np.uint16)
    data[0, 0, :] = 9  # painted by hand
    labels = labels_of(data)
    labels.put((0,), {1: square(0, 0), 2: square(2, 2)})
    assert data[0, 2, :7].tolist() == [1, 1, 2, 2, 2, 2, 0]
    labels.put((0,), {2: square(6, 6)})  # the object below appears again
    assert data[0, 2, :7].tolist() == [1, 1, 1, 1, 0, 0, 0]
    assert data[0, 0, 4:].tolist() == [9] * 6
    data[0, 7, 7] = 5  # painted over an object
    labels.put((0,), {2: None})
    assert (data[0] == 2).sum() == 0
    assert data[0, 7, 7] == 5
    assert not data[1].any()
    assert not labels.is_empty


def test_new_objects_get_numbers_that_are_free_in_all_planes():
    data = np.zeros((2, 10, 10), np.uint16)
    labels = labels_of(data)
    labels.put((0,), {3: square(0, 0)})
    labels.add((1,), [square(0, 0), square(5, 5)], least=1)
    assert np.unique(data[1]).tolist() == [0, 4, 5]
    labels.put((1,), {5: None})
    assert labels.free_number() == 5
    labels.add((1,), [square(5, 5)], least=8)  # objects up to 7 have prompts and wait for their masks
    labels.add((0,), [square(5, 5)], least=8)
    assert (np.unique(data[1]).tolist(), np.unique(data[0]).tolist()) == ([0, 4, 8], [0, 3, 9])


def test_a_patch_is_the_part_with_the_object():
    mask = np.zeros((20, 30), bool)
    mask[3:6, 7:9] = True
    mask[5, 7] = False
    patch = patch_of(mask)
    assert patch is not None
    assert (patch.row, patch.column, patch.mask.shape) == (3, 7, (3, 2))
    whole = np.zeros_like(mask)
    whole[patch.place] = patch.mask
    assert (whole == mask).all()
    assert patch_of(np.zeros((3, 3), bool)) is None


class Slow:
    """A layer that answers only after ``go``."""

    shape, dtype = (8, 8), np.dtype(np.uint8)

    def __init__(self) -> None:
        self.is_asked, self.go, self.has_answered = (threading.Event() for _ in range(3))

    def __getitem__(self, place):
        self.is_asked.set()
        self.go.wait(PATIENCE)
        self.has_answered.set()
        return np.zeros(self.shape, self.dtype)


def test_closing_does_not_wait_for_a_slow_layer():
    layer, events = Slow(), []
    clients = Clients("localhost:1", Model("sam2", "sam2"))
    requests = Requests(clients, Source([layer], limits=(0, 255)), events.append)
    requests.everything(())
    assert layer.is_asked.wait(PATIENCE)
    requests.close()
    requests._thread.join(PATIENCE)
    assert not layer.has_answered.is_set()
    with pytest.raises(ConfigurationError, match="closed"):
        clients.calls.encode(np.zeros((8, 8, 3), np.uint8))
    layer.go.set()
    assert layer.has_answered.wait(PATIENCE)
    assert events == []

"""The plugin of napari with napari's own layers and a real Triton, and in a real window where Xvfb can be started.

It needs an environment with `pip install -e ".[local,napari]" "napari[pyqt6]"`, and is skipped in others.
"""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("napari")
pytest.importorskip("qtpy")
os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")

from triton_sam import SAM2TritonClient
from triton_sam.integrations.napari.jobs import Masks
from triton_sam.integrations.napari.layers import Outlines, Patch

pytestmark = pytest.mark.filterwarnings("ignore")  # those of napari's packages are not ours
CLICKS = [(225, 450), (560, 180)]
BOX = [(285, 525), (285, 745), (530, 745), (530, 525)]


class User:
    """Does what a person does in the window.

    Args:
        viewer: napari's viewer, or its model.
        widget: the plugin.
        url: address of Triton.
    """

    def __init__(self, viewer, widget, url: str) -> None:
        from qtpy.QtWidgets import QApplication

        self.app = QApplication.instance()
        self.viewer, self.widget, self.panel = viewer, widget, widget.panel
        self.panel.address.setText(url)

    def wait(self, condition) -> None:
        end = time.monotonic() + 60
        while not condition():
            self.app.processEvents()
            time.sleep(0.01)
            assert time.monotonic() < end, self.panel.status.text()

    def begin(self) -> None:
        self.panel.connect_button.click()
        self.wait(lambda: self.panel.models.count() == 1)
        self.panel.start.click()
        assert self.widget.layers is not None, self.panel.status.text()
        self.layers = self.widget.layers

    def labels(self):
        return self.layers.objects.layer.data

    def click(self, x: float, y: float, plane=()) -> None:
        """Add a point, and wait until its object is shown."""
        number = self.panel.number.value()
        before = self.labels().copy()
        self.layers.points.add([[*plane, y, x]])
        self.wait(lambda: np.any(self.labels() != before))
        assert (self.labels()[plane] == number).any()

    def move(self, *position) -> None:
        for callback in self.viewer.mouse_move_callbacks:
            callback(self.viewer, SimpleNamespace(position=position))


@pytest.fixture(scope="module")
def photo(images):
    return np.asarray(Image.open(images / "shapes.jpg").convert("RGB"))


@pytest.fixture(scope="module")
def application():
    from qtpy.QtWidgets import QApplication

    return QApplication.instance() or QApplication([])


@pytest.fixture
def open_layer(application, service_triton):
    from napari.components import ViewerModel

    from triton_sam.integrations.napari.widget import SegmentWidget

    opened = []

    def open_it(*arguments, **options):
        viewer = ViewerModel()
        viewer.add_image(*arguments, name="image", **options)
        widget = SegmentWidget(viewer)
        opened.append(widget)
        user = User(viewer, widget, service_triton.grpc_url)
        user.begin()
        return user

    yield open_it
    for each in opened:
        each.close_session()


def test_clicks_boxes_and_preview(open_layer, photo, service_triton):
    user = open_layer(photo, scale=(0.5, 0.5), translate=(10, 20))
    for x, y in CLICKS:
        user.click(x, y)
        user.panel.next.click()
    assert user.panel.number.value() == 3
    user.layers.boxes.add_rectangles([BOX])
    user.wait(lambda: np.any(user.labels() == 3))
    with SAM2TritonClient(service_triton.grpc_url) as client:
        client.set_image(photo)
        masks = [client.segment([each])[0].mask for each in CLICKS]
        masks.append(client.segment(box=[525, 285, 745, 530])[0].mask)
    expected = np.zeros(photo.shape[:2], np.uint16)
    for number, mask in enumerate(masks, 1):
        expected[mask] = number
    assert (user.labels() == expected).all()
    assert np.allclose(user.layers.objects.layer.extent.world, user.viewer.layers["image"].extent.world)

    user.move(10 + 500 * 0.5, 20 + 150 * 0.5)
    user.wait(lambda: len(user.layers.preview.data) > 0)
    user.move(-50, -50)
    assert len(user.layers.preview.data) == 0

    user.panel.number.setValue(1)
    user.panel.label.setCurrentIndex(1)
    user.click(60, 60)  # outside of object 1
    assert user.layers.points.features["label"].tolist() == [1, 1, 0]
    user.layers.points.selected_data = {1}
    user.layers.points.remove_selected()
    user.wait(lambda: not np.any(user.labels() == 2))


def test_events_of_an_earlier_session_change_nothing(open_layer, photo):
    user = open_layer(photo)
    send = user.widget.requests._send
    user.panel.start.click()
    send(Masks((), {1: Patch(np.ones((5, 5), bool), 0, 0)}))
    user.app.processEvents()
    assert not user.widget.layers.objects.layer.data.any()


def find_everything(user):
    user.panel.points_per_side.setValue(4)
    user.panel.quality.setValue(0.3)
    user.panel.stability.setValue(0.5)
    user.panel.everything.click()
    user.wait(lambda: "objects found" in user.panel.status.text())


def test_everything_and_what_cannot_be_done(open_layer, photo):
    user = open_layer(photo)
    find_everything(user)
    assert user.panel.status.text() == f"{user.labels().max()} objects found"
    user.panel.find.click()
    assert "enter words" in user.panel.status.text()
    user.panel.words.setText("dog, cat")
    user.panel.find.click()
    user.wait(lambda: "choose a SAM3 model" in user.panel.status.text())
    user.click(*CLICKS[0])
    assert "SAM3" not in user.panel.status.text()
    assert not user.panel.track.isEnabled()  # there is no stack
    user.viewer.layers.remove("image")
    assert user.widget.layers is None
    assert [each.name for each in user.viewer.layers] == ["image: objects"]


def test_a_click_after_a_search_is_a_new_object(open_layer, photo):
    user = open_layer(photo)
    find_everything(user)
    found = user.labels().max()
    assert user.panel.number.value() == found + 1
    user.click(*CLICKS[0])
    user.panel.everything.click()
    user.wait(lambda: user.labels().max() > found + 1)
    assert user.panel.number.value() == found + 1  # its points can be corrected


def test_prompts_outside_of_a_stack_are_left_out(open_layer, photo):
    user = open_layer(np.stack([photo, photo[::-1]]), rgb=True, translate=(3, 0, 0))
    user.viewer.add_image(np.zeros((9, 4, 4), np.uint8))  # its planes reach beyond both ends of the stack
    x, y = CLICKS[0]
    for plane in (-1, 2):
        user.viewer.dims.set_point(0, 3 + plane)
        user.layers.points.add([[plane, y, x]])
        assert user.panel.status.text() == "this plane is outside the layer"
        assert not user.widget._prompts
    user.panel.status.clear()
    user.panel.everything.click()
    assert user.panel.status.text() == "this plane is outside the layer"
    user.layers.points.data = np.empty((0, 3))
    user.click(x, y, plane=(1,))
    assert user.panel.status.text().startswith("Click on")
    assert not user.labels()[0].any()


def test_a_second_image_starts_with_an_object_of_its_own(open_layer, photo):
    user = open_layer(photo)
    assert user.layers.boxes.mode == "add_rectangle"
    user.panel.number.setValue(3)
    user.panel.label.setCurrentIndex(1)
    second = user.viewer.add_image(photo[::2, ::2], name="second")
    second.name = "renamed"
    user.panel.start.click()
    assert user.widget.layers.points.name == "renamed: points"
    assert (user.panel.number.value(), user.panel.chosen_label()) == (1, 1)
    user.viewer.add_labels(np.zeros((4, 4), int))
    assert user.panel.images.currentData() is second


def test_beginning_again_leaves_no_empty_layer_of_objects(open_layer, photo, monkeypatch):
    from triton_sam.integrations.napari import layers

    user = open_layer(photo)
    names = [each.name for each in user.viewer.layers]
    user.panel.start.click()
    assert [each.name for each in user.viewer.layers] == names
    user.layers = user.widget.layers
    user.click(*CLICKS[0])
    monkeypatch.setattr(layers, "MAX_LABELS", 1000)  # the next objects are outlines
    for _ in range(2):
        user.panel.start.click()
        assert [each.name.partition(" [")[0] for each in user.viewer.layers] == [names[0], names[1], *names[1:]]


def test_a_pyramid_with_outlines_instead_of_labels(open_layer, photo, monkeypatch):
    from triton_sam.integrations.napari import layers

    monkeypatch.setattr(layers, "MAX_LABELS", 1000)
    whole = np.full((1200, 5000, 3), 40, np.uint8)
    whole[300 : 300 + photo.shape[0], 3000 : 3000 + photo.shape[1]] = photo
    user = open_layer([whole, whole[::2, ::2]], multiscale=True)
    shapes = user.layers.objects.layer
    user.layers.points.add([[300 + 350, 3000 + 210]])
    user.wait(lambda: len(shapes.data) > 0)
    assert set(shapes.features["object"]) == {1}
    assert all((ring[:, 1] > 1900).all() for ring in shapes.data)


def test_the_button_that_closes_the_panel_ends_its_session_and_job(open_layer, photo):
    from qtpy.QtWidgets import QDockWidget

    user = open_layer(photo)
    dock = QDockWidget()
    dock.setWidget(user.widget)
    user.widget._job(lambda *_: None)
    user.panel.connect_button.click()
    user.wait(lambda: "Choose a layer" in user.panel.status.text())
    assert user.panel.cancel.isEnabled()
    user.widget.setParent(None)  # as napari does
    assert user.widget.requests is None
    assert [each.name for each in user.viewer.layers] == ["image"]
    assert (user.panel.progress.maximum(), user.panel.cancel.isEnabled()) == (1, False)


def square(place: int) -> Patch:
    return Patch(np.ones((5, 5), bool), place, place)


def test_outlines_corrected_by_hand_stay(application):
    from napari.layers import Shapes

    layer = Shapes(ndim=3)
    objects = Outlines(layer)
    objects.put((0,), {1: square(0), 2: square(10)})
    objects.add((0,), [square(20), square(30)], least=3)
    assert layer.features["object"].tolist() == [1, 2, 3, 4]
    layer.add_polygons(np.array([[0, 50, 50], [0, 50, 60], [0, 60, 60]]))  # drawn
    moved = layer.data
    moved[0] = moved[0] + 1
    layer.data = moved
    layer.selected_data = {2}
    layer.remove_selected()
    corrected = [each.copy() for each in layer.data]
    objects.put((1,), {1: square(0)})
    objects.put((0,), {2: square(12)})
    assert layer.features["object"].tolist() == [1, 4, 0, 1, 2]
    shown = [corrected[0], *corrected[2:]]
    assert all((one == other).all() for one, other in zip(layer.data[:3], shown, strict=True))
    assert layer.data[-1].min() == 0
    assert layer.data[-1][:, 1:].min() == 11.5
    assert objects.free_number() == 5
    objects.put((0,), {2: None})
    assert layer.features["object"].tolist() == [1, 4, 0, 1]


@pytest.mark.skipif(shutil.which("xvfb-run") is None, reason="xvfb-run is missing")
def test_a_real_window(service_triton, tmp_path):
    shot = tmp_path / "window.png"
    command = [*("xvfb-run", "-a", "-s", "-screen 0 1600x1000x24"), sys.executable, __file__, service_triton.grpc_url]
    environment = {**os.environ, "QT_QPA_PLATFORM": "xcb"}
    done = subprocess.run([*command, shot], env=environment, timeout=200, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with Image.open(shot) as window:
        colours = window.convert("RGB").getcolors(1 << 22)
    assert len(colours) > 1000  # the image and masks, not a blank canvas


def _window(url: str, shot: str) -> None:
    """Open napari as a person does, click, and keep a screenshot."""
    import napari

    viewer = napari.Viewer(show=True)
    viewer.window._qt_window.resize(1400, 900)
    photo = Path(__file__).parent.parent / "images" / "shapes.jpg"
    viewer.add_image(np.asarray(Image.open(photo).convert("RGB")), name="shapes")
    _, widget = viewer.window.add_plugin_dock_widget("triton-sam", "Segment Anything (Triton)")
    user = User(viewer, widget, url)
    user.begin()
    for x, y in CLICKS:
        user.click(x, y)
        user.panel.next.click()
    user.layers.boxes.add_rectangles([BOX])
    user.wait(lambda: np.any(user.labels() == 3))
    user.panel.next.click()
    user.move(200, 200)
    user.wait(lambda: len(user.layers.preview.data) > 0)
    viewer.reset_view()
    end = time.monotonic() + 1
    user.wait(lambda: time.monotonic() > end)
    Image.fromarray(viewer.screenshot(canvas_only=False, flash=False)).save(shot)
    widget.close_session()
    viewer.close()


if __name__ == "__main__":
    _window(*sys.argv[1:])

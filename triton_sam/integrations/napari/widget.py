"""The plugin's window in napari: it turns the user's input into requests, and shows the results."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from napari.layers import Image
from qtpy.QtCore import QEvent, Signal
from qtpy.QtWidgets import QScrollArea, QVBoxLayout, QWidget

from ...errors import SamError
from .jobs import Ended, Event, Masks, NewObjects, Preview, Progress
from .layers import Layers, source_of
from .panel import LABELS, Panel
from .requests import Clients, Model, Requests, models_at
from .sources import Key, Plane, Prompt, Source, differences

OUTSIDE = "this plane is outside the layer"
HELP = "Click on an object, or draw a box around it in the layer of boxes."


class SegmentWidget(QWidget):
    told = Signal(object, object)
    """The source of requests, and one of their events, sent by other threads."""
    listed = Signal(object)
    """The models of a server, or the error of listing them."""

    def __init__(self, napari_viewer: Any) -> None:
        super().__init__()
        self.viewer = napari_viewer
        self.panel = Panel()
        self._area = QScrollArea()
        self._area.setWidgetResizable(True)
        self._area.setWidget(self.panel)
        QVBoxLayout(self).addWidget(self._area)
        self.requests: Requests | None = None
        self.layers: Layers | None = None
        self._image: Any = None
        self._source: Source | None = None
        self._prompts: dict[Key, Prompt] = {}
        self._bind()
        self._list_images()
        self._show_no_job()
        self._enable()

    def close_session(self) -> None:
        """Cancel all requests, and remove the points, boxes and the preview. Objects stay."""
        requests, layers = self.requests, self.layers
        self.requests = self.layers = None
        if requests is not None:
            requests.close()
        if layers is not None:
            layers.remove()
        self._prompts = {}
        self._show_no_job()
        self._enable()

    def showEvent(self, event: Any) -> None:  # noqa: N802 - Qt's name
        """Make room for all controls, which have the sizes of napari's style only now."""
        super().showEvent(event)
        room = self._area.verticalScrollBar().sizeHint().width() + 2 * self._area.frameWidth()
        self._area.setMinimumWidth(self.panel.minimumSizeHint().width() + room)

    def closeEvent(self, event: Any) -> None:  # noqa: N802 - Qt's name
        self.close_session()
        super().closeEvent(event)

    def changeEvent(self, event: Any) -> None:  # noqa: N802 - Qt's name
        """End the session if napari closes the panel: it takes the widget out of its dock, without a closeEvent."""
        if event.type() == QEvent.Type.ParentChange and self.parent() is None:
            self.close_session()
        super().changeEvent(event)

    def _bind(self) -> None:
        panel = self.panel
        self.told.connect(self._show)
        self.listed.connect(self._show_models)
        actions = {
            panel.connect_button: self._ask_models,
            panel.start: self._begin,
            panel.next: self._next,
            panel.everything: self._everything,
            panel.find: self._find,
            panel.track: self._track,
            panel.cancel: self._cancel,
        }
        for button, action in actions.items():
            button.clicked.connect(action)
        panel.number.valueChanged.connect(self._choose)
        panel.label.currentIndexChanged.connect(self._choose)
        self.viewer.mouse_move_callbacks.append(self._moved)
        self.viewer.layers.events.inserted.connect(self._inserted)
        self.viewer.layers.events.removed.connect(self._removed)

    def _list_images(self, chosen: Any = None) -> None:
        """List the image layers, and choose one; None: the same as before."""
        images = [each for each in self.viewer.layers if isinstance(each, Image)]
        chosen = chosen or self.panel.images.currentData()
        self.panel.images.clear()
        for each in images:
            self.panel.images.addItem(each.name, each)
        if chosen in images:
            self.panel.images.setCurrentIndex(images.index(chosen))

    def _inserted(self, event: Any) -> None:
        self._list_images(event.value if isinstance(event.value, Image) else None)

    def _removed(self, event: Any) -> None:
        self._list_images()
        if self.layers is not None and event.value in [self._image, *self.layers.all()]:
            self.close_session()

    def _ask_models(self) -> None:
        self._say("connecting ...")
        address = self.panel.address.text().strip() or None

        def work() -> None:
            try:
                self.listed.emit(models_at(address))
            except SamError as error:
                self.listed.emit(error)

        threading.Thread(target=work, daemon=True).start()

    def _show_models(self, found: list[Model] | SamError) -> None:
        self.panel.models.clear()
        if isinstance(found, SamError):
            self._say(str(found))
        else:
            for each in found:
                self.panel.models.addItem(each.name, each)
            self._say("Choose a layer, and press the button below it.")
        self._enable()

    def _begin(self) -> None:
        image, model = self.panel.images.currentData(), self.panel.models.currentData()
        if image is None:
            self._say("open an image first")
            return
        self.close_session()
        self._image = image
        try:
            self._source = source = source_of(self._image)
            clients = Clients(self.panel.address.text().strip() or None, model)
        except SamError as error:
            self._say(str(error))
            return
        self.requests = Requests(clients, source, lambda event: self.told.emit(source, event))
        self.layers = layers = Layers(self.viewer, self._image, source)
        for each in (layers.points, layers.boxes):
            each.events.data.connect(self._changed)
            each.bind_key("n", lambda _: self._next(), overwrite=True)
            each.bind_key("t", lambda _: self._toggle(), overwrite=True)
        self.panel.axis.clear()
        self.panel.axis.addItems([f"axis {number}" for number in range(len(source.stack))])
        self.panel.axis.setCurrentIndex(len(source.stack) - 1)
        self.panel.number.setValue(1)
        self.panel.label.setCurrentIndex(0)
        self._choose()
        self._enable()
        self._say(HELP)
        if (plane := self._plane()) is not None:
            self.requests.prepare(plane)

    def _enable(self) -> None:
        is_open = self.requests is not None
        self.panel.start.setEnabled(self.panel.models.count() > 0)
        self.panel.clicks.setEnabled(is_open)
        self.panel.jobs.setEnabled(is_open)
        self.panel.track.setEnabled(is_open and self.panel.axis.count() > 0)

    def _choose(self, _: Any = None) -> None:
        if self.layers is not None:
            self.layers.choose(self.panel.number.value(), self.panel.chosen_label())

    def _next(self) -> None:
        if self.layers is not None:
            self.panel.number.setValue(max(self.layers.objects.free_number(), self._above_prompts()))
            self.panel.label.setCurrentIndex(0)

    def _above_prompts(self) -> int:
        return max((number for _, number in self._prompts), default=0) + 1

    def _toggle(self) -> None:
        self.panel.label.setCurrentIndex(1 - self.panel.label.currentIndex() % len(LABELS))

    def _changed(self, _: Any = None) -> None:
        """Request the objects whose points or boxes differ from the last requested ones."""
        if self.layers is None or self.requests is None or self._source is None:
            return
        given = self.layers.prompts()
        after = {(plane, number): prompt for (plane, number), prompt in given.items() if self._source.has(plane)}
        changed, gone = differences(self._prompts, after)
        if len(after) < len(given):
            self._say(OUTSIDE)
        elif changed and not self.panel.cancel.isEnabled():  # no job has the line
            self._say(HELP)  # instead of an earlier error
        self._prompts = after
        self.requests.leave()
        self.layers.show_preview((), None)
        for (plane, number), prompt in changed.items():
            self.requests.segment(plane, number, prompt)
        for plane, number in gone:
            self.requests.forget(plane, number)

    def _moved(self, _: Any, event: Any) -> None:
        if self.layers is None or self.requests is None or self._source is None:
            return
        plane = self._plane()
        row, column = map(float, self._image.world_to_data(event.position)[-2:])
        if not self.panel.hover.isChecked() or plane is None or not self._is_inside(row, column):
            self.requests.leave()
            self.layers.show_preview((), None)
            return
        known = self._prompts.get((plane, self.panel.number.value()), Prompt())
        self.requests.preview(plane, known.with_point(column, row, self.panel.chosen_label()))

    def _is_inside(self, row: float, column: float) -> bool:
        width, height = self._source.size if self._source is not None else (0, 0)
        return -0.5 <= row <= height - 0.5 and -0.5 <= column <= width - 0.5

    def _plane(self) -> Plane | None:
        """Return the visible plane; None if it is outside the layer, or the viewer does not show the last two axes."""
        dims, source = self.viewer.dims, self._source
        if source is None or tuple(dims.displayed) != (dims.ndim - 2, dims.ndim - 1):
            self._say("show the last two axes in 2D, because the masks are of these planes")
            return None
        place = self._image.world_to_data(dims.point)[: len(source.stack)]
        plane = tuple(round(float(value)) for value in place)
        if not source.has(plane):
            self._say(OUTSIDE)
            return None
        return plane

    def _everything(self) -> None:
        self._job(lambda requests, plane: requests.everything(plane, **self.panel.parameters()))

    def _find(self) -> None:
        texts = self.panel.texts()
        if not texts:
            self._say("enter words to find, with commas between them")
            return
        self._job(lambda requests, plane: requests.find(plane, texts, self.panel.threshold.value()))

    def _track(self) -> None:
        axis = self.panel.axis.currentIndex()
        self._job(lambda requests, plane: requests.track(self._prompts, plane, axis))

    def _job(self, start: Callable[[Requests, Plane], None]) -> None:
        plane = self._plane()
        if self.requests is None or plane is None:
            return
        self.panel.progress.setRange(0, 0)  # busy, until the first progress event
        self.panel.cancel.setEnabled(True)
        self._say("working ...")
        start(self.requests, plane)

    def _cancel(self) -> None:
        if self.requests is not None:
            self.requests.cancel()

    def _show(self, source: Source, event: Event) -> None:
        layers = self.layers
        if layers is None or source is not self._source:  # the event was under way when its session ended
            return
        if isinstance(event, Preview):
            layers.show_preview(event.plane, event.patch)
        elif isinstance(event, Masks):
            layers.objects.put(event.plane, event.patches)
        elif isinstance(event, NewObjects):
            layers.objects.add(event.plane, event.patches, least=self._above_prompts())
            if all(number != self.panel.number.value() for _, number in self._prompts):
                self._next()  # the next click is a new object, not one that was found
        elif isinstance(event, Progress):
            self.panel.progress.setRange(0, event.total)
            self.panel.progress.setValue(event.done)
        elif isinstance(event, Ended):
            self._say(event.text)
            if event.is_job:
                self._show_no_job()

    def _show_no_job(self) -> None:
        self.panel.progress.setRange(0, 1)
        self.panel.progress.reset()
        self.panel.cancel.setEnabled(False)

    def _say(self, text: str) -> None:
        self.panel.status.setText(text)

"""The plugin's controls, independent of napari and of the server."""

from __future__ import annotations

import os
from typing import Any

from qtpy.QtWidgets import (
    QCheckBox,
    QComboBox,
    QDoubleSpinBox,
    QFormLayout,
    QGroupBox,
    QHBoxLayout,
    QLabel,
    QLineEdit,
    QProgressBar,
    QPushButton,
    QSpinBox,
    QVBoxLayout,
    QWidget,
)

LABELS = {"inside the object": 1, "outside of it": 0}


class Panel(QWidget):
    def __init__(self) -> None:
        super().__init__()
        column = QVBoxLayout(self)
        self.address = QLineEdit(os.environ.get("TRITON_URL", "localhost:8000"))
        self.connect_button = QPushButton("Connect")
        self.models, self.images = QComboBox(), QComboBox()
        self.start = QPushButton("Segment this layer")
        column.addWidget(
            _group("Server", [("Triton", _row(self.address, self.connect_button)), ("Model", self.models)])
        )
        column.addWidget(_group("Image", [("Layer", self.images), ("", self.start)]))
        self.number = QSpinBox()
        self.number.setRange(1, 65535)
        self.next = QPushButton("Next (N)")
        self.label = QComboBox()
        self.label.addItems(list(LABELS))
        self.hover = QCheckBox("Show the mask under the mouse")
        self.hover.setChecked(True)
        rows = [("Object", _row(self.number, self.next)), ("Clicks (T)", self.label), ("", self.hover)]
        self.clicks = _group("Points and boxes", rows)
        self.points_per_side = QSpinBox()
        self.points_per_side.setRange(1, 128)
        self.points_per_side.setValue(32)
        self.everything = QPushButton("Find everything")
        self.words = QLineEdit()
        self.words.setPlaceholderText("dog, cat (needs SAM3)")
        self.quality, self.stability, self.threshold = _share(0.8), _share(0.95), _share(0.3)
        self.find = QPushButton("Find words")
        self.axis = QComboBox()
        self.track = QPushButton("Follow the objects")
        rows = [
            ("Points per side", self.points_per_side),
            ("Least IoU", self.quality),
            ("Least stability", _row(self.stability, self.everything)),
            ("Words", self.words),
            ("Least score", _row(self.threshold, self.find)),
            ("Axis", _row(self.axis, self.track)),
        ]
        self.jobs = _group("Jobs", rows)
        column.addWidget(self.clicks)
        column.addWidget(self.jobs)
        self.progress = QProgressBar()
        self.cancel = QPushButton("Cancel")
        column.addWidget(_row(self.progress, self.cancel))
        self.status = QLabel("Enter the address of a Triton server, and connect.")
        self.status.setWordWrap(True)
        column.addWidget(self.status)
        column.addStretch()

    def parameters(self) -> dict[str, Any]:
        return {
            "points_per_side": self.points_per_side.value(),
            "pred_iou_thresh": round(self.quality.value(), 2),
            "stability_score_thresh": round(self.stability.value(), 2),
        }

    def texts(self) -> list[str]:
        return [text for each in self.words.text().split(",") if (text := each.strip())]

    def chosen_label(self) -> int:
        """Return 1 if clicks mark the object, 0 if they mark the background."""
        return LABELS[self.label.currentText()]


def _group(title: str, rows: list[tuple[str, QWidget]]) -> QGroupBox:
    box = QGroupBox(title)
    form = QFormLayout(box)
    for label, widget in rows:
        form.addRow(label, widget)
    return box


def _share(value: float) -> QDoubleSpinBox:
    box = QDoubleSpinBox()
    box.setRange(0, 1)
    box.setSingleStep(0.05)
    box.setValue(value)
    return box


def _row(*widgets: QWidget) -> QWidget:
    whole = QWidget()
    row = QHBoxLayout(whole)
    row.setContentsMargins(0, 0, 0, 0)
    for each in widgets:
        row.addWidget(each)
    return whole

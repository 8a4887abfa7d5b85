"""The curves of a training run as a PNG file."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from .._common import strict_json
from .._common.files import atomic_path, atomic_write

_CURVES = (("click", "1 click"), ("click_best", "1 click, best of three"), ("click3", "3 clicks"), ("box", "box"))


def plot_history(history: Sequence[dict[str, float]], path: Path) -> None:
    """Write the history as `path`.json, and plot loss and IoU over the steps as `path`.png.

    Vertical lines mark changes of the training resolution. A history of fewer than two entries gets no plot.

    Args:
        history: the entries of Progress.history.
        path: path of both files, without a suffix.

    Raises:
        OSError: a file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path.with_suffix(".json"), strict_json.dumps(list(history)).encode())
    if len(history) < 2:
        return
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6), layout="constrained")
    FigureCanvasAgg(figure)
    above, below = figure.subplots(2, 1, sharex=True)
    steps = [entry["step"] for entry in history]
    above.plot(steps, [entry["loss"] for entry in history], color="black", linewidth=1)
    above.set_ylabel("loss")
    for key, name in _CURVES:
        points = [(entry["step"], entry[key]) for entry in history if key in entry]
        below.plot([x for x, _ in points], [y for _, y in points], linewidth=1, label=name)
    below.set(ylabel="IoU on training scenes", xlabel="step", ylim=(0, 1))
    below.legend(loc="lower right")
    for before, after in pairwise(history):
        if before["size"] != after["size"]:
            for axes in (above, below):
                axes.axvline(after["step"], color="grey", linewidth=0.7)
    with atomic_path(path.with_suffix(".png")) as partial:
        figure.savefig(partial, dpi=110)

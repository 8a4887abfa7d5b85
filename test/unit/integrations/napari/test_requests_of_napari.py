"""Requests of the plugin of napari without a server."""

import threading

import numpy as np
import pytest
from support.conditions import PATIENCE

from triton_sam.errors import ConfigurationError
from triton_sam.integrations.napari.requests import Clients, Model, Requests
from triton_sam.integrations.napari.sources import Source


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

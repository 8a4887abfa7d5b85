"""Fixtures of the training's tests."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def trainer_module():
    pytest.importorskip("sam2")
    import torch

    from triton_sam.train import trainer

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tiny tensors: threads only wait for each other
    yield trainer
    torch.set_num_threads(threads)

"""`verify sam3-concepts` without a model: rows, verdicts and options."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from triton_sam.concepts.instances import Instance
from triton_sam.export.reference import FoundInstance
from triton_sam.verify import format_table
from triton_sam.verify.concepts import LIMITS, answered_cases, verify_concepts

SIZE = (40, 30)


def square(shift: int = 0) -> np.ndarray:
    mask = np.zeros((30, 40), bool)
    mask[5:15, 5 + shift : 15 + shift] = True
    return mask


class Reference:
    """Finds ten instances of the first text, with scores from 0.9 down."""

    def set_image(self, image) -> None:
        assert image.size == SIZE

    def find(self, text, boxes=None, box_labels=None, *, threshold, mask_threshold=0.5):
        scores = [0.9 - 0.05 * index for index in range(10)]
        return [FoundInstance(0, score, (5.0, 5.0, 15.0, 15.0), square()) for score in scores if score > threshold]


class Client:
    """Finds the same, but for what a test changes."""

    def __init__(self, score: float = 0.0, box: float = 0.0, shift: int = 0, drop: int = 0) -> None:
        self.score, self.box, self.shift, self.drop = score, box, shift, drop

    def find(self, text, *, image, threshold, **arguments):
        found = Reference().find(text, threshold=threshold)[self.drop :]
        box = (5.0 + self.box, 5.0, 15.0, 15.0)
        return [Instance(square(self.shift), each.score + self.score, None, 0, 0, box) for each in found]


def rows(client: Client) -> list:
    image = Image.new("RGB", SIZE)
    return list(verify_concepts(answered_cases(Reference(), image), "inside", client, image))


def test_equal_answers_pass_and_each_case_has_instances() -> None:
    found = rows(Client())
    assert [row.official for row in found] == [6] * 6 + [0]
    assert all(row.passes(LIMITS["fp32"]) for row in found)
    table = format_table(found, LIMITS["fp32"])
    assert table.count("ok") == 7
    assert "FAIL" not in table


@pytest.mark.parametrize(
    "change", [{"score": 2e-4}, {"box": 0.01}, {"shift": 1}, {"drop": 1}], ids=lambda change: next(iter(change))
)
def test_each_kind_of_difference_fails(change: dict) -> None:
    found = rows(Client(**change))
    assert not any(row.passes(LIMITS["fp32"]) for row in found[:6])
    assert found[6].passes(LIMITS["fp32"])
    assert "FAIL" in format_table(found, LIMITS["fp32"])

"""The classes with the official names: parameters, records, errors."""

from types import SimpleNamespace

import numpy as np
import pytest
from support.rectangles import found_mask

from triton_sam import ConfigurationError, SAM2AutomaticMaskGenerator, SamAutomaticMaskGenerator
from triton_sam.client.mask_generator import generator_of
from triton_sam.everything.parameters import Parameters
from triton_sam.families import get_family
from triton_sam.masks.cleanup import Cleanup

MODULES = {"sam1": "segment_anything.automatic_mask_generator", "sam2": "sam2.automatic_mask_generator"}


class FakeClient:
    """Answers with one mask, and remembers the request."""

    def __init__(self, family="sam2"):
        self.family = get_family(family)
        self.asked = []
        mask = np.zeros((6, 8), bool)
        mask[1:4, 2:7] = True
        self.segment = found_mask(mask, (4.0, 2.5), (2, 1, 8, 6)).segment()

    def everything(self, image, **parameters):
        self.asked.append((image, Parameters(**parameters)))
        return [self.segment]


def official_record(mode):
    """Return the record that the official code writes for the mask of FakeClient."""
    torch = pytest.importorskip("torch")
    amg = pytest.importorskip("sam2.utils.amg")
    mask = torch.from_numpy(FakeClient().segment.mask)[None]
    (rle,) = amg.mask_to_rle_pytorch(mask)
    forms = {
        "binary_mask": amg.rle_to_mask,
        "uncompressed_rle": lambda rle: rle,
        "coco_rle": amg.coco_encode_rle,
    }
    return {
        "segmentation": forms[mode](rle),
        "area": amg.area_from_rle(rle),
        "bbox": amg.box_xyxy_to_xywh(amg.batched_mask_to_box(mask)[0]).tolist(),
        "predicted_iou": 0.9,
        "point_coords": [[4.0, 2.5]],
        "stability_score": 0.97,
        "crop_box": amg.box_xyxy_to_xywh(torch.tensor([2, 1, 8, 6])).tolist(),
    }


@pytest.mark.export
@pytest.mark.parametrize("mode", ["binary_mask", "uncompressed_rle", "coco_rle"])
def test_records_equal_the_official_ones(mode):
    expected = official_record(mode)
    (record,) = SAM2AutomaticMaskGenerator(FakeClient(), output_mode=mode).generate("image.jpg")
    assert list(record) == list(expected)
    np.testing.assert_equal(record, expected)


@pytest.mark.export
@pytest.mark.parametrize("ours", [SamAutomaticMaskGenerator, SAM2AutomaticMaskGenerator])
def test_parameters_and_defaults_are_the_official_ones(ours):
    import importlib
    import inspect

    official = getattr(pytest.importorskip(MODULES[ours.family]), ours.__name__)
    assert importlib.import_module(MODULES[ours.family])
    expected, found = (inspect.signature(each.__init__).parameters for each in (official, ours))
    expected = {name: each.default for name, each in expected.items() if name not in ("model", "kwargs", "self")}
    assert {name: each.default for name, each in found.items() if name not in ("client", "self")} == expected
    assert list(expected) == list(found)[2:]


def test_all_parameters_reach_the_client():
    client = FakeClient()
    SAM2AutomaticMaskGenerator(client, 16, pred_iou_thresh=0.1, use_m2m=True, mask_threshold=0.5).generate("image.jpg")
    ((image, parameters),) = client.asked
    assert image == "image.jpg"
    assert parameters == Parameters(16, pred_iou_thresh=0.1, use_m2m=True, mask_threshold=0.5)


def test_there_is_no_other_output_mode():
    with pytest.raises(ConfigurationError, match="there is no output_mode 'png'"):
        SAM2AutomaticMaskGenerator(FakeClient(), output_mode="png")


def test_small_regions_are_removed_as_each_official_generator_does_it():
    for family, generator, expected in [
        ("sam1", SamAutomaticMaskGenerator, {"min_mask_region_area": 10}),
        ("sam2", SAM2AutomaticMaskGenerator, {"cleanup": Cleanup(max_hole_area=10, max_sprinkle_area=10)}),
    ]:
        client = FakeClient(family)
        generator(client, min_mask_region_area=10, pred_iou_thresh=0.5).generate("image.jpg")
        assert client.asked[0][1] == Parameters(32, 0.5, **expected)
    for family, generator in (("sam1", SamAutomaticMaskGenerator), ("sam2", SAM2AutomaticMaskGenerator)):
        with pytest.raises(ConfigurationError, match=r"min_mask_region_area.*must be a number of at least 0"):
            generator(FakeClient(family), min_mask_region_area=-1)
    with pytest.raises(ConfigurationError, match="use_m2m"):
        SAM2AutomaticMaskGenerator(FakeClient(), use_m2m=3)


def test_the_client_is_one_of_the_family():
    with pytest.raises(ConfigurationError, match="needs a client of sam1, not of sam2"):
        SamAutomaticMaskGenerator(FakeClient("sam2"))
    other = SimpleNamespace(family=get_family("sam3"))
    with pytest.raises(ConfigurationError, match="needs a client of sam2, not of sam3"):
        SAM2AutomaticMaskGenerator(other)


@pytest.mark.parametrize("family", ["sam3", "edgetam"])
def test_a_family_without_official_generator(family):
    known = "sam1, sam2, mobilesam, samhq"
    with pytest.raises(ConfigurationError, match=f"{family} has no official mask generator: use {known}"):
        generator_of(FakeClient(family))


@pytest.mark.parametrize(
    ("family", "kind"), [("mobilesam", SamAutomaticMaskGenerator), ("sam2", SAM2AutomaticMaskGenerator)]
)
def test_each_family_has_the_generator_that_its_table_names(family, kind):
    assert type(generator_of(FakeClient(family))) is kind


def test_generate_takes_the_kind_of_masks_as_sam_hqs_generator_does():
    client = FakeClient("samhq")
    generator = SamAutomaticMaskGenerator(client)
    generator.generate("image.jpg")
    generator.generate("image.jpg", multimask_output=False)
    assert [parameters.multimask_output for _, parameters in client.asked] == [True, False]

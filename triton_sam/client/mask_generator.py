"""The official mask generators with a served model: the same names, parameters and records.

>>> from triton_sam import SAM2AutomaticMaskGenerator, SAM2TritonClient
>>> generator = SAM2AutomaticMaskGenerator(SAM2TritonClient("localhost:8000"), points_per_side=16)
>>> records = generator.generate("image.jpg")
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..errors import ConfigurationError, InputError
from ..everything.parameters import Parameters
from ..everything.search import FoundObject, last_pixels, official_record
from ..families import FAMILIES, get_family
from ..inputs.images import ImageSource
from ..masks.cleanup import Cleanup

if TYPE_CHECKING:
    from .sync import SamTritonClient

OUTPUT_MODES = ("binary_mask", "uncompressed_rle", "coco_rle")
"""The forms of a record's ``segmentation``: an array bool (H,W), or COCO RLE whose counts are a list or a string."""
_OVERLAP = 512 / 1500


class SamAutomaticMaskGenerator:
    """segment_anything.SamAutomaticMaskGenerator with a served SAM1: official names and defaults.

    Args:
        client: a client of SAM1, MobileSAM or SAM-HQ, ``SamTritonClient(url, "sam1")``.
        points_per_side: number of points along one side of the image; None with ``point_grids``.
        points_per_batch: number of points in one call of the official model. It has no effect here.
        pred_iou_thresh: masks need a predicted IoU above this, 0..1; 0 turns the filter off.
        stability_score_thresh: minimum stability of a mask, 0..1; 0 turns the filter off.
        stability_score_offset: distance between the two logit thresholds whose masks the stability compares.
        box_nms_thresh: if the boxes of two masks of one crop have an IoU above this, 0..1, one mask is dropped.
        crop_n_layers: number of layers of crops; layer i has (2^i)^2 crops.
        crop_nms_thresh: as box_nms_thresh, for masks of different crops.
        crop_overlap_ratio: overlap of the crops as a fraction of the image, 0..1.
        crop_n_points_downscale_factor: layer i has points_per_side divided by this number to the power of i.
        point_grids: one array (N,2) of points in 0..1 for each layer, instead of ``points_per_side``.
        min_mask_region_area: holes with fewer pixels are filled, and parts with fewer pixels dropped; 0 turns this off.
        output_mode: one of OUTPUT_MODES.

    Raises:
        ConfigurationError: the client is of another family, not exactly one of points_per_side and point_grids is
            given, a number is out of range, or the output_mode is unknown.
    """

    family = "sam1"

    def __init__(
        self,
        client: SamTritonClient,
        points_per_side: int | None = 32,
        points_per_batch: int = 64,  # noqa: ARG002 - the official name
        pred_iou_thresh: float = 0.88,
        stability_score_thresh: float = 0.95,
        stability_score_offset: float = 1.0,
        box_nms_thresh: float = 0.7,
        crop_n_layers: int = 0,
        crop_nms_thresh: float = 0.7,
        crop_overlap_ratio: float = _OVERLAP,
        crop_n_points_downscale_factor: int = 1,
        point_grids: Sequence[npt.NDArray[Any]] | None = None,
        min_mask_region_area: int = 0,
        output_mode: str = "binary_mask",
    ) -> None:
        self._client = client
        self._output_mode = output_mode
        self._parameters: dict[str, Any] = {
            "points_per_side": points_per_side,
            "pred_iou_thresh": pred_iou_thresh,
            "stability_score_thresh": stability_score_thresh,
            "stability_score_offset": stability_score_offset,
            "box_nms_thresh": box_nms_thresh,
            "crop_n_layers": crop_n_layers,
            "crop_nms_thresh": crop_nms_thresh,
            "crop_overlap_ratio": crop_overlap_ratio,
            "crop_n_points_downscale_factor": crop_n_points_downscale_factor,
            "point_grids": point_grids,
        }
        self._parameters |= self._cleaning(min_mask_region_area)
        self._check()

    def generate(self, image: ImageSource, multimask_output: bool | None = None) -> list[dict[str, Any]]:
        """Segment all objects of an image.

        Args:
            image: uint8 RGB array (H,W,3), or any other form that the client accepts.
            multimask_output: whether the candidates of each point come from the masks for ambiguous prompts, instead
                of the one for clear prompts. segment_anything_hq has this parameter here. None: the value of the
                constructor, which is True for SAM1's generators.

        Returns:
            A record for each mask, with the official keys: ``segmentation`` (see output_mode), ``area`` (pixels),
            ``bbox`` (x, y, width, height; from the first to the last pixel), ``predicted_iou``, ``point_coords`` (the
            point [[x, y]]), ``stability_score`` and ``crop_box`` (x, y, width, height).

        Raises:
            ImageError: the image cannot be used.
            ServerError: see triton_sam.errors.
        """
        chosen = {} if multimask_output is None else {"multimask_output": multimask_output}
        found = self._client.everything(image, **{**self._parameters, **chosen})
        return [official_record(each, last_pixels(each.mask), self._segmentation(each)) for each in found]

    @staticmethod
    def _cleaning(min_mask_region_area: int) -> dict[str, Any]:
        """Return the parameters for ``min_mask_region_area``: SAM1's generator cleans the full-size masks."""
        return {"min_mask_region_area": min_mask_region_area}

    def _check(self) -> None:
        wanted, family = self.family, self._client.family
        # MobileSAM and SAM-HQ have SAM1's generator, and EdgeTAM has SAM2's decoder.
        if family.mask_generator != wanted and family.decoder != get_family(wanted).decoder:
            raise ConfigurationError(
                f"{type(self).__name__} needs a client of {wanted}, not of {family.name}: "
                f'give SamTritonClient(url, "{wanted}")'
            )
        if self._output_mode not in OUTPUT_MODES:
            raise ConfigurationError(
                f"there is no output_mode {self._output_mode!r}: give one of {', '.join(OUTPUT_MODES)}"
            )
        Parameters(**self._parameters)

    def _segmentation(self, segment: FoundObject) -> npt.NDArray[np.bool_] | dict[str, Any]:
        if self._output_mode == "binary_mask":
            mask: npt.NDArray[np.bool_] = segment.mask
            return mask
        rle: dict[str, Any] = segment.to_rle(compressed=self._output_mode == "coco_rle")
        return rle


class SAM2AutomaticMaskGenerator(SamAutomaticMaskGenerator):
    """sam2.automatic_mask_generator.SAM2AutomaticMaskGenerator with a served SAM2: official names and defaults.

    Args:
        client: a client of SAM2, ``SAM2TritonClient(url)``.
        mask_threshold: logits above it are foreground.
        min_mask_region_area: holes of up to this many pixels of the low-resolution logits are filled, parts dropped.
            The official generator does this only with its CUDA kernel.
        use_m2m: whether to refine each mask once, with its logits as a prompt.
        multimask_output: see generate().

    The other arguments and the errors are those of SamAutomaticMaskGenerator.
    """

    family = "sam2"

    def __init__(
        self,
        client: SamTritonClient,
        points_per_side: int | None = 32,
        points_per_batch: int = 64,
        pred_iou_thresh: float = 0.8,
        stability_score_thresh: float = 0.95,
        stability_score_offset: float = 1.0,
        mask_threshold: float = 0.0,
        box_nms_thresh: float = 0.7,
        crop_n_layers: int = 0,
        crop_nms_thresh: float = 0.7,
        crop_overlap_ratio: float = _OVERLAP,
        crop_n_points_downscale_factor: int = 1,
        point_grids: Sequence[npt.NDArray[Any]] | None = None,
        min_mask_region_area: int = 0,
        output_mode: str = "binary_mask",
        use_m2m: bool = False,
        multimask_output: bool = True,
    ) -> None:
        super().__init__(
            client,
            points_per_side,
            points_per_batch,
            pred_iou_thresh,
            stability_score_thresh,
            stability_score_offset,
            box_nms_thresh,
            crop_n_layers,
            crop_nms_thresh,
            crop_overlap_ratio,
            crop_n_points_downscale_factor,
            point_grids,
            min_mask_region_area,
            output_mode,
        )
        self._parameters |= {
            "mask_threshold": mask_threshold,
            "use_m2m": use_m2m,
            "multimask_output": multimask_output,
        }
        self._check()

    @staticmethod
    def _cleaning(min_mask_region_area: int) -> dict[str, Any]:
        """Return the parameters for ``min_mask_region_area``: SAM2's predictor cleans the low-resolution logits."""
        try:
            cleanup = Cleanup(max_hole_area=min_mask_region_area, max_sprinkle_area=min_mask_region_area)
        except InputError as error:
            raise ConfigurationError(f"min_mask_region_area: {error}") from error
        return {"cleanup": cleanup}


GENERATORS = {each.family: each for each in (SamAutomaticMaskGenerator, SAM2AutomaticMaskGenerator)}
"""The classes by Family.mask_generator."""


def families_with_generators() -> list[str]:
    """Return the names of the families that have an official mask generator."""
    return [name for name, family in FAMILIES.items() if family.mask_generator]


def generator_of(client: SamTritonClient, **parameters: Any) -> SamAutomaticMaskGenerator:
    """Return the generator of a client's family.

    Raises:
        ConfigurationError: the family has no official mask generator, or a parameter is invalid.
    """
    kind = GENERATORS.get(client.family.mask_generator)
    if kind is None:
        known = ", ".join(families_with_generators())
        raise ConfigurationError(f"{client.family.name} has no official mask generator: use {known}")
    return kind(client, **parameters)

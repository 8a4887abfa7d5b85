"""SAM1: the tensors and the image frame of its predictor. Reference: segment_anything.SamPredictor."""

from __future__ import annotations

from collections.abc import Mapping

from . import points
from .base import Family
from .tables import DECODER, ENCODER, Checkpoint, ModelSize, ModelSpec, Option, Tensor, by_role

LIGHT_MICROSCOPY = "cells and nuclei in light microscopy"
ELECTRON_MICROSCOPY = "mitochondria, nuclei and other organelles in electron microscopy"

_STORE = "https://uk1s3.embassy.ebi.ac.uk/public-datasets/bioimage.io"
_CLOUD = "https://owncloud.gwdg.de/index.php/s"
PIXEL_MEAN = (123.675 / 255, 116.28 / 255, 103.53 / 255)
"""Mean of RGB values in 0..1, from segment_anything.build_sam."""
PIXEL_STD = (58.395 / 255, 57.12 / 255, 57.375 / 255)
"""Standard deviation of RGB values in 0..1, from segment_anything.build_sam."""


def micro_sam(family: str, purpose: str, files: Mapping[str, tuple[str, str]]) -> tuple[Checkpoint, ...]:
    """Return the rows of one kind of models.

    Args:
        files: maps each name, which begins with the size, to the XXH128 of the file, and its folder in the store of
            bioimage.io ("diplomatic-bug/1.2") or its key in the authors' cloud.
    """
    return tuple(
        Checkpoint(
            family,
            name[:5],
            f"{_STORE}/{place}/files/{name[:5]}.pt" if "/" in place else f"{_CLOUD}/{place}/download",
            None,
            "",
            name,
            f"xxh128:{digest}",
            licence="CC-BY-4.0" if "/" in place else "see its page",
            purpose=purpose,
        )
        for name, (digest, place) in files.items()
    )


_FILES = "https://dl.fbaipublicfiles.com/segment_anything"

EMBEDDINGS = (Tensor("image_embeddings", "FP32", ("images", 256, 64, 64)),)

SAM1 = Family(
    name="sam1",
    label="SAM1",
    image_size=1024,
    mask_size=256,
    value_range=(0.0, 1.0),
    keep_aspect=True,
    pad_color=PIXEL_MEAN,
    pixel_mean=PIXEL_MEAN,
    pixel_std=PIXEL_STD,
    resampling="pillow",
    models=by_role(
        ModelSpec(
            role=ENCODER,
            inputs=(Tensor("image", "FP32", ("images", 3, 1024, 1024)),),
            outputs=EMBEDDINGS,
        ),
        ModelSpec(
            role=DECODER,
            inputs=(*EMBEDDINGS, *points.PROMPT_INPUTS),
            outputs=points.MASK_OUTPUTS,
            dimensions=points.DECODER_DIMENSIONS,
            limits=points.DECODER_LIMITS,
        ),
    ),
    decoder_inputs=points.decoder_inputs,
    requested_outputs=points.requested_outputs,
    read_masks=points.read_masks,
    sizes=(
        ModelSize("vit_b", config="sam1_vit_b"),
        ModelSize("vit_l", config="sam1_vit_l"),
        ModelSize("vit_h", config="sam1_vit_h"),
        ModelSize("micro", official=False, config="sam1_micro"),
    ),
    default_size="vit_b",
    random_size="vit_b",
    quick_size="micro",
    checkpoints=tuple(
        Checkpoint("sam1", size, f"{_FILES}/sam_{size}_{mark}.pth", length, sha256)
        for size, mark, length, sha256 in (
            ("vit_b", "01ec64", 375042383, "ec2df62732614e57411cdcf32a23ffdf28910380d03139ee0f4fcbe91eb8c912"),
            ("vit_l", "0b3195", 1249524607, "3adcc4315b642a4d2101128f611684e8734c41232a17c648ed1693702a49a622"),
            ("vit_h", "4b8939", 2564550879, "a7bf3b02f3ebf1267aba913ff637d9a2d5c33d3173bb679e46d9f338c26f262e"),
        )
    ),
    fine_tunes=(
        *micro_sam(
            "sam1",
            LIGHT_MICROSCOPY,
            {
                "vit_b_lm": ("fe9252a29f3f4ea53c15a06de471e186", "diplomatic-bug/1.2"),
                "vit_l_lm": ("017f20677997d628426dec80a8018f9d", "idealistic-rat/1.2"),
            },
        ),
        *micro_sam(
            "sam1",
            ELECTRON_MICROSCOPY,
            {
                "vit_b_em_organelles": ("f3bf2ed83d691456bae2c3f9a05fb438", "noisy-ox/1.2"),
                "vit_l_em_organelles": ("810b084b6e51acdbf760a993d8619f2d", "humorous-crab/1.2"),
            },
        ),
        *micro_sam(
            "sam1",
            "nuclei in stained tissue",
            {
                "vit_b_histopathology": ("ffd1a2cd84570458b257bd95fdd8f974", "sBB4H8CTmIoBZsQ"),
                "vit_l_histopathology": ("b591833c89754271023e901281dee3f2", "IZgnn1cpBq2PHod"),
                "vit_h_histopathology": ("bd1856dafc156a43fb3aa705f1a6e92e", "L7AcvVz7DoWJ2RZ"),
            },
        ),
        *micro_sam(
            "sam1",
            "X-ray, CT, MRI and ultrasound images",
            {
                "vit_b_medical_imaging": ("40169f1e3c03a4b67bff58249c176d92", "f5Ol4FrjPQWfjUF"),
            },
        ),
        Checkpoint(
            "sam1",
            "vit_b",
            "https://zenodo.org/records/10689643/files/medsam_vit_b.pth",
            None,
            "",
            "medsam",
            # The hash that Zenodo shows beside the file, according to two public projects.
            "md5:3bb6db55bd0c9ca30b61248bca72f8d6",
            licence="see its page",
            purpose="medical images, with a box around the object",
        ),
    ),
    options=(
        Option("--model-type", "the same as --size", choices=("vit_b", "vit_l", "vit_h"), names_model=True),
        Option("--model-cfg", "the same as --size", commands=("verify",), metavar="NAME_OR_FILE", names_model=True),
    ),
    exporter="triton_sam.export.sam1:EXPORTER",
    mask_generator="sam1",
    pred_iou_thresh=0.88,
)
"""SAM1 in every size. The encoder takes RGB in 0..1; the longest side of the image is scaled to 1024 pixels.

The graph subtracts the mean and divides by the standard deviation. The padding at the right or at the bottom has
the mean colour, so that it becomes zero there: the official code pads with zeros after the normalisation.
"""

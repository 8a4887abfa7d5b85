"""SAM2.1: the tensors and the image frame of its predictor. Reference: sam2.sam2_image_predictor.SAM2ImagePredictor."""

from __future__ import annotations

from . import points
from .base import Family
from .tables import DECODER, ENCODER, Checkpoint, ModelSize, ModelSpec, Option, Tensor, by_role
from .tracking import sam2_tracking

_FILES = "https://dl.fbaipublicfiles.com/segment_anything_2/092824"
_SAM20_FILES = "https://dl.fbaipublicfiles.com/segment_anything_2/072824"
_CONFIG = "configs/sam2.1/sam2.1_hiera"

EMBEDDINGS = (
    Tensor("image_embeddings", "FP32", ("images", 256, 64, 64)),
    Tensor("high_res_feats_0", "FP32", ("images", 32, 256, 256)),
    Tensor("high_res_feats_1", "FP32", ("images", 64, 128, 128)),
)
TRACKING = sam2_tracking(EMBEDDINGS, 1024)

SAM2 = Family(
    name="sam2",
    label="SAM2",
    title="SAM2.1",
    image_size=1024,
    mask_size=256,
    value_range=(0.0, 1.0),
    keep_aspect=False,
    logit_limit=32.0,
    models=by_role(
        ModelSpec(
            role=ENCODER,
            inputs=(Tensor("image", "FP32", ("images", 3, 1024, 1024)),),
            outputs=EMBEDDINGS,
        ),
        ModelSpec(
            role=DECODER,
            inputs=(*EMBEDDINGS, *points.PROMPT_INPUTS),
            outputs=(*points.MASK_OUTPUTS, Tensor("object_score_logits", "FP32", ("prompts", 1))),
            dimensions=points.DECODER_DIMENSIONS,
            limits=points.DECODER_LIMITS,
        ),
    ),
    tracking=TRACKING,
    decoder_inputs=points.decoder_inputs,
    requested_outputs=points.requested_outputs,
    read_masks=points.read_masks,
    sizes=(
        ModelSize("tiny", model=f"{_CONFIG}_t.yaml", aliases=("t",)),
        ModelSize("small", model=f"{_CONFIG}_s.yaml", aliases=("s",)),
        ModelSize("base_plus", model=f"{_CONFIG}_b+.yaml", aliases=("b+",)),
        ModelSize("large", model=f"{_CONFIG}_l.yaml", aliases=("l",)),
        ModelSize("micro", official=False, model="sam2.1_hiera_micro.yaml"),
    ),
    default_size="base_plus",
    random_size="tiny",
    quick_size="micro",
    built_in="sam2.1_hiera_micro",
    mask_generator="sam2",
    checkpoints=tuple(
        Checkpoint("sam2", size, f"{_FILES}/sam2.1_hiera_{size}.pt", length, sha256)
        for size, length, sha256 in (
            ("tiny", 156008466, "7402e0d864fa82708a20fbd15bc84245c2f26dff0eb43a4b5b93452deb34be69"),
            ("small", 184416285, "6d1aa6f30de5c92224f8172114de081d104bbd23dd9dc5c58996f0cad5dc4d38"),
            ("base_plus", 323606802, "a2345aede8715ab1d5d31b4a509fb160c5a4af1970f199d9054ccfb746c004c5"),
            ("large", 898083611, "2647878d5dfa5098f2f8649825738a9345572bae2d4350a2468587ece47dd318"),
        )
    ),
    fine_tunes=(
        *(
            Checkpoint("sam2", size, f"{_SAM20_FILES}/sam2_hiera_{size}.pt", length, sha256, f"sam2.0_{size}")
            for size, length, sha256 in (
                ("tiny", 155906050, "65b50056e05bcb13694174f51bb6da89c894b57b75ccdf0ba6352c597c5d1125"),
                ("small", None, "95949964d4e548409021d47b22712d5f1abf2564cc0c3c765ba599a24ac7dce3"),
                ("base_plus", None, "d0bb7f236400a49669ffdd1be617959a8b1d1065081789d7bbff88eded3a8071"),
                ("large", 897952466, "7442e4e9b732a508f80e141e7c2913437a3610ee0c77381a66658c3a445df87b"),
            )
        ),
        *(
            Checkpoint(
                "sam2",
                "tiny",
                f"https://huggingface.co/wanglab/MedSAM2/resolve/main/{file}.pt",
                None,
                "",
                name,
                image_size=512,
                licence="see its page",
                purpose=purpose,
            )
            for file, name, purpose in (
                ("MedSAM2_latest", "medsam2", "medical volumes and videos"),
                ("MedSAM2_2411", "medsam2_2411", "medical volumes and videos, version of November 2024"),
                ("MedSAM2_US_Heart", "medsam2_heart", "ultrasound videos of the heart"),
                ("MedSAM2_MRI_LiverLesion", "medsam2_liver", "lesions of the liver in MRI"),
                ("MedSAM2_CTLesion", "medsam2_ct", "lesions in CT"),
            )
        ),
    ),
    options=(
        Option(
            "--model-cfg",
            "model configuration, in place of --size: a file, or a name inside the sam2 package, for example "
            "configs/sam2.1/sam2.1_hiera_b+.yaml (default: chosen by the file name of the checkpoint)",
            commands=("export", "verify"),
            metavar="NAME_OR_FILE",
            names_model=True,
        ),
        Option(
            "--standard-operators",
            "use only operators of the ONNX standard, for TensorRT and other runtimes; ONNX Runtime then encodes more "
            "slowly",
            commands=("export", "setup"),
            is_switch=True,
        ),
    ),
    exporter="triton_sam.export.sam2.recipe:EXPORTER",
    filled_exporter="triton_sam.export.sam2.checkpoints:Sam2Filled",
)
"""SAM2.1 in every size. The encoder takes RGB in 0..1; the image is stretched or squashed to 1024x1024 pixels.

The graph subtracts the mean and divides by the standard deviation.
"""

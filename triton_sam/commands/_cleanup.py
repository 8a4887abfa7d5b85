"""The options that clean masks, for the commands that write masks."""

from __future__ import annotations

import argparse

from ..masks.cleanup import Cleanup


def add_options(parser: argparse.ArgumentParser, *, of_prompts: bool = True) -> None:
    """Add the options of a Cleanup. from_options() reads them.

    Args:
        of_prompts: whether the command has prompts. A search for everything has no box to clip to, and has its own
            option for small regions, ``--min-mask-region-area``.
    """
    group = parser.add_argument_group(
        "clean-up", "Without these options, masks equal those of the official predictor. The steps run in this order."
    )
    group.add_argument(
        "--max-hole-area",
        type=float,
        default=0.0,
        metavar="CELLS",
        help="fill holes of at most this many pixels of the model's small mask (256 x 256 over the image)",
    )
    group.add_argument(
        "--max-sprinkle-area",
        type=float,
        default=0.0,
        metavar="CELLS",
        help="drop parts of at most this many pixels of the small mask",
    )
    if of_prompts:
        group.add_argument("--clip-to-box", action="store_true", help="remove everything outside --box")
    group.add_argument(
        "--smooth", type=float, default=0.0, metavar="PIXELS", help="smooth the outline over this radius"
    )
    if of_prompts:
        group.add_argument(
            "--min-mask-region-area",
            type=float,
            default=0.0,
            metavar="PIXELS",
            help="fill holes and drop parts of fewer pixels of the image",
        )
    hit = "a foreground point hits" if of_prompts else "the point of the grid hits"
    group.add_argument("--keep-clicked", action="store_true", help=f"keep only the parts that {hit}")


def from_options(args: argparse.Namespace, *, of_prompts: bool = True) -> Cleanup:
    """Return the Cleanup of the options; ``of_prompts`` as for add_options()."""
    return Cleanup(
        max_hole_area=args.max_hole_area,
        max_sprinkle_area=args.max_sprinkle_area,
        clip_to_box=of_prompts and args.clip_to_box,
        smooth=args.smooth,
        min_mask_region_area=args.min_mask_region_area if of_prompts else 0.0,
        keep_clicked=args.keep_clicked,
    )

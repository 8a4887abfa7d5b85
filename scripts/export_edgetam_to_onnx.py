#!/usr/bin/env python3
"""Export an EdgeTAM checkpoint to the model pair `<name>_encoder` / `<name>_decoder` in a Triton model repository.

`triton-sam export edgetam` does the same. Example:

    python scripts/export_edgetam_to_onnx.py --checkpoint checkpoints/edgetam.pt
"""

import sys

from triton_sam.commands.export import script

if __name__ == "__main__":
    sys.exit(script("edgetam", __doc__ or ""))

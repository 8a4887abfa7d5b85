#!/usr/bin/env python3
"""Export a SAM2.1 checkpoint to the model pair `<name>_encoder` / `<name>_decoder` in a Triton model repository.

`triton-sam export sam2` does the same. Example:

    python scripts/export_sam2_to_onnx.py --checkpoint checkpoints/sam2.1_hiera_base_plus.pt
"""

import sys

from triton_sam.commands.export import script

if __name__ == "__main__":
    sys.exit(script("sam2", __doc__ or ""))

#!/usr/bin/env python3
"""Export a SAM1 checkpoint to the model pair `<name>_encoder` / `<name>_decoder` in a Triton model repository.

`triton-sam export sam1` does the same. Example:

    python scripts/export_sam1_to_onnx.py --checkpoint checkpoints/sam_vit_b_01ec64.pth --size vit_b
"""

import sys

from triton_sam.commands.export import script

if __name__ == "__main__":
    sys.exit(script("sam1", __doc__ or ""))

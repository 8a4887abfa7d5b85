#!/usr/bin/env python3
"""Export a SAM3 checkpoint to the model pair `<name>_encoder` / `<name>_decoder` in a Triton model repository.

The tensors are those of onnx-community/sam3-tracker-ONNX. `triton-sam export sam3` does the same. Example:

    python scripts/export_sam3_to_onnx.py --checkpoint checkpoints/sam3
"""

import sys

from triton_sam.commands.export import script

if __name__ == "__main__":
    sys.exit(script("sam3", __doc__ or ""))

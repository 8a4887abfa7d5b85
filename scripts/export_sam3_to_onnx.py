#!/usr/bin/env python3
"""Turn a SAM3 checkpoint into the ONNX pair `<name>_encoder` / `<name>_decoder` of a Triton model repository.

The tensors are those of onnx-community/sam3-tracker-ONNX. The same as `triton-sam export sam3`. Example:

    python scripts/export_sam3_to_onnx.py --checkpoint checkpoints/sam3
"""

import sys

from triton_sam.commands.export import script

if __name__ == "__main__":
    sys.exit(script("sam3", __doc__ or ""))

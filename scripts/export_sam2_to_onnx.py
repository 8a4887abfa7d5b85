#!/usr/bin/env python3
"""Turn a SAM2.1 checkpoint into the ONNX pair `<name>_encoder` / `<name>_decoder` of a Triton model repository.

The same as `triton-sam export sam2`. Example:

    python scripts/export_sam2_to_onnx.py --checkpoint checkpoints/sam2.1_hiera_base_plus.pt
"""

import sys

from triton_sam.commands.export import script

if __name__ == "__main__":
    sys.exit(script("sam2", __doc__ or ""))

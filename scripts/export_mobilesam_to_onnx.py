#!/usr/bin/env python3
"""Export a MobileSAM checkpoint to the model pair `<name>_encoder` / `<name>_decoder` in a Triton model repository.

`triton-sam export mobilesam` does the same. Example:

    python scripts/export_mobilesam_to_onnx.py --checkpoint checkpoints/mobile_sam.pt
"""

import sys

from triton_sam.commands.export import script

if __name__ == "__main__":
    sys.exit(script("mobilesam", __doc__ or ""))

#!/usr/bin/env python3
"""Export a SAM-HQ checkpoint to the model pair `<name>_encoder` / `<name>_decoder` in a Triton model repository.

`triton-sam export samhq` does the same. Example:

    python scripts/export_samhq_to_onnx.py --checkpoint checkpoints/sam_hq_vit_tiny.pth
"""

import sys

from triton_sam.commands.export import script

if __name__ == "__main__":
    sys.exit(script("samhq", __doc__ or ""))

"""The export of MobileSAM, and its official predictor. With SAM1's decoder, most of the code is in export/sam1."""

"""The export of MobileSAM, and its official predictor. The decoder is SAM1's, so most of the code is in export/sam1."""

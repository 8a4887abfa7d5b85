"""Tests of triton_sam, against the real Triton."""

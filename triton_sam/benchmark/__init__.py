"""The measurements of `triton-sam benchmark`: they are taken, judged, reported, and compared with earlier results."""

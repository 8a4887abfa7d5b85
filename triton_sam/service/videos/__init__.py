"""Videos: uploads on disk, decoders, tracking, masks of all frames, and their downloads."""

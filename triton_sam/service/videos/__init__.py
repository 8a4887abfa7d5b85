"""Videos of the service: uploads on the disk, decoders, tracking, masks of all frames, and their downloads."""

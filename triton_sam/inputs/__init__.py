"""What a caller hands in, checked once: images, prompts, embeddings."""

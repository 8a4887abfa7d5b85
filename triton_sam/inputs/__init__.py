"""Images, prompts and embeddings from the caller, checked once before they are used."""

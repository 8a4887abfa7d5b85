"""Annotates many images: sources, prompts, a folder of results that an interrupted run goes on with, and writers."""

"""Large images: slides and maps of a folder, of which callers see parts, and which they segment by clicks."""

"""Large images: callers view parts of a folder's slides and maps, and segment them by clicks."""

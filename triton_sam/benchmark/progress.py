"""A progress bar on standard error."""

from __future__ import annotations

from types import TracebackType

from tqdm import tqdm


class Progress:
    """A context manager with the progress bar of one section, which shows the current step."""

    def __init__(self, section: str, steps: int, quiet: bool) -> None:
        self._bar = tqdm(total=steps, desc=f"{section:11}", unit="step", disable=quiet, leave=True)
        self._begun = False

    def step(self, name: str) -> None:
        """Mark the previous step as done and show the name of the next step."""
        if self._begun:
            self._bar.update()
        self._begun = True
        self._bar.set_postfix_str(name)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._bar.update(self._bar.total - self._bar.n)
            self._bar.set_postfix_str("")
        self._bar.close()

"""Progress for a person, on stderr."""

from __future__ import annotations

from types import TracebackType

from tqdm import tqdm


class Progress:
    """One bar a section; its steps say what is being measured.

    Args:
        section: name of the section.
        steps: how many there will be.
        quiet: show nothing.
    """

    def __init__(self, section: str, steps: int, quiet: bool) -> None:
        self._bar = tqdm(total=steps, desc=f"{section:11}", unit="step", disable=quiet, leave=True)
        self._begun = False

    def step(self, what: str) -> None:
        """Say that the next step begins; the one before is done."""
        if self._begun:
            self._bar.update()
        self._begun = True
        self._bar.set_postfix_str(what)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._bar.update(self._bar.total - self._bar.n)
            self._bar.set_postfix_str("")
        self._bar.close()

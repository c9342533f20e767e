"""One output of a cell that is replaced in place."""

from __future__ import annotations

import uuid

__all__ = ["CellOutput"]


class CellOutput:
    """An output below the running cell: each `show` replaces what it showed."""

    def __init__(self) -> None:
        self._id: str | None = None

    @property
    def shown(self) -> bool:
        return self._id is not None

    def show(self, html: str, text: str) -> None:
        """Show `html`; programs that show no HTML take `text`."""
        from IPython.display import display, update_display

        bundle = {"text/html": html, "text/plain": text}
        if self._id is None:
            self._id = uuid.uuid4().hex
            display(bundle, raw=True, display_id=self._id)
        else:
            update_display(bundle, raw=True, display_id=self._id)

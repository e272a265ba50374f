"""Golden files: `pytest --regenerate-golden` writes them, people review them as text."""

from __future__ import annotations

from pathlib import Path


class Golden:
    def __init__(self, folder: Path, *, regenerate: bool) -> None:
        self._folder = folder
        self._regenerate = regenerate

    def check(self, name: str, text: str) -> None:
        path = self._folder / name
        if self._regenerate:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        assert path.exists(), f"{path} is missing: pytest --regenerate-golden"
        assert text == path.read_text()

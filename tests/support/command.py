"""The command line, run in process."""

from __future__ import annotations

import contextlib
import io
import json
from typing import Any, NamedTuple

from virtgpu.cli.entry import run


class Done(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def virtgpu(*words: str) -> Done:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(words)
    return Done(code, out.getvalue(), err.getvalue())

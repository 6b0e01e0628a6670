"""How a command fails. Imports nothing: the parser of ``--help`` needs it."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal


class CommandError(Exception):
    """What ends a command with one line on stderr: 2, the command line is wrong; 1, all else."""

    def __init__(self, message: str, code: Literal[1, 2] = 1) -> None:
        super().__init__(message)
        self.code = code

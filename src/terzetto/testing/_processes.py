"""Processes that work on units of something, for the commands of this package."""

from __future__ import annotations

import argparse
import gc
import logging
import multiprocessing
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

U = TypeVar("U")
R = TypeVar("R")


@contextmanager
def workers(jobs: int, work: Callable[[U], R]) -> Iterator[Callable[[U], Future[R]]]:
    """What has *work* done on a unit: here if *jobs* is 1, or in so many processes.

    What a unit finds depends on it alone. Left early, the processes are ended.
    """
    if jobs == 1:
        yield lambda unit: _done(work(unit))
        return
    # A copy of this process has imported all there is; but of one with threads none is safe.
    copied = sys.platform == "linux" and threading.active_count() == 1
    context = multiprocessing.get_context("fork" if copied else "spawn")
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_begin)
    try:
        yield lambda unit: pool.submit(work, unit)
    except BaseException:
        for process in list((pool._processes or {}).values()):
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _begin() -> None:
    hush()
    gc.freeze()  # what was imported stays: no need to look at it again and again


def _done(result: R) -> Future[R]:
    future: Future[R] = Future()
    future.set_result(result)
    return future


def hush() -> None:
    """What the engine reports of runs that are cut short, and of failures by design, is no news."""
    logging.getLogger("terzetto").addHandler(logging.NullHandler())


def positive(text: str) -> int:
    """An argument that is a number from 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected 1 or more, got {number}")
    return number

"""What an engine is opened with, looked at before anything is built."""

from __future__ import annotations

from .vocabulary import InvalidValue


def check_parts(
    shutdown_timeout: object,
    store: object,
    executor: object,
    driver: object,
    approver: object,
    now_ms: object,
    new_id: object,
) -> None:
    """Raise `InvalidValue` for the first of the parts of an engine that cannot be one."""
    if isinstance(shutdown_timeout, bool) or not isinstance(shutdown_timeout, (int, float)):
        raise InvalidValue(f"shutdown_timeout: expected seconds, got {shutdown_timeout!r}")
    if not shutdown_timeout > 0:
        raise InvalidValue(f"shutdown_timeout: expected seconds above 0, got {shutdown_timeout!r}")
    _can("store", store, "a Store such as JsonlStore(folder)", "create", "open")
    _can("executor", executor, "a ToolExecutor", "execute")
    _can("driver", driver, "a Driver", "run")
    for name, called in (("approver", approver), ("now_ms", now_ms), ("new_id", new_id)):
        if called is not None and not callable(called):
            raise InvalidValue(f"{name}: expected a function, got {type(called).__name__}")


def _can(name: str, part: object, expected: str, *methods: str) -> None:
    if part is None:
        return
    if isinstance(part, type):
        raise InvalidValue(f"{name}: expected {expected}, got the class {part.__name__} itself")
    if not all(callable(getattr(part, method, None)) for method in methods):
        raise InvalidValue(f"{name}: expected {expected}, got {type(part).__name__}")

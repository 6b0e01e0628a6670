"""Tools: what they are, and how they are made.

Owns the definition of a tool (`Tool`, made by `tool` or `raw_tool`); `ToolRun` and the
outcomes of calls are re-exported from ``_run`` and ``_outcome``. Running tools belongs to
the pipeline, their names to the registry.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any, Generic, ParamSpec, TypeAlias, TypeVar, cast, overload

from attrs import field, frozen

from ..vocabulary import InvalidTool, JsonObject, ToolSchema, clean_text
from ._encode import MAX_RESULT_BYTES
from ._outcome import (
    Content,
    ToolOutcome as ToolOutcome,
    aborted as aborted,
    aborted_before_dispatch as aborted_before_dispatch,
    denied as denied,
    failure as failure,
    invalid_arguments as invalid_arguments,
    invalid_output as invalid_output,
    raised as raised,
    success as success,
    timed_out as timed_out,
    unknown_tool as unknown_tool,
)
from ._run import ToolRun as ToolRun
from ._schema import Arguments, check_raw_schema, parse_raw
from ._signature import Body, describe, either, find_injected, innermost
from ._touches import NOTHING, Claim, Touch, Toucher, claim_of

P = ParamSpec("P")
R = TypeVar("R", covariant=True)

Classifier: TypeAlias = Callable[[Mapping[str, object]], object]
Finalizer: TypeAlias = Callable[[Content], Content]

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@frozen(kw_only=True, eq=False)
class Tool:
    """Something a model may call. Compared by identity; make one with `tool` or `raw_tool`.

    *parallel*: whether a call may overlap others. A callable decides for each call, from
    its checked arguments; only exactly True counts (C121).
    *touches*: instead, which resources a call reads and writes, from its checked arguments:
    an iterable of `Read` and `Write`. The call overlaps all that it does not conflict with;
    two conflict when both touch one resource and at least one writes it. A call with
    ``parallel`` touches nothing. Returning None, raising, or anything ill-typed makes that
    call exclusive. A touch lasts from the call's start until its body has ended. Both are
    asked right before the call starts, and again if it then has to wait.
    *timeout*: seconds, cooperative. *read_only*: running it twice does no harm, so it need
    not wait for the store.
    *injects*: the body's parameter that receives the `ToolRun`.
    *finalize*: given the content of every outcome of this tool, returns the content kept.
    *max_result_bytes*: of UTF-8; longer results lose their middle. None: no limit.
    *arguments*: what a typed tool takes; None for a raw schema.

    Raises `InvalidTool` for a name that providers refuse, a timeout that is not a positive
    number of seconds, a limit that is not a positive integer, generator bodies, an async
    ``touches``, and *touches* beside *parallel*.
    """

    name: str
    description: str = field(converter=clean_text, repr=False)
    parameters: JsonObject = field(repr=False)
    body: Body = field(repr=False)
    parallel: bool | Callable[..., object] = False
    touches: Callable[..., Iterable[Touch] | None] | None = field(default=None, repr=False)
    timeout: float | None = None
    read_only: bool = False
    injects: str | None = field(default=None, repr=False)
    finalize: Finalizer | None = field(default=None, repr=False)
    max_result_bytes: int | None = field(default=MAX_RESULT_BYTES, repr=False)
    arguments: Arguments | None = field(default=None, repr=False)

    def __attrs_post_init__(self) -> None:
        _check_name(self.name)
        plain = "a plain function"
        rules = {
            "body": (_returns(self.body), "a function that returns its result"),
            "parallel": (_is_bool(self.parallel) or _is_plain(self.parallel), f"a bool or {plain}"),
            "touches": (
                self.touches is None or _is_plain(self.touches),
                f"None or {plain} (or generator)",
            ),
            "timeout": (
                self.timeout is None or _is_positive(self.timeout, int, float),
                "None or a positive, finite number of seconds",
            ),
            "read_only": (_is_bool(self.read_only), "a bool"),
            "finalize": (self.finalize is None or _is_plain(self.finalize), f"None or {plain}"),
            "max_result_bytes": (
                self.max_result_bytes is None or _is_positive(self.max_result_bytes, int),
                "None or a positive integer",
            ),
        }
        for what, (fits, expected) in rules.items():
            if not fits:
                got = f"{getattr(self, what)!r:.200}"
                raise InvalidTool(f"tool {self.name!r}: {what}: expected {expected}, got {got}")
        if self.touches is not None and self.parallel is not False:
            raise InvalidTool(
                f"tool {self.name!r}: expected touches or parallel, got both; a tool with touches "
                "overlaps others by itself, and is exclusive for a call where touches gives None"
            )

    # Found out once: every call asks, and it takes as long as the rest of a classification.
    @cached_property
    def is_async(self) -> bool:
        """Whether the body is awaited; a plain one runs in a worker thread."""
        return either(inspect.iscoroutinefunction, self.body)

    @property
    def raw(self) -> bool:
        """Whether the body receives the parsed arguments as one value, unchecked."""
        return self.arguments is None

    def schema(self) -> ToolSchema:
        """The tool as the model sees it; always the same object."""
        return self._schema

    # Made once: every step asks, and compares what it gets with what was declared before.
    # Of one object that takes no time, however large its parameters are.
    @cached_property
    def _schema(self) -> ToolSchema:
        return ToolSchema(name=self.name, description=self.description, parameters=self.parameters)

    def parse(self, arguments: str | None) -> object:
        """What the body will receive: keyword arguments (a mapping), or the raw value.

        Raises `InvalidArguments`, whose text is for the model; never for a raw tool.
        """
        return parse_raw(arguments) if self.arguments is None else self.arguments.check(arguments)

    def is_parallel(self, parsed: object) -> bool:
        """Whether the call with these arguments may overlap others (`claim`)."""
        return self.claim(parsed) is not None

    def claim(self, parsed: object) -> Claim | None:
        """What the call with these arguments touches; None when it is exclusive.

        Raises nothing but KeyboardInterrupt.
        """
        if self.touches is None and self.parallel is True:
            return NOTHING
        # The body gets what is in it, so nobody else may change it. A raw value is a copy anyway.
        if self.arguments is not None and isinstance(parsed, dict):
            parsed = MappingProxyType(parsed)
        try:
            if self.touches is not None:
                return claim_of(self.touches(parsed))
            parallel = self.parallel(parsed) if callable(self.parallel) else self.parallel
        except KeyboardInterrupt:
            raise
        except BaseException:  # part of the tool: a classifier that fails means exclusive
            return None
        return NOTHING if parallel is True else None

    def call(self, parsed: object, run: ToolRun | None) -> object:
        """Run the body with what `parse` returned; for an async body, its coroutine.

        *run* is for a body that `injects` it.
        """
        if self.injects is not None:
            return self._call_injected(parsed, {self.injects: run})
        if self.arguments is None:
            return self.body(parsed)
        arguments: Any = parsed
        return self.body(**arguments)

    def _call_injected(self, parsed: object, injected: Mapping[str, object]) -> object:
        if self.arguments is None:
            return self.body(parsed, **injected)
        arguments: Any = parsed
        return self.body(**arguments, **injected)

    def start(self, parsed: object, run: ToolRun | None) -> Awaitable[object]:
        """`call` for an async body, typed as what it is."""
        return cast(Awaitable[object], self.call(parsed, run))

    def __call__(self, *args: object, **kwargs: object) -> object:
        """Call the body itself, without the engine: for tests."""
        return self.body(*args, **kwargs)


@frozen(kw_only=True, eq=False)
class FunctionTool(Tool, Generic[P, R]):
    """A `Tool` that can be called like the function it was made from."""

    # Narrower than the base on purpose: a caller who knows the function knows its signature.
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:  # type: ignore[override]
        return cast(R, self.body(*args, **kwargs))


@overload
def tool(
    fn: Callable[P, R],
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    parallel: bool | Classifier = False,
    touches: Toucher | None = None,
    timeout: float | None = None,
    read_only: bool = False,
    finalize: Finalizer | None = None,
    max_result_bytes: int | None = MAX_RESULT_BYTES,
) -> FunctionTool[P, R]: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    parallel: bool | Classifier = False,
    touches: Toucher | None = None,
    timeout: float | None = None,
    read_only: bool = False,
    finalize: Finalizer | None = None,
    max_result_bytes: int | None = MAX_RESULT_BYTES,
) -> Callable[[Callable[P, R]], FunctionTool[P, R]]: ...


def tool(
    fn: Callable[P, R] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    parallel: bool | Classifier = False,
    touches: Toucher | None = None,
    timeout: float | None = None,
    read_only: bool = False,
    finalize: Finalizer | None = None,
    max_result_bytes: int | None = MAX_RESULT_BYTES,
) -> FunctionTool[P, R] | Callable[[Callable[P, R]], FunctionTool[P, R]]:
    """Make a tool of a function, async or plain; usable bare or with options.

    The name is the function's. The description is the docstring up to its first section;
    an ``Args:`` section (or numpy's ``Parameters``) describes the parameters. Every
    parameter is annotated with a type that msgspec can decode; a `ToolRun` is injected.
    Plain functions run in a worker thread. The other options are those of `Tool`.

    Raises:
        InvalidTool: names the tool, the parameter, what was expected and what to do.
    """

    def make(fn: Callable[P, R]) -> FunctionTool[P, R]:
        if not callable(fn):
            raise InvalidTool(f"tool: expected a function, got {type(fn).__name__}")
        own_name = getattr(innermost(fn), "__name__", type(fn).__name__) if name is None else name
        _check_name(own_name)
        arguments = describe(fn, tool=own_name, inject=ToolRun)
        return FunctionTool(
            name=own_name,
            description=arguments.description if description is None else description,
            parameters=arguments.schema,
            body=fn,
            parallel=parallel,
            touches=touches,
            timeout=timeout,
            read_only=read_only,
            injects=arguments.injects,
            finalize=finalize,
            max_result_bytes=max_result_bytes,
            arguments=arguments,
        )

    return make if fn is None else make(fn)


def raw_tool(
    *,
    name: str,
    description: str,
    parameters: Mapping[str, object],
    body: Body,
    parallel: bool | Callable[[object], object] = False,
    touches: Callable[[object], Iterable[Touch] | None] | None = None,
    timeout: float | None = None,
    read_only: bool = False,
    finalize: Finalizer | None = None,
    max_result_bytes: int | None = MAX_RESULT_BYTES,
) -> Tool:
    """Make a tool of a given JSON Schema, which is shown to the model and not enforced.

    *body*, *touches* and a callable *parallel* receive one positional argument: the model's
    arguments as plain JSON values, or its text where that is not JSON (`parse_raw`).

    Raises:
        InvalidTool: *parameters* does not describe an object, or refers to a part of itself
            that is not there; or *body* cannot be called with one argument.
    """
    _check_name(name)
    schema = check_raw_schema(parameters, tool=name)
    injects = find_injected(body, inject=ToolRun) if callable(body) else None
    made = Tool(
        name=name,
        description=description,
        parameters=schema,
        body=body,
        parallel=parallel,
        touches=touches,
        timeout=timeout,
        read_only=read_only,
        injects=injects,
        finalize=finalize,
        max_result_bytes=max_result_bytes,
    )
    _check_raw_body(made)
    return made


def _check_raw_body(made: Tool) -> None:
    injected = {} if made.injects is None else {made.injects: None}
    try:
        signature = inspect.signature(made.body)
    except (ValueError, TypeError):
        return  # of some builtins there is none to check
    try:
        signature.bind(None, **injected)
    except TypeError as error:
        raise InvalidTool(
            f"tool {made.name!r}: expected a body with one parameter, for the arguments: {error}"
        ) from error


def _check_name(value: object) -> None:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise InvalidTool(
            f"tool name: expected 1 to 64 letters, digits, '_' or '-', got {value!r:.100}; "
            "give another with name="
        )


def _is_plain(value: object) -> bool:
    is_async = (inspect.iscoroutinefunction, inspect.isasyncgenfunction)
    return callable(value) and not any(either(test, value) for test in is_async)


def _returns(value: object) -> bool:
    yields = (inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    return callable(value) and not any(either(test, value) for test in yields)


def _is_bool(value: object) -> bool:
    return isinstance(value, bool)


def _is_positive(value: object, *kinds: type) -> bool:
    return (
        not isinstance(value, bool)
        and isinstance(value, kinds)
        and isinstance(value, (int, float))
        and math.isfinite(value)
        and value > 0
    )

"""User-defined regions, and the ranges that NVIDIA's and Intel's tools show."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Self, TypeVar

from gradmgr import errors
from gradmgr._arrays import libraries
from gradmgr._engine.cleanup import Scope
from gradmgr._engine.context import current, interceptors_of
from gradmgr._engine.history.modes import decorate
from gradmgr.profiler._collect import BACKWARD, OP, Collector, Node

F = TypeVar("F", bound=Callable[..., Any])


class _Opened:
    """Represents one time that a `record_function` is entered."""

    __slots__ = ("block",)

    def __init__(self, block: Any) -> None:
        self.block = block


class record_function(Scope):  # noqa: N801  # torch's spelling
    """Name a region of the program for the profilers that run: in a with block, or a decorated function.

    What is computed inside is nested in it. Without a profiler it does nothing. Of a decorated generator or
    coroutine each step is a region, as others may run between two of them.

    Args:
        name: what it is called.
        args: a text to be shown with it in a trace.

    Raises:
        TypeError: `name`, or `args`, is not a string.

    >>> import gradmgr
    >>> from gradmgr.profiler import profile, record_function
    >>> x = gradmgr.tensor([1.0, 2.0])
    >>> with profile() as prof:
    ...     with record_function("squares"):
    ...         y = x * x
    >>> [(event.name, len(event.cpu_children)) for event in prof.function_events]
    [('squares', 1), ('multiply', 0)]
    """

    __slots__ = ("args", "name")

    def __init__(self, name: str, args: str | None = None) -> None:
        for what, value in (("name", name), ("args", "" if args is None else args)):
            if not isinstance(value, str):
                raise TypeError(f"record_function({what}) takes a string; found {type(value).__name__}")
        self.name = name
        self.args = args

    def _begin(self) -> _Opened:
        return _Opened(self)

    def _latest(self) -> _Opened | None:
        for collector in _collectors():
            for node in collector.open_regions():
                if node.owner.block is self:
                    found: _Opened = node.owner
                    return found
        return None

    def _open(self, opened: _Opened) -> Self:
        for collector in _collectors():
            collector.enter(opened, self.name, self.args or "")
        return self

    def _close(self, opened: _Opened) -> None:
        for collector in _collectors():
            collector.leave(opened)

    def __call__(self, function: F) -> F:
        return decorate(type(self).__name__, lambda: self, function)


def _collectors() -> list[Collector]:
    return [each for each in interceptors_of(current()) if isinstance(each, Collector)]


class _Marker(Collector):
    """Begins and ends a range of an external tool for each node.

    Such ranges are nested, per thread. No event tells that an op has raised, so the range
    it left open is ended with the enclosing one, or when the next op begins.
    """

    __slots__ = ("_open", "_shapes")

    def __init__(self, shapes: bool) -> None:
        super().__init__()
        self._shapes = shapes
        self._open: dict[int, list[tuple[Node, Any]]] = {}  # by thread

    def push(self, text: str) -> Any:
        """Begin a range; return the object to end it with."""
        raise NotImplementedError

    def pop(self, range_: Any) -> None:
        """End the range begun last in this thread."""
        raise NotImplementedError

    def node_started(self, node: Node, inputs: tuple[Any, ...] = ()) -> None:
        opened = self._open.setdefault(node.thread.number, [])
        while opened and (opened[-1][0].kind is OP or opened[-1][0].is_over()):
            self.pop(opened.pop()[1])
        if node.kind is BACKWARD:
            return  # no event tells when it ends
        opened.append((node, self.push(self._text(node, inputs))))

    def _text(self, node: Node, inputs: tuple[Any, ...]) -> str:
        parts = [node.name]
        if node.sequence >= 0:
            parts.append(f"seq = {node.sequence}")
        if self._shapes and inputs:
            parts.append(f"sizes = {[list(getattr(x, 'shape', ())) for x in inputs]}")
        return ", ".join(parts)

    def node_ended(self, node: Node) -> None:
        opened = self._open.get(node.thread.number, [])
        if any(other is node for other, _ in opened):
            last = None
            while last is not node:
                last, range_ = opened.pop()
                self.pop(range_)
        node.end = 0

    def stop(self) -> None:
        super().stop()
        opened = self._open.get(self._thread().number, [])
        while opened:
            self.pop(opened.pop()[1])


class _Nvtx(_Marker):
    __slots__ = ("_nvtx",)

    def __init__(self, nvtx: Any, shapes: bool) -> None:
        super().__init__(shapes)
        self._nvtx = nvtx

    def push(self, text: str) -> Any:
        self._nvtx.RangePush(text)

    def pop(self, range_: Any) -> None:
        self._nvtx.RangePop()


class _Itt(_Marker):
    __slots__ = ("_ittapi",)

    def __init__(self, ittapi: Any, shapes: bool) -> None:
        super().__init__(shapes)
        self._ittapi = ittapi

    def push(self, text: str) -> Any:
        task = self._ittapi.task(text, domain="gradmgr")
        task.begin()
        return task

    def pop(self, range_: Any) -> None:
        range_.end()


class _Emit(Scope):
    """A context manager that starts and stops a marker."""

    def __init__(self, enabled: bool, record_shapes: bool) -> None:
        self._marker = self._make_marker(record_shapes) if enabled else None
        self._entered = False

    def _make_marker(self, record_shapes: bool) -> _Marker:
        raise NotImplementedError

    def _begin(self) -> Any:
        if self._entered:
            raise errors.RecordingError(
                f"{type(self).__name__} is not reentrant: it was entered before; make another for another block"
            )
        self._entered = True
        return self

    def _open(self, opened: Any) -> Self:
        if self._marker is not None:
            self._marker.start()
        return self

    def _close(self, opened: Any) -> None:
        if self._marker is not None:
            self._marker.stop()
            self._marker = None


class emit_nvtx(_Emit):  # noqa: N801  # torch's spelling
    """Put an NVTX range around each operation, each derivative and each `record_function`, in a with block.

    NVIDIA's Nsight Systems (`nsys profile python program.py`) shows them above the GPU's kernels. A
    derivative's range carries its number, "multiply_backward, seq = 3". Through CuPy.

    Args:
        enabled: False makes the block do nothing.
        record_shapes: put the shapes of the inputs into the ranges' names.

    Raises:
        DeviceError: CuPy is not installed, finds no GPU, or was built without NVTX.
        RuntimeError: entered twice.

    >>> from gradmgr import profiler, tensor
    >>> with profiler.emit_nvtx(enabled=False):
    ...     tensor([1.0, 2.0]) * 2.0
    Tensor([2., 4.])
    """

    def __init__(self, enabled: bool = True, record_shapes: bool = False) -> None:
        super().__init__(enabled, record_shapes)

    def _make_marker(self, record_shapes: bool) -> _Marker:
        nvtx = libraries.import_cupy("emit_nvtx").cuda.nvtx
        if not getattr(nvtx, "available", True):
            raise errors.DeviceError(
                f"emit_nvtx: this CuPy was built without NVTX; {errors.how_to_install('cuda12', 'cuda13')}"
            )
        return _Nvtx(nvtx, record_shapes)


class emit_itt(_Emit):  # noqa: N801  # torch's spelling
    """Put an ITT task around each operation, each derivative and each `record_function`, in a with block.

    Intel's VTune (`vtune -collect hotspots python program.py`) shows them. Needs the `ittapi` package.

    Args:
        enabled: False makes the block do nothing.
        record_shapes: put the shapes of the inputs into the tasks' names.

    Raises:
        MissingDependencyError: `ittapi` is not installed.
        RuntimeError: entered twice.

    >>> from gradmgr import profiler, tensor
    >>> with profiler.emit_itt(enabled=False):
    ...     tensor([1.0, 2.0]) * 2.0
    Tensor([2., 4.])
    """

    def __init__(self, enabled: bool = True, record_shapes: bool = False) -> None:
        super().__init__(enabled, record_shapes)

    def _make_marker(self, record_shapes: bool) -> _Marker:
        try:
            ittapi = importlib.import_module("ittapi")
        except ImportError as error:
            raise errors.MissingDependencyError(
                f"emit_itt needs the ittapi package, which is not installed; {errors.how_to_install('itt')}"
            ) from error
        return _Itt(ittapi, record_shapes)

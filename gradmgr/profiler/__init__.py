"""A profiler of operations, forward and backward: time, calls, shapes, bytes, FLOPs, a Chrome trace."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn, Self

from gradmgr import errors
from gradmgr._arrays import libraries
from gradmgr._engine.cleanup import Scope
from gradmgr.profiler._collect import Options, Profiler
from gradmgr.profiler._events import EventList, FunctionEvent, FunctionEventAvg, Interval, events_of
from gradmgr.profiler._flops import FLOPS
from gradmgr.profiler._markers import emit_itt, emit_nvtx, record_function

__all__ = [
    "FLOPS",
    "EventList",
    "FunctionEvent",
    "FunctionEventAvg",
    "Interval",
    "emit_itt",
    "emit_nvtx",
    "profile",
    "record_function",
]

# torch's arguments that control Kineto, the library its profiler is built on, and their defaults.
_KINETO = MappingProxyType(
    {
        "acc_events": False,
        "activity_filters": None,
        "custom_trace_id_callback": None,
        "experimental_config": None,
        "post_processing_timeout_s": None,
        "use_cpu": True,
        "use_kineto": False,
    }
)
_NVPROF = "it reads the files of NVIDIA's nvprof, which is no longer made; use emit_nvtx with Nsight Systems"
_OF_KINETO = "it is part of Kineto, the library torch's profiler is built on"
_REFUSED = MappingProxyType(
    {
        "EnforceUnique": _NVPROF,
        "Kernel": _OF_KINETO,
        "KinetoStepTracker": _OF_KINETO,
        "MemRecordsAcc": _OF_KINETO,
        "StringTable": _OF_KINETO,
        "kineto_available": _OF_KINETO,
        "load_nvprof": _NVPROF,
        "parse_nvprof_trace": _NVPROF,
    }
)


def __getattr__(name: str) -> NoReturn:
    reason = _REFUSED.get(name)
    more = "" if reason is None else f": {reason}"
    raise AttributeError(f"module 'gradmgr.profiler' has no attribute {name!r}{more}")


class profile(Scope):  # noqa: N801  # torch's spelling
    """Record what is computed in a with block: each operation, its derivative, and how long they took.

    It sees what is done with Tensors in the thread, or asyncio task, that enters it and in those that inherit
    its context, whether a manager records or not; functions without a derivative (`argmax`, `x > 0`) and
    plain arrays are not seen. Times are in microseconds and include only the kernel; the time that recording
    and Python itself cost is in the self time of the enclosing event. Where an outer manager records a
    derivative, its operations are nested in it.

    Args:
        enabled: False makes the block do nothing.
        use_device: "cuda" to time the GPU too, by CUDA events around each operation; None or "cpu" not to.
        use_cuda: the same as `use_device="cuda"`.
        record_shapes: record the shapes of the inputs; of a derivative, the shape of the gradient given.
        with_flops: count floating-point operations; `FLOPS` lists of which ops.
        profile_memory: add up the bytes of the new arrays that operations give as results, and derivatives
            as gradients. What is freed, and what is used while they compute, is not seen.
        with_stack: record the line of the program of each operation; a derivative has that of its operation.
        with_modules: record the `forward` methods it is called in, as the names of the classes that define them.
        kineto: torch's arguments that control Kineto (`use_kineto`, `experimental_config`, ...), which is not
            here: accepted at their defaults only.

    Raises:
        ValueError: a device that cannot be timed; an argument that controls Kineto.
        TypeError: an argument that neither gradmgr nor torch has.
        DeviceError: the GPU is to be timed, and CuPy is not installed or finds none.
        RuntimeError: entered twice; or asked for results before its block is over, or where it was not enabled.

    >>> import gradmgr
    >>> from gradmgr.profiler import profile
    >>> w = gradmgr.tensor([1.0, 2.0])
    >>> gm = gradmgr.GradManager().attach(w)
    >>> with profile() as prof:
    ...     with gm:
    ...         gm.backward((w * w).sum())
    >>> [(e.key, e.count) for e in prof.key_averages()]
    [('multiply', 1), ('sum', 1), ('backward', 1), ('sum_backward', 1), ('multiply_backward', 1)]
    """

    def __init__(
        self,
        enabled: bool = True,
        *,
        use_device: str | None = None,
        use_cuda: bool = False,
        record_shapes: bool = False,
        with_flops: bool = False,
        profile_memory: bool = False,
        with_stack: bool = False,
        with_modules: bool = False,
        **kineto: Any,
    ) -> None:
        _check_kineto(kineto)
        on_gpu = _times_gpu(use_device, use_cuda)
        self.enabled = bool(enabled)
        self.entered = False
        self._options = Options(
            shapes=bool(record_shapes),
            flops=bool(with_flops),
            memory=bool(profile_memory),
            stack=bool(with_stack),
            modules=bool(with_modules),
            cupy=libraries.import_cupy("profile(use_device='cuda')") if on_gpu and enabled else None,
        )
        self._profiler: Profiler | None = None
        self._events: EventList | None = None

    if TYPE_CHECKING:

        def __enter__(self) -> Self: ...

    def _begin(self) -> Any:
        if self.entered:
            raise errors.RecordingError(
                "a profile is not reentrant: it was entered before, and holds what it found then; make another"
            )
        self.entered = True
        return self

    def _open(self, opened: Any) -> Self:
        if self.enabled:
            self._profiler = Profiler(self._options)
            self._profiler.start()
        return self

    def _close(self, opened: Any) -> None:
        if self._profiler is not None:
            self._profiler.stop()

    def __repr__(self) -> str:
        if self._profiler is None or self._profiler.open:
            return f"<profile{'' if self.enabled else ', not enabled'}{', running' if self._profiler else ''}>"
        return self.table()

    @property
    def function_events(self) -> EventList:
        """What was recorded, in the order in which it began.

        Raises:
            RuntimeError: the block is not over, or nothing was recorded.
        """
        if self._events is None:
            if self._profiler is None or self._profiler.open:
                why = "its block is not over" if self._profiler else "it was never entered"
                why = why if self.enabled else "it was made with enabled=False"
                raise errors.RecordingError(f"this profile has no results: {why}; ask after the with block")
            shown = {name for name in ("shapes", "stack", "memory", "flops") if getattr(self._options, name)}
            if self._options.cupy is not None:
                shown.add("device")
            self._events = events_of(self._profiler, frozenset(shown))
            self._profiler.nodes.clear()
        return self._events

    @property
    def self_cpu_time_total(self) -> float:
        """The sum of all self times, in microseconds: the time of all top-level events."""
        return self.function_events.self_cpu_time_total

    def table(
        self,
        sort_by: str | None = None,
        row_limit: int = 100,
        max_src_column_width: int = 75,
        max_name_column_width: int = 55,
        max_shapes_column_width: int = 80,
        header: str | None = None,
        top_level_events_only: bool = False,
        time_unit: str | None = None,
    ) -> str:
        """Write the single events as a table, see `EventList.table`; `key_averages().table()` adds them up first."""
        return self.function_events.table(
            sort_by,
            row_limit,
            max_src_column_width,
            max_name_column_width,
            max_shapes_column_width,
            header,
            top_level_events_only,
            time_unit,
        )

    def key_averages(self, group_by_input_shape: bool = False, group_by_stack_n: int = 0) -> EventList:
        """Add up the events of each name; see `EventList.key_averages`.

        >>> from gradmgr import profiler, tensor
        >>> with profiler.profile() as prof:
        ...     y = tensor([1.0, 2.0]) * 2.0 + 1.0
        >>> sorted(average.key for average in prof.key_averages())
        ['add', 'multiply']
        """
        return self.function_events.key_averages(group_by_input_shape, group_by_stack_n)

    def total_average(self) -> FunctionEventAvg:
        """Add up all events."""
        return self.function_events.total_average()

    def export_chrome_trace(self, path: Any) -> None:
        """Write a trace that Perfetto (ui.perfetto.dev) opens; see `EventList.export_chrome_trace`.

        >>> import json, pathlib, tempfile
        >>> from gradmgr import profiler, tensor
        >>> with profiler.profile() as prof:
        ...     y = tensor([1.0, 2.0]) * 2.0
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder) / "trace.json"
        ...     prof.export_chrome_trace(path)
        ...     events = json.loads(path.read_text())["traceEvents"]
        >>> [event["name"] for event in events if event["ph"] == "X"]
        ['multiply']
        """
        self.function_events.export_chrome_trace(path)

    def export_stacks(self, path: Any, metric: str = "self_cpu_time_total") -> None:
        """Write the stacks for a flame graph; see `EventList.export_stacks`.

        Raises:
            RuntimeError: the profile was made without `with_stack=True`.
            ValueError: another metric.
        """
        if not self._options.stack:
            raise errors.RecordingError("export_stacks needs a profile made with with_stack=True")
        self.function_events.export_stacks(path, metric)


def _check_kineto(given: dict[str, Any]) -> None:
    for name, value in given.items():
        if name not in _KINETO:
            raise TypeError(f"profile() got an unexpected keyword argument {name!r}")
        if value != _KINETO[name]:
            raise ValueError(
                f"profile({name}={value!r}): {name} controls Kineto, the library torch's profiler is built on; gradmgr "
                "does not use it: leave it out"
            )


def _times_gpu(use_device: str | None, use_cuda: bool) -> bool:
    if use_device not in (None, "cpu", "cuda"):
        raise ValueError(
            f"profile(use_device={use_device!r}): the CPU is always timed, and 'cuda' can be added; pass 'cuda' or None"
        )
    if use_cuda and use_device == "cpu":
        raise ValueError("profile(use_cuda=True, use_device='cpu') contradicts itself; pass use_device='cuda'")
    return bool(use_cuda) or use_device == "cuda"

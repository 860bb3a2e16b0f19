"""What a call says whose arguments Python itself refuses: the public name, how to call it, and what to pass instead.

Python names the function that it could not call, which may be one that several classes share, and says nothing of
keywords that NumPy, JAX, MegEngine or torch have for the same. Where a frame more is no matter, as in constructors,
`explained` is around the function. A function that is called in every step takes `**_wrong: Never` instead, which costs
0.03 us, and raises what `unexpected` makes of it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping
from types import FunctionType, MappingProxyType
from typing import Any, TypeVar

from gradmgr import errors

Called = TypeVar("Called", bound=Callable[..., Any])

# Keywords of other libraries, or of other functions, and what may be called so here: the first that the function has.
_SAME = MappingProxyType(
    {
        "alpha": ("negative_slope",),
        "axes": ("dim", "dims"),
        "axis": ("dim", "dims"),
        "beta1": ("betas",),
        "beta2": ("betas",),
        "bias_attr": ("bias",),
        "channels": ("num_features", "in_channels"),
        "clip_norm": ("max_norm",),
        "cov": ("covariance_matrix",),
        "device_type": ("device",),
        "dim": ("axis",),
        "dims": ("axis",),
        "drop_prob": ("p",),
        "epsilon": ("eps",),
        "features": ("out_features",),
        "file": ("f",),
        "filename": ("f",),
        "filters": ("out_channels",),
        "func": ("function", "fn"),
        "fun": ("func", "function", "fn"),
        "has_bias": ("bias",),
        "high": ("upper",),
        "in_axes": ("in_dims",),
        "in_channels": ("in_features",),
        "in_dim": ("in_features",),
        "inputs": ("input", "x"),
        "input_dim": ("in_features", "num_embeddings"),
        "input_size": ("in_features",),
        "keep_graph": ("retain",),
        "keepdims": ("keepdim",),
        "kernel": ("kernel_size",),
        "label": ("target",),
        "labels": ("target",),
        "learning_rate": ("lr",),
        "logit": ("input",),
        "logits": ("input",),
        "mean": ("loc",),
        "model": ("params",),
        "mu": ("loc",),
        "out_axes": ("out_dims",),
        "out_channels": ("out_features",),
        "out_dim": ("out_features",),
        "output_dim": ("out_features", "embedding_dim"),
        "output_size": ("out_features",),
        "parameters": ("params", "parameters"),
        "path": ("f",),
        "pool_size": ("kernel_size",),
        "pred": ("input",),
        "predictions": ("input",),
        "prob": ("probs", "p"),
        "rate": ("p", "rate"),
        "retain_graph": ("retain",),
        "scale": ("scale_factor",),
        "seed": ("rng",),
        "sigma": ("scale",),
        "size": ("sample_shape", "shape"),
        "std": ("scale",),
        "step": ("step_size",),
        "strides": ("stride",),
        "targets": ("target",),
        "training": ("train_mode", "mode"),
        "units": ("out_features",),
        "use_bias": ("bias",),
        "vocab_size": ("num_embeddings",),
        "weights": ("weight",),
        "y_pred": ("input",),
        "y_true": ("target",),
    }
)

# Keywords that have no counterpart, and what there is instead.
_INSTEAD = MappingProxyType(
    {
        "activation": "leave it out, and put a layer such as ReLU() behind",
        "create_graph": "derivatives of derivatives are recorded by a second GradManager, entered before this one",
        "grad": "weights of the outputs are passed second, as in backward(y, dy)",
        "grad_tensors": "weights of the outputs are passed second, as in backward(y, dy)",
        "gradient": "weights of the outputs are passed second, as in backward(y, dy)",
        "input_shape": "leave it out: the sizes of a layer are its first arguments",
        "inplace": "leave it out, and use what is returned, as nothing is written to what was given",
        "key": "random numbers come from rng=numpy.random.default_rng(0)",
        "requires_grad": errors.HOW_TO_REQUIRE_GRAD,
        "tensors": "tensors are attached afterwards, as in GradManager().attach(tensors)",
    }
)


def explained(function: Called, name: str | None = None, advice: str = "") -> Called:
    """Return a function whose errors of arguments that Python refuses have its public name, and say how to call it.

    Args:
        function: the function, or the `__init__` of a class.
        name: its public name; that of the function by default.
        advice: what else to say where arguments are missing, or too many given by position.
    """
    name = name or function.__name__

    @functools.wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        try:
            return function(*args, **keywords)
        except TypeError as error:
            explain(error, function, name, advice)
            raise

    return call  # type: ignore[return-value]  # it takes and returns what the function does


def explain_classes(namespace: Mapping[str, Any], names: Iterable[str]) -> None:
    """Let the constructors of those of our classes explain what they refuse; `namespace` is that of their package."""
    for name in names:
        cls = namespace[name]
        if isinstance(cls, type) and isinstance(cls.__init__, FunctionType):  # type: ignore[misc]  # of this very class
            function = getattr(cls.__init__, "__wrapped__", cls.__init__)  # type: ignore[misc]  # as above
            cls.__init__ = explained(function, cls.__name__)  # type: ignore[misc]  # as above


def explain(error: TypeError, function: Callable[..., Any], name: str, advice: str = "", called: str = "") -> None:
    """Put into an error how to call a function, if the error is Python's refusal of the arguments of this very call.

    To be called where the function was, with the error that came from there.

    Args:
        error: the error.
        function: what was called.
        name: its public name.
        advice: see `explained`.
        called: what a program calls, where that is not the name.
    """
    traceback = error.__traceback__
    if traceback is None or traceback.tb_next is not None:  # the function, or what it calls, had begun to run
        return
    refused = re.match(r"[\w.<>]+\(\) (?=got |takes |missing )", str(error))
    if refused is None:
        return
    names = _parameters_of(function)
    text = str(error)[refused.end() :]
    if text.startswith("takes ") and ("self" in names or hasattr(function, "__self__")):
        text = _without_self(text)
    error.args = (f"{name}() {text}; {_what_to_do(text, names, called or name, advice)}",)


def unexpected(function: Callable[..., Any], wrong: Mapping[str, Any]) -> TypeError:
    """Make the error for keywords that a function lacks."""
    names, name = _parameters_of(function), function.__name__
    text = f"got an unexpected keyword argument {next(iter(wrong))!r}"
    return TypeError(f"{name}() {text}; {_what_to_do(text, names, name)}")


def _without_self(text: str) -> str:
    """Count the arguments as the caller does, who passes no `self`."""
    counts, rest, more = text.partition(" (")
    counts = re.sub(r"\d+", lambda count: str(int(count[0]) - 1), counts)
    for wrong, right in ((r"(?<!to )\b1 positional arguments", "1 positional argument"), (r"\b1 were", "1 was")):
        counts = re.sub(wrong, right, counts)
    return re.sub(r"\b0 positional argument\b", "no positional arguments", counts) + rest + more


def _parameters_of(function: Callable[..., Any]) -> dict[str, str]:
    """Return the parameters by name, as they are written in a call."""
    import inspect  # deferred: an error needs it, and nothing else

    kinds = inspect.Parameter
    found = {}
    for p in inspect.signature(function).parameters.values():
        if p.kind is kinds.VAR_KEYWORD or p.name.startswith("_"):
            continue
        default = "" if p.default is kinds.empty else f"={p.default!r:.40}"
        found[p.name] = f"*{p.name}" if p.kind is kinds.VAR_POSITIONAL else p.name + default
    return found


def _what_to_do(text: str, names: Mapping[str, str], name: str, advice: str = "") -> str:
    refused = re.search(r"unexpected keyword argument '(\w+)'", text)
    keyword = "" if refused is None else refused[1]
    same = next((own for own in _SAME.get(keyword, ()) if own in names), None)
    if same is not None:
        return f"write {same}= instead of {keyword}="
    if keyword in _INSTEAD:
        return _INSTEAD[keyword]
    form = f"call it as {name}({', '.join([text for own, text in names.items() if own != 'self'])})"
    if keyword:
        import difflib  # deferred: an error needs it, and nothing else

        close = difflib.get_close_matches(keyword, [own for own in names if own != "self"], 1)
        return f"perhaps {close[0]}= is meant; {form}" if close else form
    return f"{advice}; {form}" if advice else form

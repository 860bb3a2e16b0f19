"""Tensor methods and properties of torch.autograd: hooks, `backward`, `grad_fn`, and those that are refused."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, NoReturn

from gradmgr import errors
from gradmgr._engine.context import rebind
from gradmgr._engine.history.node import (
    Node,
    check_tracked,
    grad_fn,
    hook_places,
    is_attached,
    retain_gradient,
    retains_gradient,
    tapes_with_result,
    tracking_tapes,
)
from gradmgr._engine.hooks import Hook, HookPlace, RemovableHandle, hooked_leaf
from gradmgr._engine.tensor import Tensor, describe, wrap
from gradmgr._transforms.grad import backward

# ---------------------------------------------------------------- a tensor and the managers


def _requires_grad(self: Tensor) -> bool:
    """Whether a manager that records in this context tracks this tensor: it is attached, or depends on attached ones.

    It cannot be set: `GradManager.attach` determines which tensors receive gradients.

    >>> import gradmgr
    >>> x = gradmgr.tensor(1.0)
    >>> with gradmgr.GradManager().attach(x):
    ...     print(x.requires_grad)
    True
    >>> x.requires_grad
    False
    """
    return bool(tracking_tapes(self))


def _set_requires_grad(self: Tensor, value: Any) -> NoReturn:
    raise errors.RecordingError(
        f"requires_grad of {describe(self)} cannot be set: a tensor receives gradients where a manager has it "
        "attached; call GradManager().attach(t), or detach(t) of the manager that has it"
    )


def _requires_grad_(self: Tensor, requires_grad: bool = True) -> NoReturn:
    """Refused: raise an error that says what to use, `GradManager.attach`.

    Raises:
        RuntimeError: always.

    >>> import gradmgr
    >>> gradmgr.tensor(1.0).requires_grad_()  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    gradmgr.errors.RecordingError: requires_grad of a Tensor of shape () and dtype float64 cannot be set: ...
    """
    _set_requires_grad(self, requires_grad)


def _is_leaf(self: Tensor) -> bool:
    """Whether the tensor is a leaf: not the recorded result of an operation in this context.

    >>> import gradmgr
    >>> x = gradmgr.tensor(1.0)
    >>> with gradmgr.GradManager().attach(x):
    ...     print(x.is_leaf, (x * 2).is_leaf)
    True False
    """
    return not tapes_with_result(self)


def _grad_fn(self: Tensor) -> Node | None:
    """The node of the operation that made this tensor, in the innermost recording that has it; None for leaves.

    >>> import gradmgr
    >>> x = gradmgr.tensor(1.0)
    >>> with gradmgr.GradManager().attach(x):
    ...     print((x * 2).grad_fn.name())
    multiply
    """
    return grad_fn(self)


def _backward(
    self: Tensor,
    gradient: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool | None = None,
    inputs: Any = None,
) -> None:
    """Add the gradients of this tensor, weighted by `gradient`, to `.grad`; see `gradmgr.backward`.

    Raises:
        RuntimeError: no manager that records here tracks the tensor.
        ValueError: the tensor has several elements and there is no `gradient`.

    >>> import gradmgr
    >>> x = gradmgr.tensor([1.0, 2.0])
    >>> with gradmgr.GradManager().attach(x):
    ...     (x * x).sum().backward()
    >>> x.grad
    Tensor([2., 4.])
    """
    backward(self, gradient, retain_graph, create_graph, inputs)


def _detach_(self: Tensor) -> Tensor:
    """Forget how this tensor was computed, for every manager that records here: from here on it is a constant.

    What was computed from it before keeps its history.

    Returns:
        The tensor itself.

    >>> import gradmgr
    >>> x = gradmgr.tensor(3.0)
    >>> gm = gradmgr.GradManager().attach(x)
    >>> with gm:
    ...     y = x * x
    ...     gm.backward(x * y.detach_())
    >>> x.grad
    Tensor(9.)
    """
    return rebind(self, wrap(self._array))


# ---------------------------------------------------------------- hooks


def _register_hook(self: Tensor, hook: Hook) -> RemovableHandle:
    """Call `hook(grad)` in each backward when the gradient of this tensor is complete, before it is used.

    The hook belongs to the value that the tensor has now: earlier uses of the value count, and a write in
    place does not move the hook to the new value. On an attached tensor it belongs to the tensor itself and stays
    from one recording to the next, for every manager that the tensor is attached to; it then sees the
    sum, before the manager's callbacks, and of an attached result it changes only what goes to `.grad`.
    What a hook computes is recorded by the managers that record outside the one in backward, and by
    that one with `create_graph=True`. In forward mode alone, where no gradient arrives, it is never called.

    `hook` takes the gradient, a new Tensor, and returns None, or a Tensor that replaces it.

    Returns:
        A handle with `remove()`.

    Raises:
        TypeError: `hook` cannot be called; in backward, it returned something else or another dtype.
        ValueError: in backward, the hook returned another shape.
        RuntimeError: no manager has attached the tensor, and none that records here tracks it.

    >>> import gradmgr
    >>> x = gradmgr.tensor(3.0)
    >>> gm = gradmgr.GradManager().attach(x)
    >>> handle = x.register_hook(lambda g: g * 10)
    >>> with gm:
    ...     gm.backward(x * 2)
    >>> x.grad
    Tensor(20.)
    """
    errors.check_function(hook, "register_hook")
    check_tracked(self, "register_hook")
    return RemovableHandle(hook_places(self, hook))


def _register_post_accumulate_grad_hook(self: Tensor, hook: Hook) -> RemovableHandle:
    """Call `hook(tensor)` after each backward that added to this attached tensor's `.grad`.

    It is called when `.grad` of all is written, and may set it to None, as an optimiser's step does that
    frees each gradient at once; a write in place to the tensor is then not recorded. It must return None.
    An error in it passes through, `.grad` stays written.

    Returns:
        A handle with `remove()`.

    Raises:
        TypeError: `hook` cannot be called; in backward, it returned something.
        RuntimeError: the tensor is attached to no manager; use `register_hook`.

    >>> import gradmgr
    >>> def descend(w):
    ...     w -= 0.5 * w.grad
    ...     w.grad = None
    >>> w = gradmgr.tensor(3.0)
    >>> gm = gradmgr.GradManager().attach(w)
    >>> handle = w.register_post_accumulate_grad_hook(descend)
    >>> with gm:
    ...     gm.backward(w * 2)
    >>> w
    Tensor(2.)
    """
    errors.check_function(hook, "register_post_accumulate_grad_hook")
    if not is_attached(self):
        raise errors.NotRecordedError(
            f"register_post_accumulate_grad_hook: {describe(self)} is attached to no manager, and only attached "
            "tensors have .grad written; attach it, or use register_hook"
        )
    hooks = hooked_leaf(self)
    return RemovableHandle([HookPlace(hooks.post, hook, hooks)])


def _retain_grad(self: Tensor) -> None:
    """Let `backward` also write `.grad` of this result of an operation; for an attached tensor it always does.

    What arrives is the gradient after all hooks of the tensor, whenever they were registered. After a
    write in place it is the gradient of the new value.

    Raises:
        RuntimeError: no manager has attached the tensor, and none that records here tracks it.

    >>> import gradmgr
    >>> x = gradmgr.tensor(3.0)
    >>> gm = gradmgr.GradManager().attach(x)
    >>> with gm:
    ...     y = x * x
    ...     y.retain_grad()
    ...     gm.backward(y * 5)
    >>> y.grad
    Tensor(5.)
    """
    check_tracked(self, "retain_grad")
    retain_gradient(self)


def _retains_grad(self: Tensor) -> bool:
    """Whether `retain_grad` was called on this result of an operation, in a recording that lasts.

    >>> import gradmgr
    >>> x = gradmgr.tensor(1.0)
    >>> with gradmgr.GradManager().attach(x):
    ...     y = x * 2
    ...     y.retain_grad()
    ...     print(y.retains_grad)
    True
    """
    return retains_gradient(self)


# ---------------------------------------------------------------- refused


def _data(self: Tensor, value: Any = None) -> NoReturn:
    """Refused, as writes to it would change values unseen by the recording; see the error."""
    raise AttributeError(
        "Tensor has no .data, which would change values unseen by the recording: use t.detach() for the "
        "values as a Tensor, t.numpy() as an array, and `with gradmgr.no_grad(): t[...] = v` to write them unrecorded"
    )


# Methods of torch's tensors that are functions of NumPy's, by the number of arrays they take, and operators.
_OF_ONE = (
    *("absolute", "angle", "arccos", "arcsin", "arctan", "argwhere", "bincount", "ceil", "cosh", "count_nonzero"),
    *("cov", "corrcoef", "diag", "diff", "exp2", "expm1", "flip", "fliplr", "flipud", "floor", "i0", "isfinite"),
    *("isinf", "isnan", "log10", "log1p", "log2", "logical_not", "median", "nan_to_num", "nanmean", "nansum"),
    *("negative", "reciprocal", "rot90", "sinc", "sinh", "square", "tan", "tril", "triu", "trunc", "unique"),
)
_OF_TWO = (
    *("allclose", "arctan2", "cross", "equal", "fmax", "fmin", "fmod", "hypot", "inner", "isclose"),
    *("kron", "logaddexp", "logical_and", "logical_or", "logical_xor", "maximum", "minimum", "outer", "vdot"),
)
_OPERATORS = MappingProxyType(
    {
        **dict.fromkeys(("sub", "subtract"), "-"),
        **dict.fromkeys(("mul", "multiply"), "*"),
        **dict.fromkeys(("div", "divide"), "/"),
        "add": "+",
        "eq": "==",
        "floor_divide": "//",
        "ge": ">=",
        "gt": ">",
        "le": "<=",
        "lt": "<",
        "ne": "!=",
        "remainder": "%",
    }
)

# Methods of torch's tensors that NumPy's arrays do not have, and their replacements. They are properties that raise,
# not a __getattr__, which every operation would call for each field that is unset.
_REPLACEMENTS = MappingProxyType(
    {
        **{f: f"gradmgr.numpy.{f}(t)" for f in ("abs", "cos", "exp", "log", "sign", "sin", "sqrt", "tanh", "where")},
        **{f: f"gradmgr.numpy.{f}(t)" for f in _OF_ONE},
        **{f: f"gradmgr.numpy.{f}(t, u)" for f in _OF_TWO},
        **{f: f"gradmgr.special.{f}(t)" for f in ("digamma", "erf", "erfc", "erfinv", "logit")},
        **{f: f"gradmgr.numpy.linalg.{f}(t)" for f in ("cholesky", "det", "qr", "slogdet", "svd")},
        **{f: f"t {symbol} u" for f, symbol in _OPERATORS.items()},
        **{f: f"gradmgr.nn.functional.{f}(t)" for f in ("relu", "sigmoid")},
        **{f: f"gradmgr.nn.functional.{f}(t, dim=...)" for f in ("log_softmax", "softmax")},
        "bmm": "t @ u",
        "bool": "t.astype(bool)",
        "chunk": "gradmgr.numpy.array_split(t, parts, axis=...)",
        "clamp": "t.clip(least, most)",
        "contiguous": "t, as arrays are taken with any strides",
        "cpu": "t.to('cpu')",
        "cuda": "t.to('cuda:0')",
        "dim": "t.ndim",
        "double": "t.astype('float64')",
        "expand": "gradmgr.numpy.broadcast_to(t, shape)",
        "float": "t.astype('float32')",
        "gather": "gradmgr.numpy.take_along_axis(t, indices, axis=...)",
        "half": "t.astype('float16')",
        "histogram": "gradmgr.numpy.histogram(t, bins)",
        "index_select": "gradmgr.numpy.take(t, indices, axis=...)",
        "int": "t.astype('int32')",
        "inverse": "gradmgr.numpy.linalg.inv(t)",
        "is_contiguous": "t.numpy().flags.c_contiguous",
        "is_cuda": "t.device != 'cpu'",
        "is_floating_point": "t.dtype.kind == 'f'",
        "lgamma": "gradmgr.special.gammaln(t)",
        "logsumexp": "gradmgr.special.logsumexp(t, axis=...)",
        "long": "t.astype('int64')",
        "masked_fill": "gradmgr.numpy.where(mask, value, t)",
        "masked_select": "t[mask]",
        "matmul": "t @ u",
        "mm": "t @ u",
        "mv": "t @ u",
        "narrow": "t[begin:end]",
        "neg": "-t",
        "norm": "gradmgr.numpy.linalg.norm(t)",
        "numel": "t.size",
        "permute": "t.transpose(axes)",
        "pow": "t ** exponent",
        "quantile": "gradmgr.numpy.quantile(t, q)",
        "repeat_interleave": "gradmgr.numpy.repeat(t, counts, axis=...)",
        "roll": "gradmgr.numpy.roll(t, shift)",
        "rsqrt": "1 / gradmgr.numpy.sqrt(t)",
        "scatter": "t.clone().scatter_(axis, indices, values)",
        "scatter_add": "t.clone().scatter_add_(axis, indices, values)",
        "split": "gradmgr.numpy.split(t, positions, axis=...)",
        "t": "t.T",
        "tile": "gradmgr.numpy.tile(t, counts)",
        "topk": "gradmgr.numpy.sort(t, descending=True)[..., :k]",
        "type": "t.astype(dtype)",
        "unbind": "gradmgr.numpy.unstack(t, axis=...)",
        "unflatten": "t.reshape(shape)",
        "unsqueeze": "gradmgr.numpy.expand_dims(t, axis)",
        "view": "t.reshape(shape)",
        "view_as": "t.reshape(u.shape)",
    }
)


def _refused_method(name: str, instead: str) -> property:
    def refuse(self: Tensor) -> NoReturn:
        raise AttributeError(f"Tensor has NumPy's methods, and .{name} is torch's: write {instead}")

    return property(refuse, doc=f"Refused, as the name is torch's: write {instead}")


def _dir(self: Tensor) -> list[str]:
    """Return the names of a Tensor's attributes, without those that only raise."""
    return [name for name in object.__dir__(self) if name not in _REPLACEMENTS]


def bind() -> None:
    """Bind everything onto Tensor."""
    for name, member in _MEMBERS.items():
        setattr(Tensor, name, member)
    for name, instead in _REPLACEMENTS.items():
        setattr(Tensor, name, _refused_method(name, instead))


_MEMBERS = MappingProxyType(
    {
        "__dir__": _dir,
        "backward": _backward,
        "data": property(_data, _data, _data, doc=_data.__doc__),
        "detach_": _detach_,
        "grad_fn": property(_grad_fn, doc=_grad_fn.__doc__),
        "is_leaf": property(_is_leaf, doc=_is_leaf.__doc__),
        "register_hook": _register_hook,
        "register_post_accumulate_grad_hook": _register_post_accumulate_grad_hook,
        "requires_grad": property(_requires_grad, _set_requires_grad, doc=_requires_grad.__doc__),
        "requires_grad_": _requires_grad_,
        "retain_grad": _retain_grad,
        "retains_grad": property(_retains_grad, doc=_retains_grad.__doc__),
    }
)

"""The names of NumPy's that gradmgr.numpy does not define: refused with a reason, or NumPy's own."""

from __future__ import annotations

from types import MappingProxyType

# By name as after "numpy.": the reason, and what to do instead.
REFUSED = MappingProxyType(
    {
        "asmatrix": "numpy.matrix is deprecated and a Tensor is an array; use array and @",
        "bmat": "numpy.matrix is deprecated and a Tensor is an array; use block",
        "chararray": "it holds text, which has no gradient; use numpy.strings",
        "frompyfunc": "it computes on Python objects, which carry no gradient; use vectorize",
        "in1d": "NumPy 2 deprecates it; use isin",
        "matrix": "numpy.matrix is deprecated and a Tensor is an array; use array and @",
        "nditer": "it iterates over the memory of plain arrays; use ndenumerate, or numpy.nditer on t.numpy()",
        "nested_iters": "it iterates over the memory of plain arrays; call numpy.nested_iters on t.numpy()",
        "trapz": "NumPy 2 deprecates it; use trapezoid",
    }
)

# Names of torch's functions that NumPy does not have: what to write instead.
TORCHS = MappingProxyType(
    {
        **dict.fromkeys(("bmm", "mm", "mv"), "gradmgr.numpy.matmul"),
        **{name: f"gradmgr.nn.functional.{name}" for name in ("log_softmax", "one_hot", "relu", "sigmoid", "softmax")},
        **{name: f"gradmgr.special.{name}" for name in ("digamma", "erf", "erfc", "erfinv", "logsumexp")},
        "as_tensor": "gradmgr.asarray",
        "cat": "gradmgr.numpy.concatenate",
        "chunk": "gradmgr.numpy.array_split",
        "clamp": "gradmgr.numpy.clip",
        "div": "gradmgr.numpy.divide",
        "from_numpy": "gradmgr.asarray",
        "gather": "gradmgr.numpy.take_along_axis",
        "index_select": "gradmgr.numpy.take",
        "manual_seed": "numpy.random.default_rng(seed), and pass what it returns",
        "mul": "gradmgr.numpy.multiply",
        "neg": "gradmgr.numpy.negative",
        "norm": "gradmgr.numpy.linalg.norm",
        "permute": "gradmgr.numpy.transpose",
        "rand": "gradmgr.numpy.random.default_rng(0).random(shape)",
        "randn": "gradmgr.numpy.random.default_rng(0).normal(size=shape)",
        "rsqrt": "1 / gradmgr.numpy.sqrt",
        "sub": "gradmgr.numpy.subtract",
        "tensor": "gradmgr.tensor",
        "topk": "gradmgr.numpy.sort(x, descending=True)[..., :k]",
        "unsqueeze": "gradmgr.numpy.expand_dims",
    }
)

# NumPy's own, looked up there at first access: modules, most of which NumPy itself loads at first access (they know
# nothing of Tensors: a tracked one raises, except through functions that stand here too), types that not
# every platform has, and tables that can be written to.
PASSED_ON = frozenset(
    (
        *("char", "ctypeslib", "dtypes", "emath", "exceptions", "f2py", "lib", "ma", "polynomial", "random", "rec"),
        *("strings", "testing", "typing"),
        *("complex192", "complex256", "float96", "float128"),
        *("sctypeDict", "typecodes"),
    )
)

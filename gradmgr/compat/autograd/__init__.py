"""HIPS autograd's names over gradmgr's own functions.

A program imports `grad` and the others from here, and `gradmgr.compat.autograd.numpy` as `np`; or it calls `install()`,
before it imports `autograd` itself.

Functions take and give plain arrays and numbers, and containers of them. Inside of a function that is differentiated,
traced values are `gradmgr.Tensor`. `gradmgr.compat` says what this cannot do.

>>> import gradmgr.compat.autograd.numpy as np
>>> from gradmgr.compat.autograd import elementwise_grad
>>> slope = elementwise_grad(np.tanh)
>>> slope(np.array([0.0, 1.0])).round(4)
array([1.  , 0.42])
"""

from gradmgr.compat.autograd import (
    builtins,
    core,
    differential_operators,
    extend,
    misc,
    numpy,
    scipy,
    test_util,
    tracer,
    util,
    wrap_util,
)
from gradmgr.compat.autograd._install import install, uninstall
from gradmgr.compat.autograd.builtins import dict, isinstance, list, tuple, type
from gradmgr.compat.autograd.core import primitive
from gradmgr.compat.autograd.differential_operators import (
    checkpoint,
    deriv,
    egrad,
    elementwise_grad,
    grad,
    grad_and_aux,
    grad_named,
    hessian,
    hessian_tensor_product,
    hessian_vector_product,
    holomorphic_grad,
    hvp,
    jacobian,
    make_ggnvp,
    make_hvp,
    make_jvp,
    make_jvp_reversemode,
    make_vjp,
    multigrad_dict,
    tensor_jacobian_product,
    value_and_grad,
    vector_jacobian_product,
)

__all__ = [
    "builtins",
    "checkpoint",
    "core",
    "deriv",
    "dict",
    "differential_operators",
    "egrad",
    "elementwise_grad",
    "extend",
    "grad",
    "grad_and_aux",
    "grad_named",
    "hessian",
    "hessian_tensor_product",
    "hessian_vector_product",
    "holomorphic_grad",
    "hvp",
    "install",
    "isinstance",
    "jacobian",
    "list",
    "make_ggnvp",
    "make_hvp",
    "make_jvp",
    "make_jvp_reversemode",
    "make_vjp",
    "misc",
    "multigrad_dict",
    "numpy",
    "primitive",
    "scipy",
    "tensor_jacobian_product",
    "test_util",
    "tracer",
    "tuple",
    "type",
    "uninstall",
    "util",
    "value_and_grad",
    "vector_jacobian_product",
    "wrap_util",
]

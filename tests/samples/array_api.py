"""Samples of what the Array API standard adds to NumPy's functions."""

import numpy as np

from samples._table import CONSTANTS, Arg, X, add, given

for axis in (-1, 0, None):
    add(
        "sort",
        f"the largest first, axis={axis}",
        lambda xp, x, axis=axis: xp.sort(x, axis=axis, descending=True),
        X,
        reference=lambda x, axis=axis: -np.sort(-x, axis=axis),
        dispatches=False,  # numpy.sort has no such keyword
    )
add(
    "sort",
    "the largest first, with ties",
    lambda xp, x, k: xp.sort(x, descending=True) * k,
    Arg(values=[1.0, 2.0, 2.0, 0.0]),
    given([0, 1, 2, 3]),
    reference=lambda x, k: -np.sort(-x) * k,
    dispatches=False,
    smooth=False,
)

CONSTANTS.update(
    {
        "finfo": [lambda xp, x, y: [float(getattr(xp.finfo(np.float32), name)) for name in ("eps", "max", "tiny")]],
        "iinfo": [lambda xp, x, y: [xp.iinfo(np.int8).min, xp.iinfo("uint16").max, xp.iinfo(np.int64).bits]],
    }
)

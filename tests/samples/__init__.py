"""The one table of samples: calls of every differentiable function, on which the generic tests run.

Each chapter enters its samples when it is imported. A new op is a line in the op table and a line here.
"""

from samples import (
    constants,
    creation,
    elementwise,
    engine,
    joining,
    operators,
    picking,
    products,
    reductions,
    shapes,
)
from samples._table import (
    CONSTANTS,
    CREATION,
    SAMPLES,
    Sample,
    flat,
    gradients,
    knows,
    seeds,
    taken,
    tensors,
)

__all__ = [
    "CONSTANTS",
    "CREATION",
    "SAMPLES",
    "Sample",
    "constants",
    "creation",
    "elementwise",
    "engine",
    "flat",
    "gradients",
    "joining",
    "knows",
    "operators",
    "picking",
    "products",
    "reductions",
    "seeds",
    "shapes",
    "taken",
    "tensors",
]

"""Small modules without random numbers, so that results are known, which several tests use."""

import numpy as np

from gradmgr import nn


class Affine(nn.Module):
    def __init__(self, values=((1.0, 2.0), (3.0, 4.0)), bias=(0.5, -0.5)):
        super().__init__()
        self.weight = nn.Parameter(values)
        self.bias = nn.Parameter(bias)

    def forward(self, x):
        return x @ self.weight + self.bias


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = Affine()
        self.inner = nn.Module()
        self.inner.last = Affine(((2.0, 0.0), (0.0, 2.0)), (0.0, 0.0))
        self.register_buffer("scale", np.array([10.0, 100.0]))
        self.register_buffer("scratch", np.zeros(3), persistent=False)
        self.sizes = (2, 2)

    def forward(self, x):
        return self.inner.last(self.first(x)) * self.scale


def values_of(module):
    return {name: t.tolist() for name, t in module.state_dict().items()}

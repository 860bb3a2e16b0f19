"""The suite `train`: whole optimiser steps of small and middle-sized networks, in float32, in every library there is.

`trainer("CNN 64x1x28x28", "PyTorch")` has step() -> loss and parameters(); `tables` times all of them side by side.
"""

from __future__ import annotations

from bench.train.models import MODELS as MODELS
from bench.train.models import Model as Model
from bench.train.suite import LIBRARIES as LIBRARIES
from bench.train.suite import Trainer as Trainer
from bench.train.suite import tables as tables
from bench.train.suite import trainer as trainer

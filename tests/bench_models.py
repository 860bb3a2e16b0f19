"""Models of the suite `train` that are small enough for a test, by their kinds."""

from __future__ import annotations

from bench.train import models

SMALL = {
    "mlp": lambda: models.mlp(3, 4, 3),
    "lstm": lambda: models.lstm(3, 2, 4),
    "gpt": lambda: models.gpt(8, 5, 2),
    "cnn": lambda: models.cnn(3, 8, (2, 3)),
}

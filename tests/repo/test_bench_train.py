"""The steps that the suite `train` times: every library does the same, and it is descent along the gradient."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import pytest
from bench_models import SMALL

from bench._measure import Pace, check_agreement
from bench.train import LIBRARIES, MODELS, Model, formulas, suite, tables, trainer
from bench.train.in_autograd import Update

NO_TIME = Pace(rounds=2, tries=1, turn=0.0, long_rounds=1)

kinds = pytest.mark.parametrize("kind", list(SMALL))
erf = np.vectorize(math.erf)


def _in_doubles(model: Model, **changes) -> Model:
    values = {name: a.astype(float) for name, a in model.values.items()}
    target = model.target if model.kind == "cnn" else model.target.astype(float)
    return replace(model, values=values, x=model.x.astype(float), target=target, **changes)


def _loss(model: Model, values) -> float:
    return float(formulas.LOSSES[model.kind](np, erf, values, model.x, model.target))


def _slopes(model: Model, library: str = "gradmgr"):
    """Return the gradient by name: what a step of plain descent takes off the values."""
    descent = replace(model, optimiser="SGD", options={"lr": 1.0})
    trained = trainer(descent, library)
    trained.step()
    return {
        name: before - after for (name, before), after in zip(model.values.items(), trained.parameters(), strict=True)
    }


# ---------------------------------------------------------------- the steps are right


@pytest.mark.parametrize(
    ("kind", "library"), [*((kind, "gradmgr") for kind in SMALL), ("mlp", "plain"), ("mlp", "NumPy")]
)
def test_a_step_descends_along_the_difference_quotient(kind, library):
    model = _in_doubles(SMALL[kind]())
    rng, step = np.random.default_rng(5), 1e-6
    for name, slope in _slopes(model, library).items():
        assert slope.any(), name
        along = rng.standard_normal(slope.shape)
        up, down = (_loss(model, {**model.values, name: model.values[name] + h * along}) for h in (step, -step))
        assert np.vdot(slope, along) == pytest.approx((up - down) / (2 * step), rel=1e-6, abs=1e-9), name


@kinds
def test_the_loss_is_that_of_the_formula(kind):
    model = _in_doubles(SMALL[kind]())
    trained = trainer(model, "gradmgr")
    for _ in range(2):
        values = dict(zip(model.values, [p.copy() for p in trained.parameters()], strict=True))
        assert trained.step() == pytest.approx(_loss(model, values), rel=1e-12)


@pytest.mark.parametrize("optimiser", ["SGD", "Adam", "AdamW"])
def test_the_optimisers_do_what_their_formulas_by_hand_do(optimiser):
    options = {"lr": 0.05, "eps": 1e-4, "weight_decay": 0.1}
    options = {name: options[name] for name in {"SGD": ["lr"], "Adam": ["lr", "eps"]}.get(optimiser, options)}
    model = _in_doubles(SMALL["lstm"](), optimiser=optimiser, options=options)
    trained, update = trainer(model, "gradmgr"), Update(model)
    by_hand = {name: a.copy() for name, a in model.values.items()}
    for _ in range(3):
        trained.step()
        update(by_hand, _slopes(replace(model, values=by_hand)))
    for one, other in zip(trained.parameters(), by_hand.values(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)


@kinds
def test_every_installed_library_gives_the_same(kind):
    model = SMALL[kind]()
    taking_part = suite.contestants(model, 1)
    assert "gradmgr" in [c.name for c in taking_part]
    check_agreement(kind, taking_part)


@kinds
def test_a_step_in_single_precision_stays_in_it(kind):
    model = SMALL[kind]()
    trained = trainer(model, "gradmgr")
    trained.step()
    for before, after in zip(model.values.values(), trained.parameters(), strict=True):
        assert after.dtype == before.dtype == np.float32
        assert (after != before).any()


# ---------------------------------------------------------------- what is measured


@pytest.mark.parametrize("label", list(MODELS))
def test_models_have_the_sizes_that_their_labels_say(label):
    model = MODELS[label]()
    name, *sizes = re.findall(r"[A-Z]{3,}|\d+", label)
    sizes = [int(size) for size in sizes]
    assert name.lower() == model.kind
    if name == "MLP":
        batch, width, depth = sizes
        assert model.x.shape == (batch, width)
        assert [a.shape for a in model.values.values()] == [(width, width), (width,)] * depth
    elif name == "LSTM":
        steps, batch, hidden = sizes
        assert model.x.shape == (steps, batch, hidden)
        assert model.values["weight_hh"].shape == (4 * hidden, hidden)
    elif name == "GPT":
        width, length, batch = sizes
        assert model.x.shape == (batch, length, width)
        assert model.values["up_weight"].shape == (4 * width, width)
    else:
        assert list(model.x.shape) == sizes
        assert model.values["conv2_weight"].shape == (32, 16, 3, 3)
    assert {a.dtype for a in (*model.values.values(), model.x)} == {np.dtype(np.float32)}


def test_every_target_is_of_a_model_and_of_a_column():
    for label, targets in suite.TARGETS.items():
        assert label in MODELS
        assert {base for base, _ in targets} <= LIBRARIES.keys() - {"gradmgr"}


def test_the_tables_have_a_row_for_each_model():
    small = {"MLP 8x16x3": MODELS["MLP 8x16x3"], "MLP other": SMALL["mlp"], "CNN other": SMALL["cnn"]}
    found = list(tables(NO_TIME, 1, models=small))
    assert [[row.label for row in table.rows] for table in found] == [["MLP 8x16x3", "MLP other"], ["CNN other"]]
    rows = found[0].rows
    for row in rows:
        assert row.cells.keys() <= found[0].columns.keys()
        assert "µs" in row.cells
    assert "gradmgr / NumPy" in [verdict.what for verdict in rows[0].verdicts]
    assert not rows[1].verdicts
    (table,) = tables(NO_TIME, 1, only="cnn", models=small)
    assert table.title.endswith("CNN")


def test_a_model_or_a_column_that_is_not_there_is_refused():
    with pytest.raises(KeyError):
        trainer("MLP 7x7x7", "gradmgr")
    with pytest.raises(KeyError):
        trainer("MLP 8x16x3", "Theano")
    with pytest.raises(NotImplementedError):
        trainer(SMALL["gpt"](), "NumPy")

"""Dropout: exact scaling, one mask for all derivatives, and where its random numbers come from."""

import numpy as np
import pytest

import gradmgr
from gradmgr import GradManager, errors, nn, tensor
from gradmgr._transforms.vmap import vmap
from gradmgr.nn.functional import dropout


@pytest.mark.parametrize("p", [0.5, 0.25, 0.1, 1 / 3, 0.97, 1e-4, 1 / 512])
def test_share_and_scale(p):
    count = 2_000_000
    y = dropout(np.ones(count, np.float32), p, rng=np.random.default_rng(0))
    dropped = float((y == 0).mean())
    assert abs(dropped - p) < 5 * np.sqrt(p * (1 - p) / count)
    assert set(y.tolist()) == {0.0, float(np.float32(1 / (1 - p)))}


def test_adjacent_elements_are_dropped_independently():
    kept = dropout(np.ones(800_000), 0.3, rng=np.random.default_rng(0)) != 0
    for lag in (1, 2, 7, 8, 64):
        both = float((kept[lag:] & kept[:-lag]).mean())
        assert abs(both - 0.49) < 5 * np.sqrt(0.49 * 0.51 / kept.size)


def test_draws_follow_the_generator():
    x, random = np.ones((3, 50)), np.random.default_rng(4)
    first, second = dropout(x, 0.4, rng=random), dropout(x, 0.4, rng=random)
    assert (first != second).any()
    np.testing.assert_array_equal(first, dropout(x, 0.4, rng=np.random.default_rng(4)))
    assert (dropout(x) != dropout(x)).any()


def test_what_is_left_alone():
    x = tensor(np.ones(5))
    assert dropout(x, 0.0) is x
    assert dropout(x, 0.7, training=False) is x
    assert dropout(x, 1.0).tolist() == [0.0] * 5
    random = np.random.default_rng(0)
    before = random.bit_generator.state
    dropout(x, 0.0, rng=random)
    dropout(x, 0.5, False, rng=random)
    dropout(x, 1.0, rng=random)
    assert random.bit_generator.state == before


def test_the_gradient_has_the_same_mask_kept_in_one_byte_for_an_element():
    x = tensor(np.full((4, 500), 3.0, np.float32))
    with GradManager().attach(x) as gm:
        y = dropout(x, 0.2, rng=np.random.default_rng(0))
        assert gm._tape.nbytes() == x.size
        gm.backward(y, np.ones_like(x.numpy()))
    np.testing.assert_allclose(x.grad.numpy(), y.numpy() / 3, rtol=1e-6)
    with GradManager().attach(x) as gm:
        gm.backward(dropout(x, 1.0).sum())
    assert not x.grad.numpy()[y.numpy() == 0].any()


@pytest.mark.parametrize("p", [-0.1, 1.1, np.nan])
def test_no_probability(p):
    with pytest.raises(ValueError, match=r"p is a probability, from 0 to 1; found"):
        dropout(np.ones(3), p)


@pytest.mark.parametrize("training", [True, False])
def test_a_seed_is_no_generator(training):
    with pytest.raises(TypeError, match=r"numpy\.random\.default_rng\(3\)"):
        dropout(np.ones(3), training=training, rng=3)


def test_integers_are_refused():
    with pytest.raises(
        errors.DtypeError, match="dropout takes floating-point or complex numbers; found input of dtype int64"
    ):
        dropout(np.arange(3))


# ---------------------------------------------------------------- run again, mapped


@pytest.mark.parametrize("source", ["closure", "argument", "attribute", "attribute of the class", "none"])
def test_checkpoint_draws_the_same_mask_again(source):
    """A second mask in the second run would give another gradient than that of the value returned."""

    class Layer:
        def __init__(self):
            self.random = np.random.default_rng(1)

        def __call__(self, x):
            return dropout(x * x, 0.5, rng=self.random)

    class Shared:
        random = np.random.default_rng(1)

        def __call__(self, x):
            return dropout(x * x, 0.5, rng=self.random)

    random = np.random.default_rng(1)
    calls = {
        "closure": (lambda x: dropout(x * x, 0.5, rng=random), ()),
        "argument": (lambda x, given: dropout(x * x, 0.5, rng=given), (np.random.default_rng(1),)),
        "attribute": (Layer(), ()),
        "attribute of the class": (Shared(), ()),
        "none": (lambda x: dropout(x * x, 0.5), ()),
    }
    function, more = calls[source]
    x = tensor(np.full(200, 3.0))
    with GradManager().attach(x) as gm:
        y = gradmgr.checkpoint(function, x, *more)
        gm.backward(y.sum())
    assert 0 < np.count_nonzero(y.numpy()) < 200
    np.testing.assert_array_equal(x.grad.numpy(), y.numpy() / 3 * 2)


def test_vmap_asks_for_its_randomness():
    x = tensor(np.ones((3, 100)))
    with pytest.raises(errors.RandomnessError):
        vmap(dropout)(x)
    same = vmap(dropout, randomness="same")(x).numpy()
    assert (same[0] == same[1]).all()
    assert (same[0] == same[2]).all()
    different = vmap(dropout, randomness="different")(x).numpy()
    assert (different[0] != different[1]).any()
    random = np.random.default_rng(0)
    with pytest.raises(
        errors.RandomnessError, match=r"vmap\(<lambda>\): dropout draws random numbers; say randomness='s"
    ):
        vmap(lambda row: dropout(row, rng=random))(x)
    own = vmap(lambda row: dropout(row, rng=random), randomness="same")(x).numpy()
    assert (own[0] == own[1]).all()


def test_numpys_global_seed_reaches_it():
    """Where there is no generator, its seed is drawn from NumPy's global one, which checkpoint and vmap watch."""
    state = np.random.get_state()
    try:
        found = []
        for _ in range(2):
            np.random.seed(3)
            found.append([dropout(np.ones(100)), dropout(np.ones(100))])
    finally:
        np.random.set_state(state)
    np.testing.assert_array_equal(found[0], found[1])
    assert (found[0][0] != found[0][1]).any()


@pytest.mark.parametrize("refused", [nn.Dropout, lambda p: dropout(np.ones(2), p)])
def test_a_probability_that_is_no_number_is_refused(refused):
    with pytest.raises(TypeError, match="ropout: p must be a number; found None"):
        refused(None)

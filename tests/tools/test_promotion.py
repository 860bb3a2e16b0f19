"""detect_promotion."""

import warnings

import numpy as np
import pytest

import gradmgr.numpy as gnp
from gradmgr import GradManager, checkpoint, detect_promotion, errors, functional, no_grad, tensor, vmap

X = np.array([[1.0, 2.0], [0.5, 3.0]], np.float32)
WIDE = np.array([[1.0, 0.5], [0.25, 2.0]])

PROMOTING = {
    "a NumPy scalar": lambda x: x / np.sqrt(3.0),
    "an array": lambda x: x * WIDE,
    "a product of matrices": lambda x: x @ WIDE,
    "another Tensor": lambda x: x + tensor(WIDE),
    "joined": lambda x: gnp.concatenate([x, WIDE]),
    "a cast inside": lambda x: gnp.linalg.solve(WIDE, x),
    "a mean": lambda x: gnp.average(x, weights=WIDE),
    "complex": lambda x: x.astype("complex64") * np.complex128(1j),
    "a half": lambda x: x.astype("float16") * X,
    "NumPy's function": lambda x: np.where(WIDE > 0.3, x, WIDE),
    "in place": lambda x: x.__iadd__(WIDE),
}
KEEPING = {
    "a Python number": lambda x: x / 3.0 + 1,
    "an integer": lambda x: x**2 + np.arange(2, dtype=np.int8),
    "a cast that is asked for": lambda x: x.astype("float64"),
    "a sum that is asked for": lambda x: gnp.sum(x, dtype=np.float64),
    "to float64 before": lambda x: x.astype("float64") * WIDE,
    "complex of the same precision": lambda x: x * np.complex64(1j),
    "narrowed": lambda x: tensor(WIDE).astype("float32") * x,
    "a mean": lambda x: gnp.mean(x) + gnp.var(x),
}
DTYPES = {  # of the results that are not float32
    "a cast that is asked for": np.float64,
    "a sum that is asked for": np.float64,
    "to float64 before": np.float64,
    "complex of the same precision": np.complex64,
}


@pytest.mark.parametrize("name", PROMOTING)
@pytest.mark.parametrize("records", [False, True])
def test_a_wider_result_is_an_error_that_names_the_line(name, records):
    x = tensor(X)
    gm = GradManager().attach(x)
    if records:
        gm.record()
    message = r"gives (float64|float32|complex128).*test_promotion\.py"
    with pytest.raises(errors.PromotionError, match=message), detect_promotion("raise"):
        PROMOTING[name](x)
    gm.release()
    PROMOTING[name](x)  # the block is over


@pytest.mark.parametrize("name", KEEPING)
def test_what_keeps_the_dtype_or_is_asked_for_passes(name):
    with detect_promotion("raise"):
        found = KEEPING[name](tensor(X))
    plain = KEEPING[name](tensor(X))
    assert found.dtype == plain.dtype == DTYPES.get(name, np.float32)
    assert found.tolist() == plain.tolist()


def test_warnings_point_at_the_line():
    with warnings.catch_warnings(record=True) as found, detect_promotion():
        warnings.simplefilter("always")
        (tensor(X) * np.float64(2.0)).sum()
    (first, *_) = found
    assert first.category is errors.PromotionWarning
    assert first.filename == __file__
    assert "multiply of a Tensor" in str(first.message)
    assert "a Python number keeps the dtype" in str(first.message)


def test_it_sees_what_other_tools_compute():
    def wide(x):
        return gnp.sum(x * np.float64(2.0))

    for call in (
        lambda: functional.grad(wide)(tensor(X)),
        lambda: vmap(wide)(tensor(X)),
        lambda: no_grad()(wide)(tensor(X)),
        lambda: checkpoint(wide, tensor(X)),
    ):
        with pytest.raises(errors.PromotionError), detect_promotion("raise"):
            call()


def test_one_object_opens_again_and_inside_of_itself():
    detect = detect_promotion("raise")
    for _ in range(2):
        with detect:
            with detect:
                pass
            with pytest.raises(errors.PromotionError):
                tensor(X) * WIDE
        tensor(X) * WIDE


def test_other_modes_are_refused():
    with pytest.raises(ValueError, match="mode is 'warn' or 'raise'; found 'error'"):
        detect_promotion("error")

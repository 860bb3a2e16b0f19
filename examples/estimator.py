"""A scikit-learn estimator whose model is a function written with gradmgr, fitted by SciPy's L-BFGS.

`GradRegressor` passes scikit-learn's own checks, so that pipelines, cross-validation and searches take it. Here the
model is a small network; the loss is robust, and leaves outliers alone. It predicts the progression of diabetes, and a
curve with outliers.
"""

import argparse
from pathlib import Path

import numpy
from matplotlib.figure import Figure
from scipy.optimize import minimize
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.datasets import load_diabetes
from sklearn.linear_model import HuberRegressor, LinearRegression
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.validation import check_is_fitted, validate_data

import gradmgr.numpy as np
from gradmgr import errors, functional, tensor


def network(w, x):
    """Return the network's values, of shape (rows,), for inputs of shape (rows, columns)."""
    return np.tanh(x @ w["hidden"] + w["shift"]) @ w["out"] + x @ w["linear"] + w["bias"]


class GradRegressor(RegressorMixin, BaseEstimator):
    """A network with one hidden layer and a robust loss: log cosh of the error over the data's scale."""

    def __init__(self, width=8, decay=1e-2, max_iter=200, random_state=0, device="cpu"):
        self.width = width
        self.decay = decay
        self.max_iter = max_iter
        self.random_state = random_state
        self.device = device

    def fit(self, X, y):  # noqa: N803  # scikit-learn's name
        """Fit to X of shape (rows, columns) and y of shape (rows,)."""
        X, y = validate_data(self, X, y, dtype="float64", y_numeric=True)  # noqa: N806  # scikit-learn's name
        rng = numpy.random.default_rng(self.random_state)
        self.center_ = numpy.median(y)
        self.scale_ = numpy.median(abs(y - self.center_)) or 1.0  # which outliers do not change
        self.shift_, self.spread_ = X.mean(axis=0), numpy.where(X.std(axis=0) > 0, X.std(axis=0), 1.0)
        x = tensor((X - self.shift_) / self.spread_, device=self.device)
        target = tensor((y - self.center_) / self.scale_, device=self.device)
        columns = X.shape[1]
        start = {
            "hidden": rng.normal(size=(columns, self.width)) / columns**0.5,
            "shift": rng.normal(size=self.width),
            "out": numpy.zeros(self.width),
            "linear": numpy.zeros(columns),
            "bias": numpy.zeros(()),
        }

        def loss(w):
            error = abs(network(w, x) - target)
            log_cosh = error + np.log1p(np.exp(-2 * error))
            return np.mean(log_cosh) + self.decay * sum(np.mean(v**2) for v in w.values())

        problem = functional.Flattened(loss, {name: tensor(v, device=self.device) for name, v in start.items()})
        options = {"maxiter": self.max_iter}
        found = minimize(problem.value_and_grad, problem.x0, jac=True, method="L-BFGS-B", options=options)
        self.weights_, self.n_iter_ = problem.unflatten(found.x), max(found.nit, 1)
        return self

    def predict(self, X):  # noqa: N803  # scikit-learn's name
        """Return predictions of shape (rows,)."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype="float64", reset=False)  # noqa: N806  # scikit-learn's name
        y = network(self.weights_, tensor((X - self.shift_) / self.spread_, device=self.device))
        return y.to("cpu").numpy() * self.scale_ + self.center_


def curve(rng, count=150):
    """Return x of shape (count, 1) and a curve at x with noise, of which every eighth value is an outlier."""
    x = numpy.sort(rng.uniform(-3, 3, count))
    y = numpy.sin(2 * x) + 0.5 * x + rng.normal(0, 0.1, count)
    y[::8] += rng.normal(4, 1, len(y[::8]))
    return x[:, None], y


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--folds", type=int, default=5, help="of the cross-validation")
    parser.add_argument("--iterations", type=int, default=200, help="of L-BFGS, at most")
    parser.add_argument("--seed", type=int, default=0, help="decides folds, starts and the curve's noise")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--out", default="estimator.png", help="where to save the picture, a PNG")
    args = parser.parse_args()
    if min(args.folds - 1, args.iterations) < 1 or args.seed < 0 or not Path(args.out).parent.is_dir():
        parser.error("--folds must be at least 2, --iterations 1, --seed 0, and --out in a folder that exists")
    try:
        tensor(0.0, device=args.device)
    except (ValueError, errors.DeviceError) as error:
        parser.error(f"--device: {error}")
    folds = KFold(args.folds, shuffle=True, random_state=args.seed)
    ours = GradRegressor(max_iter=args.iterations, random_state=args.seed, device=args.device)
    search = GridSearchCV(ours, {"width": [2, 4], "decay": [0.3, 1.0]}, cv=folds)
    linear = {"LinearRegression": LinearRegression(), "HuberRegressor": HuberRegressor(max_iter=1000)}
    models = {name: make_pipeline(StandardScaler(), model) for name, model in linear.items()}
    models["GradRegressor"] = search
    X, y = load_diabetes(return_X_y=True)
    scores = {name: cross_val_score(model, X, y, cv=folds) for name, model in models.items()}
    figure = Figure(figsize=(11, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.boxplot(list(scores.values()), tick_labels=list(scores))
    left.set(title="Progression of diabetes, people set aside", ylabel="coefficient of determination R²")
    x, values = curve(numpy.random.default_rng(args.seed))
    right.plot(x, values, ".", color="0.6", label="data, every eighth an outlier")
    for name, model in {**models, "GradRegressor": ours.set_params(width=12, decay=1e-3)}.items():
        right.plot(x, model.fit(x, values).predict(x), label=name)
    right.set(title="A curve", xlabel="x", ylabel="y", ylim=(-2, 9))
    right.legend(loc="upper left", fontsize="small")
    figure.savefig(args.out, format="png")
    print(", ".join(f"{name} R² {found.mean():.3f}" for name, found in scores.items()) + f"; see {args.out}")

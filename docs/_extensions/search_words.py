"""Lead the words that users type into the search box to the section that answers them, where its text lacks them.

Each word becomes an entry of the general index, which Sphinx's search puts first.
"""

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util.typing import ExtensionMetadata

# By page and section; None is the page as a whole.
WORDS: dict[tuple[str, str | None], tuple[str, ...]] = {
    ("tensor", "writing-in-place"): ("in-place", "in-place operation", "+="),
    ("tutorials/finding_a_nan", "why-is-there-no-gradient"): ("grad is none", "missing gradient", "no gradient"),
    ("tutorials/finding_a_nan", "which-line"): ("anomaly detection",),
    ("tutorials/saving_memory", None): ("memory", "out of memory", "gradient checkpointing"),
    ("tutorials/higher_order", "a-second-derivative"): ("second derivative", "higher-order derivative"),
    ("tutorials/custom_functions", None): ("custom gradient", "custom derivative"),
    ("tutorials/cupy", None): ("gpu", "cuda"),
    ("training", "save-and-load"): ("save load", "save model", "load model", "state dict"),
    ("training", "float32-that-becomes-float64"): ("float64", "dtype promotion"),
    ("training", "data-parallel"): ("mpi", "distributed training", "multi-gpu"),
    ("training", "a-training-loop"): ("training loop", "learning rate"),
    ("torch_autograd", "porting"): ("freeze", "frozen parameters"),
    ("torch_autograd", "derivatives"): ("per-sample gradients", "per-example gradients"),
    ("compile", None): ("jit",),
    ("conventions", None): ("subgradient", "complex gradient", "kinks"),
}


def _add_entries(app: Sphinx, doctree: nodes.document) -> None:
    here = app.env.current_document.docname
    for (page, section), words in WORDS.items():
        if page != here:
            continue
        found = [each for each in doctree.findall(nodes.section) if section is None or section in each["ids"]]
        if not found:
            raise ExtensionError(f"search_words: the page {page} has no section {section!r}")
        entries = [("single", word, found[0]["ids"][0], "main", None) for word in words]
        found[0].insert(1, addnodes.index(entries=entries))


def setup(app: Sphinx) -> ExtensionMetadata:
    """Add the entries of a page when it has been read."""
    app.connect("doctree-read", _add_entries, priority=400)  # before the entries are collected
    return {"parallel_read_safe": True, "parallel_write_safe": True}

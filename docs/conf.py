"""Settings of the documentation's site: `python -m sphinx -W docs build/site`, after `pip install -e ".[docs]"`."""

import os
import sys
import tomllib
from pathlib import Path

import gradmgr

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_extensions"))
# Tutorials start programs of this environment, whether or not it is activated: python, mpiexec.
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])

_project = tomllib.loads((HERE.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]

project = "gradmgr"
author = "The gradmgr developers"
project_copyright = author
version = release = gradmgr.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinxcontrib.mermaid",
    "repository_links",
    "gallery",
    "reference",
    "line_breaks",
    "search_words",
]
exclude_patterns = ["_extensions", "_static"]

# Markdown. What a page shows as Python runs elsewhere: in a tutorial at build, in the other pages by the tests.
myst_enable_extensions = ["attrs_inline", "colon_fence", "dollarmath"]
myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]

mermaid_fullscreen = False
mermaid_height = "auto"

# Tutorials are executed at each build, or never: `-D nb_execution_mode=off` makes the site without their results.
nb_execution_mode = "force"
nb_execution_excludepatterns = ["reference/*", "gallery/*"]
nb_execution_raise_on_error = True
nb_execution_timeout = 120
nb_execution_in_temp = True
nb_merge_streams = True
suppress_warnings = [
    "myst-nb.lexer",  # where nothing is executed, no kernel says that cells are Python
    "ref.python",  # a short name of two classes: Node is of gradmgr.graph and of compat.autograd.tracer
]

# The reference. Docstrings are of Google's style; what stands in single backquotes is code.
default_role = "code"
add_module_names = False
autoclass_content = "class"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autosummary_generate = False
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
toc_object_entries_show_parents = "hide"

html_theme = "pydata_sphinx_theme"
html_title = "gradmgr"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_search_scorer = str(HERE / "_static" / "search_scorer.js")
html_logo = "_static/logo.svg"
html_favicon = "_static/logo.svg"
html_copy_source = False
html_show_sourcelink = False
html_context = {"default_mode": "auto"}  # light or dark as the system is; the theme reports an error if it is not told
html_theme_options = {
    "github_url": _project["urls"]["Homepage"],
    "header_links_before_dropdown": 6,
    "icon_links": [],
    "logo": {"text": "gradmgr"},
    "navbar_align": "left",
    "navigation_with_keys": False,
    "pygments_dark_style": "github-dark",
    "pygments_light_style": "a11y-light",
    "secondary_sidebar_items": {"**": ["page-toc"], "coverage": []},  # a table of seven columns needs the room
    "show_prev_next": True,
    "show_toc_level": 2,
    "footer_start": ["copyright"],
    "footer_end": ["theme-version"],
}
# Pages that have no others below them need no navigation at their side.
html_sidebars = {page: [] for page in ("index", "start", "how_it_works", "benchmarks", "changelog", "contributing")}
copybutton_exclude = ".linenos, .gp, .go"

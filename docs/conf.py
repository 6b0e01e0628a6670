"""Sphinx configuration: Markdown by MyST, signatures with `await` by sphinxcontrib-trio."""

import sys
import tomllib
from pathlib import Path

_root = Path(__file__).parents[1]
_project = tomllib.loads((_root / "pyproject.toml").read_text("utf-8"))["project"]
sys.path.insert(0, str(_root / "src"))  # document this checkout, installed or not

project = "Terzetto"
author = copyright = "The Terzetto authors"
release = version = _project["version"]

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinxcontrib_trio",
]
# No intersphinx: the build must not depend on other people's servers.
exclude_patterns = ["_build", "changes/[0-9]*"]

html_theme = "furo"
html_title = f"Terzetto {version}"

myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
napoleon_numpy_docstring = False

"""Sphinx configuration: Markdown by MyST, signatures with `await` by sphinxcontrib-trio."""

import sys
import tomllib
from pathlib import Path

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

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

default_role = "py:obj"  # `Name` in a docstring
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
napoleon_numpy_docstring = False


def _elsewhere(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, text: nodes.TextElement
) -> nodes.Node | None:
    """A plain `Name` of a docstring that another module documents, if there is only one."""
    target = node.get("reftarget", "").removeprefix("terzetto.")
    if node.get("refdomain") != "py" or not target:
        return None
    objects = env.domains.python_domain.objects
    found = [name for name in objects if f".{name}".endswith(f".{target}")]
    if len(found) != 1:
        return None
    domain = env.domains.python_domain
    return domain.resolve_xref(env, node["refdoc"], app.builder, "obj", found[0], node, text)


def setup(app: Sphinx) -> None:
    app.connect("missing-reference", _elsewhere)

"""Sphinx configuration: Markdown by MyST, signatures with `await` by sphinxcontrib-trio."""

import re
import sys
import tomllib
import types
import typing
from pathlib import Path

import attrs
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
html_static_path = ["_static"]
html_css_files = ["docs.css"]

myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3

default_role = "py:obj"  # `Name` in a docstring
suppress_warnings = ["ref.python"]  # modules may each have an `Answer`; such a name is no link
autodoc_member_order = "bysource"
autodoc_use_legacy_class_based = True  # sphinxcontrib-trio extends those classes
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True  # the name of a default, not its repr
napoleon_numpy_docstring = False
napoleon_attr_annotations = False


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


_MADE_FOR_USERS = {
    "terzetto.Agent",
    "terzetto.AgentHandle",
    "terzetto.AgentModel",
    "terzetto.AgentScope",
    "terzetto.Agents",
    "terzetto.Engine",
    "terzetto.Hooks",
    "terzetto.Inbox",
    "terzetto.Messages",
    "terzetto.Notification",
    "terzetto.Registration",
    "terzetto.Serial",
    "terzetto.Session",
    "terzetto.ToolRun",
    "terzetto.Waterfall",
    "terzetto.agent.Driven",
    "terzetto.llm.loopback.LoopbackServer",
    "terzetto.session.Follower",
    "terzetto.stores.jsonl.JsonlHandle",
    "terzetto.vocabulary.BlockAssembler",
}
"""Classes that the engine makes: how it does is nobody else's business."""


def _signature(
    app: Sphinx, what: str, name: str, obj: object, options: object, given: str, returned: str
) -> tuple[str, str] | None:
    if name in _MADE_FOR_USERS:
        return "", ""
    if what != "class" or not given or not isinstance(obj, type) or not attrs.has(obj):
        return None

    def default(match: re.Match[str]) -> str:
        value = getattr(attrs.fields_dict(obj)[match[1]], "default", None)
        if callable(value):
            return str(getattr(value, "__name__", "..."))
        text = repr(value)
        return "..." if isinstance(value, attrs.Factory) or len(text) > 40 else text

    # attrs writes an `__init__` whose text nobody should have to read.
    return re.sub(r"attr_dict\['(\w+)'\]\.default", default, given).replace("NOTHING", "..."), ""


def _docstring(
    app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Say what an alias or a re-export is, where its docstring is somebody else's; leave out
    the rows of the contract that sentences are about, which are for who tests them."""
    if name == "terzetto.evolve":
        lines[:] = ["A copy of the value *inst* with *changes*; `attrs.evolve`."]
    elif isinstance(obj, types.UnionType) and lines[:1] == ["Represent a PEP 604 union type"]:
        kinds = [typing.get_origin(member) or member for member in obj.__args__]
        names = [f"`{getattr(kind, '__name__', kind)}`" for kind in kinds]
        lines[:] = [f"{', '.join(names[:-1])} or {names[-1]}."]
    elif isinstance(obj, (str, int)) and lines[:1] and lines[0].startswith(("str(", "int(")):
        lines.clear()
    lines[:] = [re.sub(r" \((?:C\d+|BC-\d+)(?:, (?:C\d+|BC-\d+))*\)", "", line) for line in lines]


def setup(app: Sphinx) -> None:
    app.connect("autodoc-process-signature", _signature)
    app.connect("autodoc-process-docstring", _docstring)
    app.connect("missing-reference", _elsewhere)

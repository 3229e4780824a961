"""How Sphinx builds the site: `sphinx-build -W --keep-going -n -b html docs OUT`, with the extra `docs` and no network.

The pages are Markdown (MyST); the Python reference is read from the docstrings, the command line reference from click.
docs/contributing.md has the reasons for this generator.
"""

from __future__ import annotations

import sys
from pathlib import Path

DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS.parent), str(DOCS / "_ext")]

import django  # noqa: E402
import django.conf  # noqa: E402

import pgqueue  # noqa: E402

# The docstrings of pgqueue.contrib.django are read by importing it, which needs settings, and no database.
APPS = ["auth", "contenttypes", "messages", "admin"]
django.conf.settings.configure(
    INSTALLED_APPS=[*(f"django.contrib.{app}" for app in APPS), "pgqueue.contrib.django"], USE_TZ=True
)
django.setup()

project = "pgqueue"
author = "The pgqueue authors"
project_copyright = author
version = release = pgqueue.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_click",
    "sphinx_copybutton",
    "pythonreference",
]
exclude_patterns = ["_ext", "_static"]
nitpicky = True
# Names of the standard library and of other packages have no page here; pgqueue's own must resolve.
nitpick_ignore_regex = [
    (r"py:(?!exc).*", r"(?!pgqueue\.).*"),
    (r"py:exc", r"(Value|Runtime|Type|Timeout)Error|ImproperlyConfigured|InvalidTask|TaskResultDoesNotExist"),
]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3  # so that `page.md#heading` is a link, as on the forge

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "inherited-members": True}  # less those of other packages: pythonreference
python_maximum_signature_line_length = 100
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
default_role = "code"  # docstrings write `name`
smartquotes = False  # -- begins an option

copybutton_prompt_text = r"\$ |=> |=# "
copybutton_prompt_is_regexp = True

html_theme = "furo"
html_title = f"pgqueue {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False

suppress_warnings = ["misc.highlighting_failure"]  # commands of psql, such as \gset, are no SQL

linkcheck_ignore = [r"https?://.*"]  # the build has no network: links within the site are what is checked

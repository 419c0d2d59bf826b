"""How the pages are built: Markdown, every cross reference must resolve, warnings are errors."""

from importlib.metadata import version as installed_version

project = "easyscale"
author = "the easyscale contributors"
copyright = f"2026, {author}"  # noqa: A001 - Sphinx reads this very name
release = installed_version("easyscale-torch")

extensions = ["myst_parser", "sphinx_click"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
nitpicky = True
# sphinx-click lists the environment variables of hidden options too and refers to the options.
suppress_warnings = ["ref.option"]
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = f"easyscale {release}"

"""Sphinx's settings. `build.py` gathers the pages first, and runs Sphinx on them; warnings are errors there."""

project = "Distributed-training labs"
author = "The distributed-training labs authors"
html_title = project

extensions = ["myst_parser", "sphinx.ext.mathjax", "sphinx-mathjax-offline"]

# Markdown
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4  # the anchors that GitHub makes
suppress_warnings = ["misc.highlighting_failure"]  # cells with magics, and listings with dots

# Docstrings: `name` is a link where that name is documented, else code
default_role = "py:obj"
add_module_names = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88

# HTML. The theme's fonts are the system's; MathJax comes with sphinx-mathjax-offline.
html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_copy_source = False  # what Sphinx reads is not published beside what it writes
html_show_sourcelink = False
html_show_copyright = False
html_last_updated_fmt = None

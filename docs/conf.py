"""The site: make docs."""

import os
import sys
import warnings
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))

import mapl  # noqa: E402

os.environ["PYTHONWARNINGS"] = "ignore"
warnings.filterwarnings("ignore", message="What is published will be mostly noise")

project, author = "mapl", "the mapl developers"
version = release = mapl.__version__
copyright = author
extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
    "sphinx-mathjax-offline",
    "code_links",
]
exclude_patterns = ["_build", "generated/gallery/*.ipynb"]
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
autosummary_generate = True
autodoc_typehints = "none"
numpydoc_show_class_members = False
copybutton_prompt_text = r"^(\$|>>>) "
copybutton_prompt_is_regexp = True
html_theme = "pydata_sphinx_theme"
html_title = "mapl"
html_static_path = ["_static"]
html_css_files = ["mapl.css"]
html_show_sourcelink = False
_PLAIN = ("comparison", "faq", "index", "pitfalls", "start")
html_sidebars: dict[str, list[str]] = {page: [] for page in _PLAIN}
html_theme_options = {
    "show_prev_next": False,
    "navigation_with_keys": False,
    "header_links_before_dropdown": 6,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
}
sphinx_gallery_conf = {
    "examples_dirs": "../examples/gallery",
    "gallery_dirs": "generated/gallery",
    "filename_pattern": "plot_",
    "plot_gallery": "True",
    "abort_on_example_error": True,
    "download_all_examples": False,
    "remove_config_comments": True,
    "min_reported_time": 10_000,
    "show_memory": False,
    "within_subsection_order": "FileNameSortKey",
}

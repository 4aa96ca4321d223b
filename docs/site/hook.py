"""What MkDocs does besides: it adds pages that are read from the source, and leads links to copies of other files."""

from typing import Any

import pages
from mkdocs.structure import files


def on_files(found: files.Files, config: Any) -> files.Files:
    """Add the generated pages."""
    for path, text in pages.generated().items():
        found.append(files.File.generated(config, path, content=text))
    return found


def on_page_markdown(markdown: str, page: Any, **unused: Any) -> str:
    """Lead links to files outside of docs/ to their copies."""
    return pages.with_links_to_copies(markdown, page.file.src_uri)

"""Prints as JSON which versions of the peers this interpreter can import; null for what it cannot."""

import importlib
import importlib.metadata
import json


def version(name):
    """Return a package's version, or None where importing it fails."""
    try:
        importlib.import_module(name)
    except (ImportError, OSError):
        return None
    return importlib.metadata.version(name)


if __name__ == '__main__':
    print(json.dumps({name: version(name) for name in ('torch', 'torchgpipe')}))

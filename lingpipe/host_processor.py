"""The processor of this machine, and the packages that are installed."""

import contextlib
import importlib.metadata
import os
import platform
import re
from collections.abc import Sequence


def name() -> str:
    """Return the model name of the processor."""
    found = None
    with contextlib.suppress(OSError), open('/proc/cpuinfo', encoding='utf-8', errors='replace') as file:
        found = re.search(r'^model name\s*: (.*)', file.read(), re.MULTILINE)
    return found.group(1) if found else platform.processor() or platform.machine()


def num_cores() -> int:
    """Return how many processor cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count() or 1


def installed(packages: Sequence[str]) -> dict[str, str]:
    """Return {name: version} for the packages that are installed."""
    found = {}
    for package in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found

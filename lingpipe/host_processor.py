"""The processor of this machine."""

import os
import platform
import re


def cpu_information() -> str:
    """Return what Linux says about the processor; '' on other systems."""
    try:
        with open('/proc/cpuinfo', encoding='utf-8', errors='replace') as file:
            return file.read()
    except OSError:
        return ''


def name() -> str:
    """Return the name of the processor."""
    found = re.search(r'^model name\s*: (.*)', cpu_information(), re.MULTILINE)
    return found.group(1) if found else platform.processor() or platform.machine()


def num_cores() -> int:
    """Return how many processor cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count() or 1

"""What reads a kind of file, and the attacks that fit a file of any kind."""

import dataclasses
import os
from collections.abc import Callable
from typing import Any

DEEP, LONG = 100_000, 3_000_000


@dataclasses.dataclass(frozen=True)
class Reader:
    """What reads a kind of file.

    Attributes:
        write: function of a folder, an empty one, which puts good files into it.
        read: function of the folder, which reads them as a user would.
        attacks: function of the folder with good files, and of a path that must not come to be: {name: function that
            changes the folder}.
        errors: classes of its documented errors.
    """

    write: Callable[[str], Any]
    read: Callable[[str], Any]
    attacks: Callable[[str, str], dict[str, Callable[[], Any]]] = lambda folder, target: {}
    errors: tuple[type[Exception], ...] = (ValueError,)


def put(folder, name, content):
    """Writes bytes or a text into a file of a folder; returns its path."""
    path = os.path.join(folder, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, 'wb') as file:
        file.write(content if isinstance(content, bytes) else content.encode())
    return path


def get(folder, name):
    """Returns the bytes of a file of a folder."""
    with open(os.path.join(folder, name), 'rb') as file:
        return file.read()


def get_text(folder, name):
    """Returns the text of a file of a folder, whatever its bytes."""
    return get(folder, name).decode('utf-8', errors='replace')


def special_files(name):
    """Attacks that any file of a folder may turn out to be."""
    def attacks(folder, target):
        path = os.path.join(folder, name)

        def replaced(make):
            def change():
                os.remove(path)
                make()
            return change

        return {
            'a pipe': replaced(lambda: os.mkfifo(path)), 'a device without an end': replaced(
                lambda: os.symlink('/dev/zero', path)),
            'a folder': replaced(lambda: os.mkdir(path)), 'empty': lambda: put(folder, name, b''),
            'a GiB of nothing': lambda: os.truncate(path, 2**30), 'zeros': lambda: put(folder, name, bytes(LONG)),
            'nested lists': lambda: put(folder, name, '[' * DEEP),
            'nested dicts': lambda: put(folder, name, '{"a":' * DEEP),
            'a long line': lambda: put(folder, name, 'a' * LONG),
            'a long number': lambda: put(folder, name, '9' * LONG),
            'many lines': lambda: put(folder, name, 'a,b\n' * (LONG // 6)),
            'not UTF-8': lambda: put(folder, name, bytes(range(128, 256)))}
    return attacks


def texts(name, *contents):
    """Attacks of some texts, in which {target} is the path that must not come to be."""
    def attacks(folder, target):
        return {f'text {number}': lambda content=content: put(folder, name, content.replace('{target}', str(target)))
                for number, content in enumerate(contents)} | special_files(name)(folder, target)
    return attacks


def labelled(label, attacks):
    """Returns attacks under names that say which file they are of."""
    return {f'{label}: {name}': change for name, change in attacks.items()}

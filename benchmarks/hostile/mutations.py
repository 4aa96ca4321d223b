"""Changes to files that nobody wrote by mistake: bytes, numbers, names and structures, drawn by a seed."""

import base64
import json
import marshal
import re
import zipfile

_MOST_CHANGES = 3
_LONG, _DEEP = 2_000_000, 100_000
_NUMBER = re.compile(rb'-?[0-9]+')
_STRUCTURES = (b'[', b'{', b'(', b'"', b"'", b'{"a":', b'[[', b'*', b',', b'\n', b'(t|', b'type/', b'../')


def attacks_on_keras(target):
    """Returns configurations of Keras that would make the file `target` if they ran."""
    code = base64.b64encode(marshal.dumps(compile(f'open({str(target)!r}, "w")', 'x', 'exec'))).decode()
    a_lambda = {'class_name': '__lambda__', 'config': {'value': code, 'code': code, 'defaults': None, 'closure': None}}
    return [
        a_lambda,
        {'module': 'keras.layers', 'class_name': 'Lambda', 'config': {'function': a_lambda}, 'registered_name': None},
        {'module': 'stranger', 'class_name': 'Touch', 'config': {}, 'registered_name': None},
        {'module': 'stranger', 'class_name': 'function', 'config': 'touch', 'registered_name': 'function'},
        {'module': 'os', 'class_name': 'system', 'config': {'command': f'touch {target}'}, 'registered_name': None},
        {'module': 'builtins', 'class_name': 'function', 'config': 'eval', 'registered_name': 'function'},
        {'module': 'keras.utils', 'class_name': 'get_file', 'config': {'origin': f'file://{target}'}},
        {'module': 'keras.layers', 'class_name': 'TFSMLayer', 'config': {'filepath': str(target)}}]


def rewrite_archive(path, change, compression=zipfile.ZIP_STORED):
    """Writes a ZIP archive, such as a .keras file, again.

    Args:
        path: path of the archive.
        change: function that changes the dictionary {name: bytes} of its files.
        compression: how `zipfile` compresses them.
    """
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    change(files)
    with zipfile.ZipFile(path, 'w', compression) as archive:
        for name, content in files.items():
            archive.writestr(name, content)


def values(target):
    """Returns values for a place in a file of JSON.

    Args:
        target: path of a file that must not come to be.
    """
    return [
        None, True, False, -1, 0, 10**12, 10**400, -10**12, 0.5, 1e308, float('nan'), float('inf'), '', '\0', '\ud800',
        '../../outside/precious', '/etc/passwd', str(target), 'a' * _LONG, 'os.system', 'stranger.touch', 'stranger.Touch',
        f"__import__('pathlib').Path({str(target)!r}).touch()", '!!python/object/apply:os.system ["true"]', [], {}, [[]],
        [10**12], [10**6, 10**6, 10**6], {'__class__': 'os.system'}, [0] * 10_000, {str(n): n for n in range(10_000)},
        *attacks_on_keras(target)]


def mutated(content, generator, target):
    """Returns a hostile version of a file.

    Args:
        content: bytes.
        generator: `random.Random`.
        target: path of a file that must not come to be.
    """
    for _ in range(generator.randint(1, _MOST_CHANGES)):
        changes = [_with_bytes, _without_a_part, _with_a_part_again, _with_a_number, _with_a_value, _with_a_structure]
        if _is_json(content):
            changes += [_with_another_node] * len(changes)
        content = generator.choice(changes)(content, generator, target)
    return content


def _is_json(content):
    try:
        json.loads(content)
    except (ValueError, RecursionError):
        return False
    return True


def _span(content, generator):
    start = generator.randint(0, len(content))
    return start, min(len(content), start + generator.choice([1, 4, 16, 256]))


def _with_bytes(content, generator, target):
    start, end = _span(content, generator)
    return content[:start] + generator.randbytes(end - start) + content[end:]


def _without_a_part(content, generator, target):
    start, end = _span(content, generator)
    return content[:start] + content[end:] if generator.random() < .7 else content[:start]


def _with_a_part_again(content, generator, target):
    start, end = _span(content, generator)
    return content[:end] + content[start:end] * generator.choice([1, 1, 2, 1000]) + content[end:]


def _with_a_number(content, generator, target):
    found = list(_NUMBER.finditer(content))
    if not found:
        return content
    chosen = generator.choice(found)
    number = generator.choice([b'-1', b'0', b'1000000000000', b'9' * 400, b'9' * 5000, b'0x' + b'f' * 5000, b'1e308', b'nan'])
    return content[:chosen.start()] + number + content[chosen.end():]


def _with_a_value(content, generator, target):
    start, end = _span(content, generator)
    text = json.dumps(generator.choice(values(target)))
    return content[:start] + text.encode() + content[end:]


def _with_a_structure(content, generator, target):
    start, _ = _span(content, generator)
    return content[:start] + generator.choice(_STRUCTURES) * generator.choice([1, 2, 50, _DEEP]) + content[start:]


def _with_another_node(content, generator, target):
    """Replaces, renames or removes a node of JSON."""
    tree = json.loads(content)
    places = list(_places(tree))
    if not places:
        return json.dumps(generator.choice(values(target))).encode()
    container, key = generator.choice(places)
    change = generator.random()
    if change < .8:
        container[key] = generator.choice(values(target))
    elif change < .9:
        del container[key]
    elif isinstance(container, dict):
        container[str(generator.choice(values(target)))[:_LONG]] = container[key]
    return json.dumps(tree).encode()


def _places(tree):
    keys = list(tree) if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else []
    for key in keys:
        yield tree, key
        yield from _places(tree[key])

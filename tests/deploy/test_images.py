"""The images of deploy/docker/: what their Dockerfiles copy suffices to install and to run."""

import fnmatch
import functools
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

_ROOT = pathlib.Path(__file__).parents[2]
_DOCKERFILES = sorted((_ROOT / 'deploy/docker').glob('*.Dockerfile'))
_LIST_MODELS = """
import runpy, sys, lingpipe
print(lingpipe.__file__)
sys.argv[:] = ['run.py', '--mode=list']
runpy.run_path('run.py', run_name='__main__')"""
each_dockerfile = pytest.mark.parametrize('dockerfile', _DOCKERFILES, ids=lambda path: path.name)


def instructions_of(dockerfile):
    """Return the pairs (word, arguments) of a Dockerfile."""
    text = re.sub(r'^#.*\n', '', dockerfile.read_text('utf-8'), flags=re.MULTILINE).replace('\\\n', '')
    return [tuple(line.split(maxsplit=1)) for line in text.splitlines() if line]


def copies_of(dockerfile):
    """Return the pairs (source, target) of what a Dockerfile copies; a folder as target ends with '/'."""
    copies = [arguments.split() for word, arguments in instructions_of(dockerfile) if word == 'COPY']
    return [(source, target) for *sources, target in copies for source in sources]


def is_sent(source):
    """Whether .dockerignore lets a file or folder of the root through: the last line that matches decides."""
    lines = [line for line in (_ROOT / '.dockerignore').read_text('utf-8').splitlines() if not line.startswith('#')]
    matching = [line for line in lines if fnmatch.fnmatch(source.split('/')[0], line.removeprefix('!'))]
    return matching[-1].startswith('!')


def copy(dockerfile, folder):
    """Copy to a folder what a Dockerfile copies, and nothing else."""
    for source, target in copies_of(dockerfile):
        place = folder / target
        if (_ROOT / source).is_dir():
            shutil.copytree(_ROOT / source, place, ignore=shutil.ignore_patterns('__pycache__'))
        else:
            place.mkdir(exist_ok=True)
            shutil.copy(_ROOT / source, place)


@each_dockerfile
def test_what_is_copied_is_there_and_is_sent_to_docker(dockerfile):
    assert len(copies_of(dockerfile)) > 5
    assert not [source for source, _ in copies_of(dockerfile) if not (_ROOT / source).exists() or not is_sent(source)]
    assert not any(map(is_sent, ('tests', 'docs', '.git', '.venv-test', 'logs', 'lingpipe.egg-info')))


@each_dockerfile
def test_an_image_runs_run_py_as_an_ordinary_user_without_leftovers(dockerfile):
    instructions = instructions_of(dockerfile)
    assert instructions[0] == ('FROM', 'python:3.11-slim')
    assert instructions[-2:] == [('USER', '1000'), ('ENTRYPOINT', '["python", "run.py"]')]
    installations = [arguments for word, arguments in instructions if word == 'RUN' and 'pip install' in arguments]
    assert len(installations) == 2 and all('--no-cache-dir' in arguments for arguments in installations)
    assert installations[1].endswith('--no-deps .')


def test_all_images_have_the_same_code():
    code = {tuple(copy for copy in copies_of(path) if not copy[0].startswith('requirements/')) for path in _DOCKERFILES}
    assert len(_DOCKERFILES) == 3 and len(code) == 1


def test_the_copied_files_are_a_package_and_list_all_models(tmp_path):
    copy(_DOCKERFILES[0], tmp_path)
    run = functools.partial(subprocess.run, cwd=tmp_path, env=os.environ | {'PYTHONPATH': ''}, capture_output=True,
                            text=True, check=True)
    assert run([sys.executable, 'setup.py', '--name']).stdout.split()[-1] == 'lingpipe'
    listing = run([sys.executable, '-c', _LIST_MODELS])
    file, *models = listing.stdout.splitlines()
    assert file == str(tmp_path / 'lingpipe/__init__.py')
    assert [line for line in models if line.startswith('params.amoebanet.AmoebaNetDDigits: ')]
    assert 'cannot be imported' not in listing.stderr


def test_the_image_for_cpus_has_the_pins_of_gpus_without_cuda(tmp_path):
    (tmp_path / 'requirements').mkdir()
    shutil.copy(_ROOT / 'requirements/gpu.txt', tmp_path / 'requirements')
    instructions = instructions_of(_ROOT / 'deploy/docker/cpu.Dockerfile')
    make, = (arguments.split('&&')[0] for word, arguments in instructions if word == 'RUN' and '&&' in arguments)
    subprocess.run(make, shell=True, cwd=tmp_path, check=True)
    pins = (tmp_path / 'requirements/cpu.txt').read_text('utf-8')
    assert 'tensorflow==' in pins and 'nvidia' not in pins

"""The command `lingpipe doctor`, which reports what this machine has and what is wrong.

A child process imports TensorFlow, because importing a wrong build may hang or abort.
"""

import glob
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from lingpipe import host_processor, wording

# The releases that the test suite passes on; `.ci/test_versions` runs it on the first and on the last.
TENSORFLOW_VERSIONS = ((2, 18), (2, 21))
KERAS_VERSIONS = ((3, 15), (3, 15))
_PACKAGES = ('lingpipe', 'tensorflow', 'tensorflow-cpu', 'tensorflow-tpu', 'keras', 'libtpu')
_BUILDS = ('tensorflow', 'tensorflow-cpu', 'tensorflow-tpu')
_NVIDIA_DRIVER = '/proc/driver/nvidia/version'
_SECONDS = 120  # to import TensorFlow and to find its devices
_ANSWER = 'lingpipe.doctor: '


class Machine(NamedTuple):
    """The findings about a machine."""

    packages: dict[str, str]  # versions of installed packages, by name
    has_nvidia_driver: bool
    tpu_files: Sequence[str]  # names of the device files of TPUs
    # what TensorFlow reported: 'version', 'keras', 'gpus', 'tpus' and 'problems'; only 'problems' if it failed
    tensorflow: dict[str, Any]


def main(arguments: Sequence[str]) -> int:
    """Print the report. Return 0 if nothing is wrong, else 1."""
    if arguments == ['--answer']:  # in the child process
        print(_ANSWER + json.dumps(_asked()))
        return 0
    if arguments:
        raise ValueError(f'`lingpipe doctor` has no options, but {" ".join(arguments)} was given. Leave it out.')
    machine = examine()
    print(report(machine))
    return 1 if problems(machine) else 0


def examine() -> Machine:
    """Return the findings about this machine."""
    return Machine(host_processor.installed(_PACKAGES), os.path.exists(_NVIDIA_DRIVER), _tpu_files(), _ask_tensorflow())


def report(machine: Machine) -> str:
    """Return the text of the report."""
    said = machine.tensorflow
    memory = os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')
    found = wording.table(['what', 'found'], [
        ['system', f'{sys.platform} {platform.machine()}, Python {platform.python_version()}'],
        ['processor', f'{host_processor.name()}, {host_processor.num_cores()} cores'],
        ['memory', f'{memory / 2**30:.1f} GiB'],
        ['packages', ', '.join(f'{name} {version}' for name, version in machine.packages.items())],
        ['GPUs', '; '.join(said.get('gpus', [])) or 'none'],
        ['TPU devices', ', '.join(said.get('tpus', [])) or 'none']])
    wrong = '\n'.join(f'* {problem}' for problem in problems(machine))
    return f'{found}\n\nLingPipe would use: {_would_use(said)}\n\n{wrong or "Nothing is wrong."}'


def _would_use(said: dict[str, Any]) -> str:
    if 'version' not in said:
        return 'nothing, before TensorFlow can be imported.'
    if said['tpus']:
        return f'{len(said["tpus"])} TPU devices, in mixed_bfloat16 where the model names no precision.'
    if said['gpus']:
        return f'{len(said["gpus"])} GPUs, one partition on each.'
    return 'virtual CPU devices, one for each partition.'


def problems(machine: Machine) -> list[str]:
    """Return a text for each problem, with its remedy."""
    return [*machine.tensorflow['problems'], *_problems_of_packages(machine), *_problems_of_accelerators(machine)]


def _problems_of_packages(machine: Machine) -> Iterator[str]:
    said = machine.tensorflow
    builds = [name for name in _BUILDS if name in machine.packages]
    if len(builds) != 1:
        yield (f'Installed builds of TensorFlow: {", ".join(builds) or "none"}. Make a fresh virtual environment with '
               'one of them: `pip install -e .` for CPUs, or see requirements/gpu.txt and requirements/tpu.txt.')
    for name, version, (first, last) in (('TensorFlow', said.get('version'), TENSORFLOW_VERSIONS),
                                         ('Keras', said.get('keras'), KERAS_VERSIONS)):
        if version and not first <= tuple(map(int, version.split('.')[:2])) <= last:
            yield (f'{name} {version} was not tested; {".".join(map(str, first))} to {".".join(map(str, last))} were. '
                   'Install what was, or run the tests first.')


def _problems_of_accelerators(machine: Machine) -> Iterator[str]:
    is_for_tpus = 'tensorflow-tpu' in machine.packages
    if machine.has_nvidia_driver and machine.tensorflow.get('gpus') == []:
        yield ('The machine has NVIDIA\'s driver, but TensorFlow finds no GPU. Run `nvidia-smi`, and `pip install -r '
               'requirements/gpu.txt` in a fresh virtual environment; CUDA_VISIBLE_DEVICES must not be empty.')
    if machine.tpu_files and not is_for_tpus:
        yield (f'The machine has TPUs ({machine.tpu_files[0]}), but this TensorFlow is not the build for them. Run '
               '`pip install -r requirements/tpu.txt` in a fresh virtual environment.')
    if is_for_tpus and not machine.tpu_files:
        yield ('TensorFlow is the build for TPUs, but there are no device files of TPUs (/dev/accel0, /dev/vfio/0): '
               'this is not a TPU VM, or a container that was not given them. Start the container with --privileged, '
               'or train with --device=cpu.')


def _tpu_files() -> list[str]:
    return sorted(glob.glob('/dev/accel[0-9]*') + glob.glob('/dev/vfio/[0-9]*'))


def _ask_tensorflow() -> dict[str, Any]:
    """Import TensorFlow in a child process, and return what the child reports."""
    backend = os.environ.get('KERAS_BACKEND', 'tensorflow')
    if backend != 'tensorflow':
        return {'problems': [f'KERAS_BACKEND={backend} is set, but LingPipe needs tensorflow. Unset it.']}
    command = [sys.executable, '-m', 'lingpipe.doctor', '--answer']
    try:
        child = subprocess.run(command, text=True, capture_output=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return {'problems': [
            f'Importing TensorFlow and finding its devices took longer than {_SECONDS} s. On a machine with no '
            "metadata server, such as a TPU VM's, libtpu waits for it: set TPU_SKIP_MDS_QUERY=1."]}
    if answer := re.search(f'^{_ANSWER}(.*)', child.stdout, re.MULTILINE):
        return json.loads(answer.group(1))
    last_line = (child.stderr.strip().splitlines() or ['it said nothing'])[-1]
    return {'problems': [f'Importing TensorFlow failed (exit code {child.returncode}): {last_line}. Install it anew, '
                         'from a file in requirements/, in a fresh virtual environment.']}


def _asked() -> dict[str, Any]:
    """Return what TensorFlow reports about itself and its devices."""
    import keras
    import tensorflow as tf

    from lingpipe.placements import tpu_system
    details = [tf.config.experimental.get_device_details(device) for device in tf.config.list_physical_devices('GPU')]
    tpus, wrong = [], []
    try:
        refuse_keras_settings()
        tpus = tpu_system.start_tpu_system().devices if _tpu_files() else []
    except (ValueError, RuntimeError) as error:
        wrong.append(str(error))
    return {'version': tf.__version__, 'keras': keras.__version__, 'tpus': tpus, 'problems': wrong,
            'gpus': [each.get('device_name', 'GPU') for each in details]}


def refuse_keras_settings() -> None:
    """Raise ValueError if the user's settings of Keras change what params and checkpoints mean."""
    import keras
    for name, usual in (('floatx', 'float32'), ('image_data_format', 'channels_last'), ('epsilon', 1e-7)):
        value = getattr(keras.config, name)()
        if value != usual:
            raise ValueError(f'{name}={value!r} in the settings of Keras (keras.json in ~/.keras or KERAS_HOME) is not '
                             f'possible: params and checkpoints mean {usual!r}. Set it to that; types of numbers are '
                             'chosen by task.dtype_policy.')


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))

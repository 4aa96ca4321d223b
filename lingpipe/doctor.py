"""What this machine has, what LingPipe would use of it, and what is wrong: `lingpipe doctor`.

TensorFlow is queried in its own process, since importing a build that does not suit the machine can hang or abort::

    this machine's files ─────────────────────┐
    installed packages ───────────────────────┼─> Machine ─> table, sentences about what is wrong
    child: imports TensorFlow, lists devices ─┘

The exit code is 0 if nothing is wrong, else 1.
"""

import argparse
import glob
import json
import os
import pathlib
import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from lingpipe import host_processor, text_tables

# The releases that the test suite passes on; `.ci/test_versions` runs it on the first and on the last.
TENSORFLOW_VERSIONS = ((2, 18), (2, 21))
KERAS_VERSIONS = ((3, 15), (3, 15))
# tensorflow-tpu 2.20.0 was imported with all releases in this range; newer ones make it abort.
LIBTPU_FOR_TENSORFLOW = ((0, 0, 17), (0, 0, 30))
# The oldest driver for each major version of CUDA that TensorFlow was built for: NVIDIA, "CUDA Compatibility", page
# "Minor Version Compatibility", table 1, and the release notes of CUDA Toolkit 12, table "Minimum Required Driver
# Version for CUDA Minor Version Compatibility", column Linux.
NVIDIA_DRIVERS = {12: (525, 60, 13), 13: (580,)}
_PACKAGES = ('lingpipe', 'tensorflow', 'tensorflow-cpu', 'tensorflow-tpu', 'keras', 'numpy', 'jaxlib', 'libtpu')
_BUILDS = ('tensorflow', 'tensorflow-cpu', 'tensorflow-tpu')
_NVIDIA_DRIVER = '/proc/driver/nvidia/version'
_TPU_FILES = ('/dev/accel[0-9]*', '/dev/vfio/[0-9]*')
_ANSWER = 'lingpipe.doctor: '
_GIB = 2**30


class Machine(NamedTuple):
    """The findings about a machine."""

    system: str  # operating system and kind of processor, such as 'linux x86_64'
    processor: str  # its name
    num_cores: int  # cores that this process may use
    memory: int  # bytes of the machine's memory
    packages: dict[str, str]  # dictionary from the name of each installed package to its version
    nvidia_driver: str | None  # version of NVIDIA's driver, None without one
    tpu_files: Sequence[str]  # names of the device files of TPUs
    # what TensorFlow reported: 'version', 'keras', 'cuda', 'gpus' and 'tpus'; only 'error' if it could not be queried
    tensorflow: dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report; return the exit code."""
    parser = argparse.ArgumentParser(prog='lingpipe doctor', description=(__doc__ or '').partition('\n')[0])
    parser.add_argument('--timeout_seconds', type=float, default=120,
                        help='how long TensorFlow may take to import and to find its devices')
    parser.add_argument('--answer', action='store_true', help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.answer:
        print(_ANSWER + json.dumps(_asked()))
        return 0
    machine = examine(options.timeout_seconds)
    print(report(machine))
    return 1 if problems(machine) else 0


def examine(timeout_seconds: float = 120) -> Machine:
    """Look at this machine; TensorFlow may take `timeout_seconds` to import and to find its devices."""
    driver = re.search(r'Kernel Module.*?\s(\d+\.[\d.]+)', _read(_NVIDIA_DRIVER))
    return Machine(
        system=f'{sys.platform} {platform.machine()}',
        processor=host_processor.name(),
        num_cores=host_processor.num_cores(),
        memory=os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES'),
        packages=host_processor.installed(_PACKAGES),
        nvidia_driver=driver.group(1) if driver else None,
        tpu_files=sorted(file for pattern in _TPU_FILES for file in glob.glob(pattern)),
        tensorflow=_ask_tensorflow(timeout_seconds))


def report(machine: Machine) -> str:
    """Return the table of what was found, what LingPipe would use, and a sentence for each problem."""
    found = text_tables.table(['what', 'found'], _rows(machine))
    wrong = problems(machine)
    verdict = '\n'.join(f'* {problem}' for problem in wrong) if wrong else 'Nothing is wrong.'
    return f'{found}\n\nLingPipe would use: {would_use(machine)}\n\n{verdict}'


def would_use(machine: Machine) -> str:
    """Describe which devices `run.py --device=auto` takes."""
    said = machine.tensorflow
    if 'error' in said:
        return 'nothing, before TensorFlow can be imported.'
    if said['tpus']:
        return f'{len(said["tpus"])} TPU devices, in mixed_bfloat16 where the model names no precision.'
    if said['gpus']:
        return f'{len(said["gpus"])} GPUs, one partition on each.'
    return (f'virtual CPU devices, one for each partition, on {machine.num_cores} '
            f'core{"s" if machine.num_cores > 1 else ""}.')


def problems(machine: Machine) -> list[str]:
    """Return a sentence for each thing that is wrong, with what to do; an empty list if nothing is."""
    return [*_installation_problems(machine), *_tensorflow_problems(machine), *_accelerator_problems(machine)]


def _installation_problems(machine):
    builds = [name for name in _BUILDS if name in machine.packages]
    if not builds:
        yield ('No TensorFlow is installed. Run `pip install -e .` for CPUs, or see requirements/gpu.txt and '
               'requirements/tpu.txt.')
    if len(builds) > 1:
        yield (f'{" and ".join(builds)} are installed side by side and overwrite each other\'s files. Make a fresh '
               'virtual environment with one of them.')
    libtpu = machine.packages.get('libtpu')
    lowest, highest = LIBTPU_FOR_TENSORFLOW
    if 'tensorflow-tpu' in machine.packages and (libtpu is None or not lowest <= _numbers(libtpu)[:3] <= highest):
        found = f'libtpu {libtpu}' if libtpu else 'no libtpu'
        yield (f'tensorflow-tpu is installed with {found}; it works with libtpu '
               f'{_dotted(lowest)} to {_dotted(highest)}. Run `pip install -r requirements/tpu.txt`.')


def _tensorflow_problems(machine):
    said = machine.tensorflow
    if 'error' in said:
        yield said['error']
        return
    for name, version, (lowest, highest) in [('TensorFlow', said['version'], TENSORFLOW_VERSIONS),
                                             ('Keras', said['keras'], KERAS_VERSIONS)]:
        if not lowest <= _numbers(version)[:2] <= highest:
            tested = f'{_dotted(lowest)} was' if lowest == highest else f'{_dotted(lowest)} to {_dotted(highest)} were'
            yield f'{name} {version} was not tested; {tested}. Install what was, or run the tests first.'
    if said.get('settings'):
        yield said['settings']


def _accelerator_problems(machine):
    said = machine.tensorflow
    oldest = _oldest_driver(said.get('cuda'))
    if machine.nvidia_driver and _numbers(machine.nvidia_driver) < oldest:
        yield (f'NVIDIA\'s driver {machine.nvidia_driver} is older than CUDA {said["cuda"]} needs, which TensorFlow '
               f'was built for: {_dotted(oldest)} or newer. Install a newer driver and restart the machine.')
    elif machine.nvidia_driver and not said.get('gpus') and 'error' not in said:
        reason = ('finds none of them' if said['cuda'] else 'is a build without CUDA')
        yield (f'The machine has NVIDIA\'s driver {machine.nvidia_driver}, but TensorFlow {reason}. Run `nvidia-smi`, '
               'and `pip install -r requirements/gpu.txt` in a fresh virtual environment; CUDA_VISIBLE_DEVICES must '
               'not be empty.')
    if machine.tpu_files and 'tensorflow-tpu' not in machine.packages:
        yield (f'The machine has TPUs ({machine.tpu_files[0]}), but this TensorFlow is not the build for them. Run '
               '`pip install -r requirements/tpu.txt` in a fresh virtual environment.')
    elif 'tensorflow-tpu' in machine.packages and not machine.tpu_files:
        yield ('TensorFlow is the build for TPUs, but there are no device files of TPUs (/dev/accel0, /dev/vfio/0): '
               'this is not a TPU VM, or a container that was not given them. Start the container with --privileged, '
               'or train with --device=cpu.')
    elif machine.tpu_files and said.get('tpu_error'):
        yield said['tpu_error']


def _oldest_driver(cuda):
    """Return the numbers of the oldest driver for a version of CUDA; () if there is no CUDA, or it is unknown."""
    numbers = _numbers(cuda or '')
    return NVIDIA_DRIVERS.get(numbers[0], ()) if numbers else ()


def _rows(machine):
    said, packages = machine.tensorflow, machine.packages
    builds = [f'{name} {packages[name]}' for name in _BUILDS if name in packages]
    return [
        ['system', machine.system],
        ['Python', platform.python_version()],
        ['LingPipe', packages.get('lingpipe', 'not installed; it runs from its folder')],
        ['processor', machine.processor],
        ['cores', str(machine.num_cores)],
        ['memory', f'{machine.memory / _GIB:.1f} GiB'],
        ['TensorFlow', ', '.join(builds) or 'none'],
        ['Keras', packages.get('keras', 'none')],
        ['NVIDIA driver', machine.nvidia_driver or 'none'],
        ['CUDA that TensorFlow was built for', said.get('cuda') or 'none'],
        ['GPUs', '; '.join(said.get('gpus', [])) or 'none'],
        ['files of TPUs', ', '.join(machine.tpu_files) or 'none'],
        ['libtpu', packages.get('libtpu', 'none')],
        ['TPU devices', ', '.join(said.get('tpus', [])) or 'none'],
        ['jaxlib', packages.get('jaxlib', 'none')],
    ]


def _ask_tensorflow(timeout_seconds):
    """Import TensorFlow in a child; return what it said."""
    backend = os.environ.get('KERAS_BACKEND', 'tensorflow')
    if backend != 'tensorflow':  # without its package not even Keras could be imported
        return {'error': f'KERAS_BACKEND={backend} is set, but LingPipe needs the backend tensorflow. Unset it.'}
    try:
        child = subprocess.run([sys.executable, '-m', 'lingpipe.doctor', '--answer'], text=True, capture_output=True,
                               timeout=timeout_seconds, check=False)
    except subprocess.TimeoutExpired:
        return {'error': f'Importing TensorFlow and finding its devices took longer than {timeout_seconds:g} s. On a '
                         'machine with no metadata server, such as a TPU VM\'s, libtpu waits for it: set '
                         'TPU_SKIP_MDS_QUERY=1. Else give more time with --timeout_seconds.'}
    answer = re.search(f'^{_ANSWER}(.*)', child.stdout, re.MULTILINE)
    if answer:
        return json.loads(answer.group(1))
    last_line = (child.stderr.strip().splitlines() or ['it said nothing'])[-1]
    ended = f'was ended by signal {-child.returncode}' if child.returncode < 0 else 'failed'
    return {'error': f'Importing TensorFlow {ended}: {last_line}. Install it anew in a fresh virtual environment.'}


def _asked():
    """Return what TensorFlow reports about itself and its devices; call this in the child process."""
    import keras
    import tensorflow as tf

    build = tf.sysconfig.get_build_info()
    said = {'version': tf.__version__, 'keras': keras.__version__, 'cuda': build.get('cuda_version'), 'tpus': [],
            'gpus': []}
    try:
        refuse_keras_settings()
    except ValueError as error:
        said['settings'] = str(error)
    for device in tf.config.list_physical_devices('GPU'):
        details = tf.config.experimental.get_device_details(device)
        capability = '.'.join(map(str, details.get('compute_capability', ())))
        said['gpus'].append(f'{details.get("device_name", device.name)} (compute capability {capability})')
    if any(glob.glob(pattern) for pattern in _TPU_FILES):
        said.update(_started_tpus())
    return said


def refuse_keras_settings() -> None:
    """Raise ValueError if the user's settings of Keras change what params and checkpoints mean."""
    import keras
    for name, usual in (('floatx', 'float32'), ('image_data_format', 'channels_last'), ('epsilon', 1e-7)):
        value = getattr(keras.config, name)()
        if value != usual:
            raise ValueError(f'{name}={value!r} in the settings of Keras (keras.json in ~/.keras or KERAS_HOME) is not '
                             f'possible: params and checkpoints mean {usual!r}. Set it to that; types of numbers are '
                             'chosen by task.dtype_policy.')


def _started_tpus():
    from lingpipe.placements import tpu_system
    try:
        return {'tpus': tpu_system.start_tpu_system().devices}
    except RuntimeError as error:
        return {'tpu_error': str(error)}


def _read(path):
    try:
        return pathlib.Path(path).read_text(encoding='utf-8')
    except OSError:
        return ''


def _numbers(version):
    return tuple(int(number) for number in re.findall(r'\d+', version)[:3])


def _dotted(numbers):
    return '.'.join(map(str, numbers))


if __name__ == '__main__':
    sys.exit(main())

"""Moments of a save at which a training process can be killed, and the files left then.

::

    training   step ─ copy ─ step ─ step ─ ...
    writer              └─> values ─> index ─> an old checkpoint is deleted ─> list

`obey` wraps functions of LingPipe and TensorFlow, so that its process kills itself at the moment that another process
asks for. While TensorFlow's compiled code writes the values, the other process kills the training process.
"""

import functools
import json
import os
import pathlib
import re
import runpy
import signal
import sys
import time

import wrapt

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_SECONDS_TO_COME = 120
_ROUND_STEPS = 100
_LONGEST_LOOK = 0.03  # seconds; values are written for longer
_VALUES_FILE = re.compile(r'ckpt-\d+_temp/part-\d+-of-\d+\.data')
_INDEX_OF_PART = re.compile(r'part-\d+-of-(\d+)\.index')
_NEW_LIST = re.compile(r'checkpoint\.new')
_INDEX_FILE = re.compile(r'ckpt-\d+\.index')

COPY, BEGIN, VALUES, MERGE, UNLISTED, LIST, DELETION = MOMENTS = (
    'while the state is copied', 'before values are written', 'while values are written', 'between values and index',
    'between index and list', 'while the list is replaced', 'while an old one is deleted')
TOLD_BY_NO_FILE = (COPY, BEGIN)
ELSE = 'else: steps, copies'


def values(path):
    """Return {name: bytes} of a checkpoint; raise what TensorFlow does where a value is not whole."""
    import tensorflow as tf
    reader = tf.train.load_checkpoint(path)
    return {name: reader.get_tensor(name).tobytes() for name in reader.get_variable_to_shape_map()
            if name.endswith('VARIABLE_VALUE') and not name.startswith('save_counter')}


def require_whole(folder):
    """Read all that the list of checkpoints names; TensorFlow raises where a value does not fit its checksum."""
    listed = [name for name in listed_in(folder) if pathlib.Path(folder, f'{name}.index').exists()]
    for name in listed:
        values(os.path.join(folder, name))
    print(f'{len(listed)} listed checkpoints are whole.', flush=True)


def different(killed, undisturbed):
    """Return the names of the variables whose values differ in two checkpoints."""
    killed, undisturbed = values(killed), values(undisturbed)
    assert killed.keys() == undisturbed.keys()
    return [name for name in killed if killed[name] != undisturbed[name]]


def differences(folder, train):
    """Let a killed and an undisturbed run train to the next multiple of 100 steps; return it and the names of the variables
    whose values differ."""
    from lingpipe.training import checkpoints
    newest = checkpoints.step_of(checkpoints.complete(folder / 'killed/train')[0])
    steps = (newest // _ROUND_STEPS + 1) * _ROUND_STEPS
    for name in ('killed', 'undisturbed'):
        train(folder / name, max_steps=steps, save_interval_seconds=600.)
    return steps, different(*(str(folder / name / f'train/ckpt-{steps}') for name in ('killed', 'undisturbed')))


def verdict(different, unlisted):
    """Return sentences about what `different` and `unlisted` returned."""
    values_say = (f'WRONG at the end: {", ".join(different)}.' if different else
                  'At the end all values are those of an undisturbed run, bit for bit.')
    files_say = (f'LEFT BEHIND: {", ".join(unlisted)}.' if unlisted else
                 'No file is left of checkpoints that never counted.')
    return f'{values_say} {files_say}'


def obey(folder):
    """Let this process, which trains in a folder, kill itself at the moment that `ask` names."""
    import tensorflow as tf
    reach = functools.partial(_reach, _request(folder))
    for module, name, wrapper in (
            ('lingpipe.training.checkpointing', 'copied_to_hosts', _after_half_of_the_copy(reach)),
            ('tensorflow.python.checkpoint.checkpoint', 'Checkpoint.write', _before(reach, BEGIN)),
            ('tensorflow.python.ops.gen_io_ops', 'merge_v2_checkpoints', _around_the_merge(reach)),
            (tf.io.gfile, 'rename', _before(reach, LIST, _replaces_list)),
            (tf.io.gfile, 'remove', _before(reach, DELETION, _is_of_values))):
        wrapt.wrap_function_wrapper(module, name, wrapper)


def _request(folder):
    return pathlib.Path(folder, 'kill_at')


def _reach(request, moment):
    if request.exists() and request.read_text() == moment:
        request.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


def _before(reach, moment, concerns=lambda *unused: True):
    def wrapper(wrapped, unused_instance, args, kwargs):
        if concerns(*args):
            reach(moment)
        return wrapped(*args, **kwargs)

    return wrapper


def _replaces_list(unused_old, new, **unused):
    return os.path.basename(new) == 'checkpoint'


def _is_of_values(path):
    return '.data-' in os.path.basename(path)


def _after_half_of_the_copy(reach):
    import tensorflow as tf

    from lingpipe.training import checkpointing

    def wrapper(copied, unused_instance, args, kwargs):
        variables = tf.nest.flatten(args)
        for variable in variables[:len(variables) // 2]:
            checkpointing._copied_to_host(variable)
        reach(COPY)
        return copied(*args, **kwargs)

    return wrapper


def _around_the_merge(reach):
    """Of several machines TensorFlow runs one function, which has to call back."""
    import tensorflow as tf

    def call(moment):
        with tf.device(None), tf.device('CPU:0'):  # of this machine, even if another one merges
            return tf.numpy_function(lambda: reach(moment) or 0, [], tf.int64)

    def wrapper(merge, unused_instance, args, kwargs):
        with tf.control_dependencies([call(MERGE)]):
            merged = merge(*args, **kwargs)
        with tf.control_dependencies([merged]):
            call(UNLISTED)
        return merged

    return wrapper


def ask(folder, moment):
    """Have the process that obeys kill itself at the next such moment, any of MOMENTS but VALUES, and wait for it."""
    request = _request(folder)
    request.write_text(moment)
    wait_until(lambda: not request.exists(), moment)


def kill_while_it_writes(process, choose):
    """Kill a process while it writes values; it is stopped first, to look."""
    wait_until(lambda: _writes(process) and _kill_if_it_writes(process, choose.uniform(0, _LONGEST_LOOK)), VALUES)


def _kill_if_it_writes(process, seconds):
    time.sleep(seconds)
    os.kill(process, signal.SIGSTOP)
    wait_until(lambda: _is_stopped(process), 'the process is stopped')
    writes = _writes(process)
    os.kill(process, signal.SIGKILL if writes else signal.SIGCONT)
    return writes


def _writes(process):
    """Say whether a process has the unfinished values of a checkpoint open."""
    return any(_VALUES_FILE.search(_target(link)) for link in pathlib.Path(f'/proc/{process}/fd').iterdir())


def _target(link):
    try:
        return os.readlink(link)
    except OSError:  # closed since
        return ''


def _is_stopped(process):
    return pathlib.Path(f'/proc/{process}/stat').read_text().rpartition(')')[2].split()[0] == 'T'


def wait_until(has_come, moment):
    """Wait for a condition; raise RuntimeError, with words for it, if it does not hold for too long."""
    deadline = time.monotonic() + _SECONDS_TO_COME
    while not has_come():
        if time.monotonic() > deadline:
            raise RuntimeError(f'This did not come in {_SECONDS_TO_COME} s: {moment}.')
        time.sleep(.001)


def names_in(folder):
    """Return the names of all that a folder of checkpoints has; `left` compares with them."""
    return {path.name for path in pathlib.Path(folder).glob('*')}


def left(folder, before):
    """Return at which of MOMENTS a process was killed, or ELSE, by the files that it left; `before` is from `names_in`."""
    unfinished = list(pathlib.Path(folder).glob('ckpt-*_temp'))
    if unfinished:
        shares = list(filter(None, map(_INDEX_OF_PART.fullmatch, os.listdir(unfinished[0]))))
        return MERGE if shares and len(shares) == int(shares[0][1]) else VALUES
    new = names_in(folder) - before
    if any(map(_NEW_LIST.fullmatch, new)):
        return LIST
    listed = listed_in(folder)
    if any(not pathlib.Path(folder, f'{name}.index').exists() for name in listed):
        return DELETION
    is_unlisted = any(_INDEX_FILE.fullmatch(name) and pathlib.Path(name).stem not in listed for name in new)
    return UNLISTED if is_unlisted else ELSE


def require_moment(moment, folder, before):
    """Raise RuntimeError if the files of a killed process say that it was killed at another moment."""
    found = left(folder, before)
    if found != (ELSE if moment in TOLD_BY_NO_FILE else moment):
        raise RuntimeError(f'A process was killed {moment}, but left files as if it had been: {found}.')


def unlisted(folder):
    """Return the names of files that belong to no listed checkpoint, where a run has ended."""
    listed = listed_in(folder)
    return sorted(name for name in names_in(folder) if name.startswith(('ckpt-', 'checkpoint.'))
                  and name.partition('.')[0] not in listed)


def listed_in(folder):
    """Return the set of the names in the list of checkpoints, without a look at their files."""
    file = pathlib.Path(folder, 'checkpoint')
    return set(re.findall(r'"(ckpt-\d+)"', file.read_text())) if file.exists() else set()


def _run_obeying():
    """Run run.py as a process of a cluster."""
    wrapt.register_post_import_hook(_begin_to_obey, 'lingpipe.training.checkpointing')
    runpy.run_path(str(_ROOT / 'run.py'), run_name='__main__')


def _begin_to_obey(unused_module):
    folder, = [word.partition('=')[2] for word in sys.argv if word.startswith('--logdir=')]
    if json.loads(os.environ['TF_CONFIG'])['task']['type'] == 'chief':
        require_whole(f'{folder}/train')
        obey(folder)


if __name__ == '__main__':  # in a process of a training run
    _run_obeying()

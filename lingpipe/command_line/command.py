"""The command `lingpipe`, and `run.py`, which does the same in a clone.

    lingpipe train --model=params.amoebanet --logdir=logs/amoebanet
    python run.py --mode=train --model=params.amoebanet --logdir=logs/amoebanet
"""

import os
import signal
import sys
import time

_STARTED = time.time()
if not sys.stderr.isatty():
    os.environ.setdefault('TQDM_DISABLE', '1')  # the bar of TFDS would fill files with lines

from absl import app, flags, logging

from lingpipe import hyperparams, model_registry, spelling, text_files
from lingpipe.cluster import child_process, cluster_config, private_network, tpu_slice
from lingpipe.command_line import modes, new_model, run_flags, standard_streams, startup, topics, user_errors
from lingpipe.training import interruption

FLAGS = flags.FLAGS
_LONGEST_SILENCE_SECONDS = 60
_SECONDS_TO_BEGIN = 900  # waits for the port and for other workers take 300 s each, at most
_MOST_BYTES_OF_CHANGES = 4 * 2**20  # ten times all fields of a model of a thousand layers


def run() -> None:
    """Runs the command of `sys.argv`, and exits."""
    program, *words = sys.argv
    if topics.is_asked_for(words):
        print(topics.text(words))
    elif words[0] == 'new':
        sys.exit(_new(words[1:]))
    else:
        app.run(_main, [program, *_with_mode(words)], flags_parser=_parsed)


def _new(words):
    """Writes a params file; returns the exit code."""
    try:
        print(new_model.write(words))
    except (ValueError, OSError) as error:
        print(f'Error: {error}', file=sys.stderr)
        return 1
    return 0


def _with_mode(words):
    """Returns the words with the sub-command, if there is one, as --mode."""
    first, *others = words
    if first not in run_flags.MODES:
        return words
    second = next((word for word in others if word.split('=')[0].lstrip('-') == 'mode'), None)
    if second:
        sys.exit(_usage_error(f'{first} and {second} were both given. Give one of them.'))
    return [f'--mode={first}', *others]


def _parsed(arguments):
    """Returns the words that are not flags; exits if a flag is wrong."""
    try:
        return FLAGS(arguments)
    except flags.Error as error:
        sys.exit(_usage_error(error))


def _usage_error(error):
    print(f'Error: {error}\n(`{topics.program()} --help` shows all flags.)', file=sys.stderr)
    return 1


def _experiment():
    """Returns the params after all overrides, evaluation inputs included, and {name: Params} of these inputs."""
    experiment = model_registry.GetClass(FLAGS.model)()
    params = model_registry.GetParams(FLAGS.model, 'Train')
    evaluated = [name for name in experiment.GetDatasetNames() if name != 'Train']
    for name in evaluated:
        params.Define(name.lower(), experiment.GetDatasetParams(name), f'The input of {name}.')
    if FLAGS.model_params_file_override and FLAGS.model_params_override:
        raise ValueError('--model_params_override and --model_params_file_override were both given. Give one of them.')
    for overrides in (*FLAGS.model_params_override, *map(_read, FLAGS.model_params_file_override)):
        hyperparams.ApplyOverrides(params, overrides)
    if FLAGS.profile_steps is not None:
        params.train.profile_steps = FLAGS.profile_steps
    return params, {name: params.Get(name.lower()) for name in evaluated}


def _read(path):
    try:
        return text_files.read(path, _MOST_BYTES_OF_CHANGES)
    except ValueError as error:
        raise ValueError(f'--model_params_file_override={path} cannot be read ({error}). Give a file of changes, one '
                         'per line.') from error


def _place(params):
    """Sets up devices, and replaces 'auto' by values.

    Returns:
        The params, and the `Placement`.
    """
    from lingpipe.devices import device_kinds
    from lingpipe.placements import local
    kind = None if FLAGS.device == 'auto' else FLAGS.device.upper()
    is_free = kind is None and not params.task.body.devices
    if FLAGS.mode != 'inspect_model' and (kind == 'TPU' or is_free and device_kinds.has_tpu()):
        return _place_on_tpu(params)
    return local.place(params, kind)


def _place_on_tpu(params):
    from lingpipe.placements import tpu_system
    tpu_system.validate(params.task.body, FLAGS.mode)
    return tpu_system.start_and_place(params, FLAGS.mode, FLAGS.tpu or tpu_system.LOCAL)


def _list():
    listing = model_registry.ListModels()
    for name, experiment in sorted(listing.models.items()):
        print(f'{name}: {(experiment.__doc__ or "").strip().splitlines()[0] if experiment.__doc__ else ""}')
    for module, error in sorted(listing.errors.items()):
        print(f'{module} cannot be imported: {error}', file=sys.stderr)


def _run(params, datasets):
    import tensorflow as tf

    from lingpipe.training import errors
    placement = None
    try:
        if FLAGS.cluster != 'none' or FLAGS.tpu == tpu_slice.SLICE:
            from lingpipe.command_line import cluster_modes
            return cluster_modes.run(params, datasets, FLAGS, _STARTED)
        if modes.needs_placement(FLAGS.mode):
            params, placement = _place(params)
        modes.run(params, datasets, placement, FLAGS, _STARTED)
    except tf.errors.OpError as error:
        raise errors.TrainingError(errors.in_words(error, params.task.body)) from error


def _has_finished(params):
    """Returns whether the newest checkpoint is that of the last step, the same in every process that sees --logdir."""
    from lingpipe.training import checkpoints, logdir
    paths = checkpoints.complete(logdir.LogDir(FLAGS.logdir).train)
    return bool(paths) and checkpoints.step_of(paths[0]) >= params.train.max_steps


def _leave_tpu_to_server():
    try:
        tpu_slice.leave_tpu_to_server(tpu_slice.read(FLAGS.task))
    except ValueError as error:
        sys.exit(f'Error: {error}')


def _enter_private_network():
    """Moves this process to a private network, before it has threads, such as those of TensorFlow."""
    try:
        config = cluster_config.read(FLAGS.cluster_spec, task=FLAGS.task, mode=FLAGS.cluster)
        os.environ['TF_CONFIG'] = private_network.enter(config).to_json()
    except (ValueError, RuntimeError) as error:
        sys.exit(f'Error: {error}')
    FLAGS.cluster_spec = FLAGS.task = None  # now those of TF_CONFIG


def _supervise():
    """Runs this command as a child, and restarts it when needed; returns its exit code."""
    from lingpipe.cluster import supervisor
    command = [sys.executable, *sys.orig_argv[1:], '--max_restarts=0']
    checkpoints = os.path.join(os.path.expanduser(FLAGS.logdir), 'train')
    silence_seconds = min(FLAGS.step_timeout_seconds, _LONGEST_SILENCE_SECONDS)
    # A worker that is left out sends no heartbeats while it waits for a call.
    may_be_left_out = FLAGS.cluster == 'multi_worker' and FLAGS.replace_after_seconds
    begin_seconds = _SECONDS_TO_BEGIN if silence_seconds and not may_be_left_out else 0
    # A process enters a private network before it imports TensorFlow, and only one process can have its address there.
    keeps_standby = bool(FLAGS.replace_after_seconds) and FLAGS.cluster_network != run_flags.PRIVATE
    return supervisor.Supervisor(
        command, FLAGS.max_restarts, checkpoints, silence_seconds=silence_seconds, begin_seconds=begin_seconds,
        keeps_standby=keeps_standby).run()


def _wait_for_turn():
    """Imports the modules of training on standby, while another process still trains."""
    global _STARTED
    from lingpipe.command_line import cluster_modes  # noqa: F401
    from lingpipe.placements import elastic_hosts, worker_training  # noqa: F401
    child_process.wait_for_turn()
    _STARTED = time.time()


_ERRORS_IN_WORDS = (
    ValueError, LookupError, AttributeError, NotImplementedError, RuntimeError, OSError, SyntaxError)


def _main(arguments):
    try:
        return _checked_main(arguments)
    except app.UsageError as error:
        sys.exit(_usage_error(error))
    except KeyboardInterrupt:
        interruption.end_by(signal.SIGINT)


def _checked_main(arguments):
    if len(arguments) > 1:
        likely = spelling.close(arguments[1], [*run_flags.MODES, 'new'])
        raise app.UsageError(f'{arguments[1]!r} is not a flag: flags are given as --name=value.'
                             + (f' Did you mean the mode {" or ".join(likely)}?' if likely else ''))
    if FLAGS.mode == 'train':
        standard_streams.outlive_readers()
    if not FLAGS['verbosity'].present:
        logging.set_verbosity(logging.WARNING)
    if FLAGS.mode == 'list':
        startup.import_tensorflow(find_devices=False)
        return _list()
    run_flags.check(FLAGS)
    if FLAGS.max_restarts:
        sys.exit(_supervise())
    if FLAGS.tpu == tpu_slice.SLICE:
        _leave_tpu_to_server()
    if FLAGS.cluster_network == run_flags.PRIVATE:
        _enter_private_network()
    startup.import_tensorflow(find_devices=FLAGS.mode not in ('inspect_params', 'plan', 'report'))
    if child_process.is_standby():
        _wait_for_turn()
    from lingpipe.training import errors
    if FLAGS.cluster != 'multi_worker':  # in which TensorFlow blocks all threads while it connects the workers
        child_process.beat_for_parent()
    try:
        params, datasets = _experiment()
        _run(params, datasets)
        if FLAGS.fail_when_stopped and not _has_finished(params):
            sys.exit(errors.EXIT_TRY_AGAIN)
    except Exception as error:
        place = user_errors.place(error)
        if logging.level_debug() or not (place or isinstance(error, (*_ERRORS_IN_WORDS, errors.TrainingError))):
            raise
        where = f'{place}\n' if place else ''
        print(f'Error: {user_errors.in_words(error)}\n{where}(--verbosity=1 shows where.)', file=sys.stderr)
        sys.exit(errors.exit_code(error))

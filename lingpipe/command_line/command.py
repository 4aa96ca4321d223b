"""The command `lingpipe`. In a clone of the repository, `run.py` does the same.

    lingpipe train --model=params.amoebanet --logdir=logs/amoebanet
    python run.py --mode=train --model=params.amoebanet --logdir=logs/amoebanet
"""

import os
import pathlib
import signal
import sys
import sysconfig
import time
import traceback

_STARTED = time.monotonic()

from absl import app, flags, logging

from lingpipe import __version__, doctor, hyperparams, model_registry, wording
from lingpipe.cluster import launchers, local_cluster
from lingpipe.command_line import modes, run_flags, startup, topics
from lingpipe.training import interruption

FLAGS = flags.FLAGS
_LINGPIPE = pathlib.Path(__file__).parents[1]
_INSTALLED = tuple({sysconfig.get_path(name) for name in ('stdlib', 'platstdlib', 'purelib', 'platlib')})


def run() -> None:
    """Run the command line in `sys.argv`, and exit."""
    program, *words = sys.argv
    if not sys.stderr.isatty():
        os.environ.setdefault('TQDM_DISABLE', '1')  # the progress bar of TFDS would fill files with lines
    if words[:1] == ['local_cluster']:  # which has a --help of its own
        startup.outlive_readers()
        sys.exit(_use(local_cluster.main, words[1:]))
    elif words == ['--version']:
        print(f'lingpipe {__version__}')
    elif topics.is_asked_for(words):
        print(topics.text(words))
    elif words[0] in _TOOLS:
        sys.exit(_use(_TOOLS[words[0]], words[1:]))
    else:
        app.run(_main, [program, *_with_mode(words)], flags_parser=_parsed)


_TOOLS = {'doctor': doctor.main, 'new': modes.main}


def _use(tool, words):
    """Run a tool such as `doctor`, and return its exit code."""
    try:
        return tool(words)
    except (ValueError, OSError) as error:
        print(f'Error: {error}', file=sys.stderr)
        return 1


def _with_mode(words):
    """Replace a first word such as `train` by --mode=train."""
    first, *others = words
    if first not in topics.MODES:
        return words
    second = next((word for word in others if word.split('=')[0] in ('-mode', '--mode')), None)
    if second:
        sys.exit(_usage_error(f'{first} and {second} were both given. Give one of them.'))
    return [f'--mode={first}', *others]


def _parsed(arguments):
    """Parse the flags, and return the other words."""
    try:
        return FLAGS(arguments)
    except flags.Error as error:
        sys.exit(_usage_error(error))


def _usage_error(error):
    print(f'Error: {error}\n(`{topics.program()} --help` shows all flags.)', file=sys.stderr)
    return 1


def _experiment():
    """Return the experiment's params after overrides, and the inputs of evaluations."""
    experiment = model_registry.GetClass(FLAGS.model)()
    params = model_registry.GetParams(FLAGS.model, 'Train')
    evaluated = [name for name in experiment.GetDatasetNames() if name != 'Train']
    for name in evaluated:
        params.Define(name.lower(), experiment.GetDatasetParams(name), f'The input of {name}.')
    if FLAGS.model_params_file_override and FLAGS.model_params_override:
        raise ValueError('--model_params_override and --model_params_file_override were both given. Give one of them.')
    texts = [pathlib.Path(path).expanduser().read_text('utf-8-sig') for path in FLAGS.model_params_file_override]
    for overrides in (*FLAGS.model_params_override, *texts):
        hyperparams.ApplyOverrides(params, overrides)
    return params, {name: params.Get(name.lower()) for name in evaluated}


def _place(params):
    """Set up the devices, and return a pair: the params with values instead of 'auto', and the `Placement`."""
    from lingpipe.devices import device_kinds
    from lingpipe.placements import pipeline_hosts
    kind = None if FLAGS.device == 'auto' else FLAGS.device.upper()
    is_free = kind is None and not params.task.body.devices
    if FLAGS.mode != 'inspect_model' and (kind == 'TPU' or is_free and device_kinds.has('TPU')):
        from lingpipe.placements import tpu_system
        tpu_system.validate(params.task.body, FLAGS.mode)
        return tpu_system.start_and_place(params, FLAGS.mode, FLAGS.tpu or tpu_system.LOCAL)
    return pipeline_hosts.place_here(params, kind)


def _list():
    listing = model_registry.ListModels()
    for name, experiment in sorted(listing.models.items()):
        print(f'{name}: {(experiment.__doc__ or "").strip().splitlines()[0] if experiment.__doc__ else ""}')
    for module, error in sorted(listing.errors.items()):
        print(f'{module} cannot be imported: {error}', file=sys.stderr)


def _run(params, datasets):
    import tensorflow as tf

    from lingpipe.training import errors, experiment
    placement = None
    if FLAGS.mode == 'train':
        experiment.require_evaluation_inputs(params.eval, datasets)
    try:
        if FLAGS.cluster != 'none' or FLAGS.tpu == launchers.SLICE:
            from lingpipe.command_line import cluster_modes
            return cluster_modes.run(modes.Command(params, datasets, FLAGS, _STARTED))
        if FLAGS.mode not in modes.WITHOUT_PLACEMENT:
            params, placement = _place(params)
        return modes.run(modes.Command(params, datasets, FLAGS, _STARTED), placement)
    except tf.errors.OpError as error:
        raise errors.TrainingError(errors.in_words(error, params.task.body)) from error


def _main(arguments):
    try:
        return _checked_main(arguments)
    except (app.UsageError, ValueError, OSError) as error:
        sys.exit(_usage_error(error))
    except KeyboardInterrupt:
        interruption.end_by(signal.SIGINT)


def _checked_main(arguments):
    if len(arguments) > 1:
        likely = wording.close(arguments[1], [*topics.MODES, *topics.TOOLS])
        raise app.UsageError(f'{arguments[1]!r} is not a flag: flags are given as --name=value.'
                             + (f' Did you mean the mode {" or ".join(likely)}?' if likely else ''))
    if FLAGS.mode == 'train' or FLAGS.follow:  # the results are in files
        startup.outlive_readers()
    if not FLAGS['verbosity'].present:
        logging.set_verbosity(logging.WARNING)
    if FLAGS.mode == 'list':
        startup.import_tensorflow(find_devices=False)
        return _list()
    run_flags.check(FLAGS)
    if FLAGS.mode == 'train' and not FLAGS.dry_run:  # a signal ends a dry run without advice to resume
        interruption.end_at_signals()
    if FLAGS.tpu == launchers.SLICE:
        launchers.leave_tpu_to_server(launchers.read_slice(FLAGS.task))
    startup.import_tensorflow(find_devices=FLAGS.mode not in ('inspect_params', 'plan', 'report'),
                              shows_warnings=FLAGS.cluster == 'none' or logging.level_info())
    from lingpipe import patches
    from lingpipe.training import errors
    try:
        doctor.refuse_keras_settings()
        params, datasets = _experiment()
        sys.exit(patches.call_with_room_for_frames(lambda: _run(params, datasets)))
    except app.UsageError:
        raise
    except Exception as error:
        if logging.level_debug():
            raise
        place = place_of(error)
        where = f'{place}\n' if place else ''
        print(f'Error: {error_in_words(error)}\n{where}(--verbosity=1 shows where.)', file=sys.stderr)
        sys.exit(errors.exit_code(error))


_WRITTEN_BY_PYTHON = (KeyError, TypeError, ArithmeticError, AssertionError, ImportError, MemoryError)


def error_in_words(error: BaseException) -> str:
    """Return an error's message. The class name comes first, unless LingPipe wrote the message."""
    frames = traceback.extract_tb(error.__traceback__)
    is_ours = bool(frames) and _LINGPIPE in pathlib.Path(frames[-1].filename).parents
    name = type(error).__name__
    is_written = is_ours and not isinstance(error, _WRITTEN_BY_PYTHON)
    return str(error) if is_written else ': '.join(filter(None, (name, str(error))))


def place_of(error: BaseException) -> str:
    """Return the place and the text of the last line of user code in the traceback, or ''."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if _is_users(frame.filename):
            return f'{frame.filename}, line {frame.lineno}: {frame.line}'
    return ''


def _is_users(file):
    is_installed = file.startswith((*_INSTALLED, '<')) or not os.path.exists(file)  # compiled modules lack their source
    return _LINGPIPE not in pathlib.Path(file).parents and not is_installed

"""The command line of LingPipe.

    python run.py --model=params.amoebanet --mode=train --logdir=logs/amoebanet
"""

import os
import sys
import time

_STARTED = time.time()
if not sys.stderr.isatty():
    os.environ.setdefault('TQDM_DISABLE', '1')  # bars are for terminals; that of TFDS fills files with lines

from absl import app, flags, logging

from lingpipe import hyperparams, model_registry
from lingpipe.cluster import child_process, tpu_slice
from lingpipe.command_line import run_flags, startup

FLAGS = flags.FLAGS
flags.adopt_module_key_flags(run_flags)
_LONGEST_SILENCE_SECONDS = 60


def _experiment():
    """Returns the params after all overrides, evaluation inputs included, and {name: Params} of these inputs."""
    experiment = model_registry.GetClass(FLAGS.model)()
    params = model_registry.GetParams(FLAGS.model, 'Train')
    evaluated = [name for name in experiment.GetDatasetNames() if name != 'Train']
    for name in evaluated:
        params.Define(name.lower(), experiment.GetDatasetParams(name), f'The input of {name}.')
    if FLAGS.model_params_file_override and FLAGS.model_params_override:
        raise ValueError('--model_params_override and --model_params_file_override were both given. Give one of them.')
    overrides = FLAGS.model_params_override
    if FLAGS.model_params_file_override:
        overrides = _read(FLAGS.model_params_file_override)
    hyperparams.ApplyOverrides(params, overrides)
    return params, {name: params.Get(name.lower()) for name in evaluated}


def _read(path):
    try:
        with open(path, encoding='utf-8') as file:
            return file.read()
    except OSError as error:
        reason = f'cannot be read ({error.strerror})'
        raise ValueError(f'--model_params_file_override={path} {reason}. Give a file of changes.') from error
    except UnicodeDecodeError as error:
        raise ValueError(
            f'--model_params_file_override={path} is no text ({error}). Give a file of changes, one a line.') from error


def _place(params):
    """Sets devices up, and fills in what is 'auto'.

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


def _train(params, datasets, placement):
    from lingpipe.training import trainer
    trainer.Trainer(params, datasets, FLAGS.logdir, placement, _STARTED).run()


def _eval(params, datasets, placement):
    from lingpipe.training import evaluation
    run = evaluation.CheckpointEvaluation(params, datasets, FLAGS.logdir, placement.devices)
    if FLAGS.follow:
        run.follow()
    else:
        run.once(FLAGS.checkpoint)


def _trace(params, unused_datasets, placement):
    from lingpipe.tools.trace import trace
    trace.Trace(params, FLAGS.logdir, placement.devices).run(FLAGS.steps)


def _export(params, unused_datasets, unused_placement):
    from lingpipe.training import inference
    inference.Exporter(params, FLAGS.logdir).run(FLAGS.checkpoint)


def _generate(params, unused_datasets, placement):
    from lingpipe.models import sampling, translation_model
    from lingpipe.training import inference
    if issubclass(params.task.cls, translation_model.TranslationModel):
        translation = inference.CheckpointTranslation(params, FLAGS.logdir, placement.devices)
        for prompt in run_flags.prompts(FLAGS):
            translation.run(prompt, FLAGS.checkpoint)
        return
    writer = inference.CheckpointGeneration(
        params, FLAGS.logdir, sampling.Sampling(
            FLAGS.temperature, FLAGS.top_k, FLAGS.seed, FLAGS.top_p, FLAGS.num_beams), placement.devices)
    writer.run(run_flags.prompts(FLAGS), FLAGS.num_tokens, FLAGS.checkpoint)


def _inspect_params(params, unused_datasets, unused_placement):
    print(params.ToText(), end='')


def _inspect_model(params, unused_datasets, placement):
    from lingpipe.training import experiment, inspection
    input_spec = params.input.cls.InputSpec(params.input)
    print(inspection.model_analysis(experiment.body_params(params), input_spec, placement.devices))


def _plan(params, unused_datasets, unused_placement):
    from lingpipe.placements import tpu_system
    from lingpipe.tools.tpu_compile import tpu_compiler
    from lingpipe.tools.trace import trace
    from lingpipe.training import planning
    accelerator = _accelerator()
    if accelerator in tpu_compiler.KINDS:
        params = tpu_system.with_defaults(params)
    planned = planning.plan(params, accelerator, FLAGS.device_memory, FLAGS.num_devices)
    files = trace.TraceFiles(os.path.expanduser(FLAGS.logdir), 'plan') if FLAGS.logdir else None
    text = str(planned)
    print(text)
    if FLAGS.compile:
        from lingpipe.tools.tpu_compile import plan_compilation
        report = plan_compilation.compiled_report(planned, FLAGS.tpu_topology, _folder_of_compiled(files))
        print(f'\n{report}')
        text += f'\n\n{report}'
    if files:
        print('\n' + '\n'.join([files.write('memory.png', planned.png()), files.write('plan.txt', f'{text}\n')]))


def _folder_of_compiled(files):
    """Returns the folder of compiled programs, which must be on this machine, or None."""
    return os.path.join(files.folder, 'compiled') if files and '://' not in files.folder else None


def _accelerator():
    """Returns the name of the accelerator to plan for: that of the topology where none is given."""
    from lingpipe.tools.tpu_compile import tpu_compiler
    if FLAGS.accelerator or not FLAGS.compile:
        return FLAGS.accelerator
    tpu_compiler.check_topology(FLAGS.tpu_topology)
    return FLAGS.tpu_topology.split(':')[0]


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
        if FLAGS.mode not in ('inspect_params', 'export', 'plan'):
            params, placement = _place(params)
        _MODES[FLAGS.mode](params, datasets, placement)
    except tf.errors.OpError as error:
        raise errors.TrainingError(errors.in_words(error, params.task.body)) from error


def _has_finished(params):
    """Returns whether the newest checkpoint is that of the last step; every process that sees --logdir agrees on it."""
    from lingpipe.training import checkpoints, logdir
    paths = checkpoints.complete(logdir.LogDir(FLAGS.logdir).train)
    return bool(paths) and checkpoints.step_of(paths[0]) >= params.train.max_steps


def _leave_tpu_to_server():
    try:
        tpu_slice.leave_tpu_to_server(tpu_slice.read(FLAGS.task))
    except ValueError as error:
        sys.exit(f'Error: {error}')


def _supervise():
    """Runs this command as a child, as often as is necessary; returns its exit code."""
    from lingpipe.cluster import supervisor
    command = [sys.executable, *sys.orig_argv[1:], '--max_restarts=0']
    checkpoints = os.path.join(os.path.expanduser(FLAGS.logdir), 'train')
    silence_seconds = min(FLAGS.step_timeout_seconds, _LONGEST_SILENCE_SECONDS)
    return supervisor.Supervisor(command, FLAGS.max_restarts, checkpoints, silence_seconds=silence_seconds).run()


_ERRORS_IN_WORDS = (ValueError, LookupError, AttributeError, NotImplementedError, RuntimeError, OSError)
_MODES = {
    'train': _train, 'eval': _eval, 'trace': _trace, 'export': _export, 'generate': _generate,
    'inspect_params': _inspect_params, 'inspect_model': _inspect_model, 'plan': _plan}


def main(arguments):
    if len(arguments) > 1:
        raise app.UsageError(f'{arguments[1]!r} is not a flag: flags are given as --name=value.')
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
    startup.import_tensorflow(find_devices=FLAGS.mode not in ('inspect_params', 'plan'))
    from lingpipe.training import errors
    if FLAGS.cluster != 'multi_worker':  # which lets no thread run while it waits for other workers
        child_process.beat_for_parent()
    try:
        params, datasets = _experiment()
        _run(params, datasets)
        if FLAGS.fail_when_stopped and not _has_finished(params):
            sys.exit(errors.EXIT_TRY_AGAIN)
    except KeyboardInterrupt:
        sys.exit('Stopped by SIGINT. Checkpoints that were finished before are whole.')
    except _ERRORS_IN_WORDS + (errors.TrainingError,) as error:
        if logging.level_debug():
            raise
        print(f'Error: {error}\n(--verbosity=1 shows where.)', file=sys.stderr)
        sys.exit(errors.exit_code(error))


if __name__ == '__main__':
    app.run(main)

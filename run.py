"""The command line of LingPipe.

    python run.py --model=params.amoebanet --mode=train --logdir=logs/amoebanet
"""

import math
import os
import sys
import time

_STARTED = time.time()
if not sys.stderr.isatty():
    os.environ.setdefault('TQDM_DISABLE', '1')  # bars are for terminals; that of TFDS fills files with lines

from absl import app, flags, logging

from lingpipe import hyperparams, model_registry
from lingpipe.training import startup

FLAGS = flags.FLAGS

flags.DEFINE_string('model', None, "Model: a module of params ('params.amoebanet'), or a class in one ('params.amoebanet.X').")
flags.DEFINE_enum(
    'mode', 'train', ['train', 'eval', 'trace', 'export', 'generate', 'inspect_params', 'inspect_model', 'plan', 'list'],
    'train: train, evaluating as it goes. eval: evaluate a checkpoint. trace: show what the time of a few steps is '
    'spent on, in a picture and a table. export: write a checkpoint as a plain Keras file and as a SavedModel. '
    'generate: print what a language model writes after --prompt, or a translation model makes of it. inspect_params: print all hyperparameters. inspect_model: print every layer with its shape, parameters, FLOPs, '
    'partition and device. plan: tell what fits on which devices, and how fast it is. list: print all models.')
flags.DEFINE_string(
    'logdir', None, 'Folder of checkpoints and curves, here or at gs://; training goes on from what is there.')
flags.DEFINE_string('model_params_override', '', "Changes, such as 'train.max_steps=100; task.body.num_partitions=4'.")
flags.DEFINE_string('model_params_file_override', '', 'File of changes, one a line.')
flags.DEFINE_enum('device', 'auto', ['auto', 'cpu', 'gpu', 'tpu'], 'Where partitions go; auto: accelerators, else CPU.')
flags.DEFINE_string('tpu', None, "With --device=tpu: name of a Cloud TPU, or 'local', the default, for this machine's own.")
flags.DEFINE_string('checkpoint', None, 'Checkpoint to evaluate, export or generate with; the newest of --logdir otherwise.')
flags.DEFINE_bool('follow', False, 'With --mode=eval: evaluate every new checkpoint of a running training.')
flags.DEFINE_string('accelerator', None, "With --mode=plan: what to plan for, such as 'v3', 'v5e' or 'a100'.")
flags.DEFINE_string('device_memory', None, "With --mode=plan: memory of a device, such as '16GiB'; by default the accelerator's.")
flags.DEFINE_integer('num_devices', None, "With --mode=plan: how many devices num_partitions='auto' may use; by default as many "
                     'as the model needs.', lower_bound=1)
flags.DEFINE_bool('compile', False, 'With --mode=plan: also compile what each device would run for a TPU, which need not be there.')
flags.DEFINE_string('tpu_topology', 'v5e:2x2', "With --mode=plan --compile: the TPUs to compile for, such as 'v3:2x2'.")
flags.DEFINE_integer('steps', 3, 'With --mode=trace: how many training steps to record.', lower_bound=1)
flags.DEFINE_string('prompt', '', 'With --mode=generate: start of the text.')
flags.DEFINE_integer('num_tokens', 200, 'With --mode=generate, language models: largest number of tokens to go on for.', lower_bound=1)
flags.DEFINE_float('temperature', 0.8, 'With --mode=generate, language models: the lower, the likelier the text; 0: always the likeliest.')
flags.DEFINE_integer('top_k', 40, 'With --mode=generate, language models: choose among so many of the likeliest tokens; 0: all.')
flags.DEFINE_integer('seed', 0, 'With --mode=generate, language models: another seed, another text.')
_FLAGS_OF_ONE_MODE = {
    'plan': ('accelerator', 'device_memory', 'num_devices', 'compile', 'tpu_topology'),
    'generate': ('prompt', 'num_tokens', 'temperature', 'top_k', 'seed')}


def _experiment():
    """Returns the class, its params after all overrides, and those of its evaluation inputs."""
    experiment = model_registry.GetClass(FLAGS.model)()
    params = model_registry.GetParams(FLAGS.model, 'Train')
    if FLAGS.model_params_file_override and FLAGS.model_params_override:
        raise ValueError('--model_params_override and --model_params_file_override were both given. Give one of them.')
    overrides = FLAGS.model_params_override
    if FLAGS.model_params_file_override:
        overrides = _read(FLAGS.model_params_file_override)
    hyperparams.ApplyOverrides(params, overrides)
    datasets = {name: experiment.GetDatasetParams(name) for name in experiment.GetDatasetNames() if name != 'Train'}
    return params, datasets


def _read(path):
    try:
        with open(path, encoding='utf-8') as file:
            return file.read()
    except OSError as error:
        raise ValueError(
            f'--model_params_file_override={path} cannot be read ({error.strerror}). Give a file of changes.') from error


def _place(params):
    """Sets devices up, with no accelerator virtual CPU devices, and fills in what is 'auto'.

    Returns:
        The params, and a list of device names, one for each partition, or the
        `TpuReplicas` of a TPU system.
    """
    from lingpipe.distribute import local_devices
    from lingpipe.planner import resolution
    from lingpipe.training import planning
    resolution.validate(params.task.body)
    local_devices.configure_graph_optimizer()
    kind = None if FLAGS.device == 'auto' else FLAGS.device.upper()
    if FLAGS.mode != 'inspect_model' and (kind == 'TPU' or kind is None and not params.task.body.devices and local_devices.has_tpu()):
        return _place_on_tpu(params)
    on_cpu = kind == 'CPU' or (kind is None and not local_devices.has_accelerators())
    numbers = params.task.body.num_partitions, params.task.body.num_replicas
    num_devices = planning.num_local_devices(on_cpu) if 'auto' in numbers else math.prod(numbers)
    if on_cpu:
        local_devices.use_virtual_devices(num_devices)
    params = planning.resolved(params, num_devices, on_cpu)
    body = params.task.body
    return params, body.devices or local_devices.stage_devices(body.num_replicas * body.num_partitions, kind)


def _place_on_tpu(params):
    from lingpipe.distribute import tpu_placement, tpu_system
    from lingpipe.training import planning, tpu_routes
    tpu_placement.validate(params.task.body, FLAGS.mode)
    params = tpu_placement.with_defaults(params)
    tpu_routes.validate(params)
    system = tpu_system.start(FLAGS.tpu or tpu_system.LOCAL)
    params = tpu_routes.resolved(planning.resolved(params, len(system.devices)), FLAGS.mode, system.topology.mesh_shape)
    return params, tpu_placement.place(params.task.body, system)


def _train(params, datasets, devices):
    from lingpipe.training import trainer
    trainer.Trainer(params, datasets, FLAGS.logdir, devices, _STARTED).run()


def _eval(params, datasets, devices):
    from lingpipe.training import evaluation
    run = evaluation.CheckpointEvaluation(params, datasets, FLAGS.logdir, devices)
    if FLAGS.follow:
        run.follow()
    else:
        run.once(FLAGS.checkpoint)


def _trace(params, unused_datasets, devices):
    from lingpipe.training import trace
    trace.Trace(params, FLAGS.logdir, devices).run(FLAGS.steps)


def _export(params, unused_datasets, unused_devices):
    from lingpipe.training import export
    export.Exporter(params, FLAGS.logdir).run(FLAGS.checkpoint)


def _generate(params, unused_datasets, devices):
    from lingpipe.models import sampling, translation_model
    from lingpipe.training import generation, translation
    if issubclass(params.task.cls, translation_model.TranslationModel):
        translation.CheckpointTranslation(params, FLAGS.logdir, devices).run(FLAGS.prompt, FLAGS.checkpoint)
        return
    writer = generation.CheckpointGeneration(
        params, FLAGS.logdir, sampling.Sampling(FLAGS.temperature, FLAGS.top_k, FLAGS.seed), devices)
    writer.run(FLAGS.prompt, FLAGS.num_tokens, FLAGS.checkpoint)


def _inspect_params(params, unused_datasets, unused_devices):
    print(params.ToText(), end='')


def _inspect_model(params, unused_datasets, devices):
    from lingpipe.training import experiment, inspection
    input_spec = params.input.cls.InputSpec(params.input)
    print(inspection.model_analysis(experiment.body_params(params), input_spec, devices))


def _plan(params, unused_datasets, unused_devices):
    from lingpipe.distribute import tpu_placement
    from lingpipe.training import planning, trace_files
    if FLAGS.compile:
        params = tpu_placement.with_defaults(params)
    planned = planning.plan(params, _accelerator(), FLAGS.device_memory, FLAGS.num_devices)
    files = trace_files.TraceFiles(os.path.expanduser(FLAGS.logdir), 'plan') if FLAGS.logdir else None
    text = str(planned)
    print(text)
    if FLAGS.compile:
        from lingpipe.training import plan_compilation
        report = plan_compilation.compiled_report(planned, FLAGS.tpu_topology, _folder_of_compiled(files))
        print(f'\n{report}')
        text += f'\n\n{report}'
    if files:
        print('\n' + '\n'.join([files.write('memory.png', planned.png()), files.write('plan.txt', f'{text}\n')]))


def _folder_of_compiled(files):
    """Returns where compiled programs are kept, which is on this machine only."""
    return os.path.join(files.folder, 'compiled') if files and '://' not in files.folder else None


def _accelerator():
    """Returns the name of what to plan for: that of the topology where none is given."""
    from lingpipe.planner import tpu_topologies
    if FLAGS.accelerator or not FLAGS.compile:
        return FLAGS.accelerator
    tpu_topologies.check(FLAGS.tpu_topology)
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
    devices = None
    if FLAGS.mode not in ('inspect_params', 'export', 'plan'):
        params, devices = _place(params)
    try:
        _MODES[FLAGS.mode](params, datasets, devices)
    except tf.errors.OpError as error:
        raise errors.TrainingError(errors.in_words(error, params.task.body)) from error


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
    if not FLAGS.model:
        raise app.UsageError('--model is missing: give, for instance, --model=params.amoebanet, or see --mode=list.')
    if FLAGS.follow and FLAGS.mode != 'eval' or FLAGS.checkpoint and FLAGS.mode not in ('eval', 'export', 'generate'):
        raise app.UsageError(
            f'{"--checkpoint is for --mode=eval, export and generate" if FLAGS.checkpoint else "--follow is for --mode=eval"} only. To train from the weights of a '
            "checkpoint, set train.init_from_checkpoint, as in --model_params_override='train.init_from_checkpoint=PATH'.")
    if FLAGS.checkpoint and FLAGS.follow:
        raise app.UsageError('--checkpoint and --follow were both given. Give one of them.')
    for mode, names in _FLAGS_OF_ONE_MODE.items():
        for name in names:
            if FLAGS[name].present and FLAGS.mode != mode:
                raise app.UsageError(f'--{name} is for --mode={mode} only.')
    if FLAGS['tpu_topology'].present and not FLAGS.compile:
        raise app.UsageError('--tpu_topology is for --compile only. Give --compile too.')
    if FLAGS.tpu and FLAGS.device != 'tpu':
        raise app.UsageError(f'--tpu={FLAGS.tpu} is for --device=tpu only. Add --device=tpu.')
    if FLAGS['steps'].present and FLAGS.mode != 'trace':
        raise app.UsageError('--steps is for --mode=trace only. To train for some steps, set train.max_steps, as in '
                             "--model_params_override='train.max_steps=100'.")
    if FLAGS.mode in ('train', 'eval', 'trace', 'export', 'generate') and not FLAGS.logdir:
        raise app.UsageError(f'--logdir is missing: --mode={FLAGS.mode} needs a folder, such as --logdir=logs/my_run.')
    startup.import_tensorflow(find_devices=FLAGS.mode not in ('inspect_params', 'plan'))
    from lingpipe.training import errors
    try:
        params, datasets = _experiment()
        _run(params, datasets)
    except KeyboardInterrupt:
        sys.exit('Stopped by SIGINT. Checkpoints that were finished before are whole.')
    except _ERRORS_IN_WORDS + (errors.TrainingError,) as error:
        if logging.level_debug():
            raise
        sys.exit(f'Error: {error}\n(--verbosity=1 shows where.)')


if __name__ == '__main__':
    app.run(main)

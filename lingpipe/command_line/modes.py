"""The modes of the command, and its tool `new`."""

import importlib.util
import keyword
import os
import pathlib
import tempfile
from collections.abc import Sequence
from typing import Any, NamedTuple

from absl import app, flags

from lingpipe import hyperparams
from lingpipe.command_line import run_flags, topics

WITHOUT_PLACEMENT = ('inspect_params', 'export', 'plan', 'report')
_TEXT = '''\
"""A convolutional network on two devices. Train it with `lingpipe train --model={module} --logdir=logs/{folder}`."""

import keras

from lingpipe import base_model_params, layers, model_registry
from lingpipe.input import image_input
from lingpipe.models import image_classifier


@model_registry.RegisterSingleTaskModel
class {name}(base_model_params.SingleTaskModelParams):
    """One line about this experiment; `lingpipe list` shows it for the modules of the folder params/."""

    def Train(self):
        # Any image classification dataset of TFDS; 'digits' needs no download.
        return image_input.ImageInput.Params().Set(
            dataset='digits', split='train', batch_size=64, augmentation='digits')

    def Test(self):
        return self.Train().Set(split='test', batch_size=120)

    def Task(self):
        p = image_classifier.ImageClassifier.Params().Set(name='{folder}')
        p.body.Set(
            num_partitions=2,  # parts of the model, one per device; with 'auto' LingPipe chooses
            num_micro_batches=4,  # parts of a batch; best if it divides the batch size
            schedule='1f1b',  # the order of work on a device; 'gpipe' keeps more activations
            recompute='none',  # 'stage' stores less, but computes forward passes twice
            layers=[  # any Keras layers, in order; the layers of a Keras model: lingpipe.KerasModelParams
                layers.KerasParams(keras.layers.Conv2D, filters=32, kernel_size=3, strides=2, activation='relu'),
                layers.KerasParams(keras.layers.Conv2D, filters=64, kernel_size=3, strides=2, activation='relu'),
                layers.KerasParams(keras.layers.Flatten),
                layers.KerasParams(keras.layers.Dense, units=10),  # one unit per class, no softmax
            ])
        p.train.Set(max_steps=200, learning_rate=0.002, optimizer=layers.KerasParams(keras.optimizers.Adam))
        return p
'''


class Command(NamedTuple):
    """What the command line asks for."""

    params: hyperparams.Params
    datasets: dict[str, hyperparams.Params]  # the inputs of evaluations, by 'Dev' and 'Test'
    given: flags.FlagValues
    started: float  # `time.monotonic()` at the start of the program

    def trainer(self, placement: Any, dog: Any) -> Any:
        """Return the `Trainer` on a `Placement`. `dog` is the trainer's `Watchdog`."""
        from lingpipe.training import trainer
        return trainer.Trainer(self.params, self.datasets, self.given.logdir, placement, self.started, dog)


def run(command: Command, placement: Any) -> int:
    """Run the mode of --mode, and return the exit code. `placement` is None if the mode uses no devices."""
    params, datasets, given, _ = command
    if given.dry_run:
        _dry_run(params, datasets, placement, given.logdir)
    elif given.mode == 'train':
        return _train(command, placement)
    else:
        _MODES[given.mode](params, datasets, placement, given)
    return 0


def _dry_run(params, datasets, placement, logdir_of_run=None):
    """Prepare a training run in a temporary log directory, and print its plan."""
    from lingpipe.training import logdir, planning, prepared_run, trackers
    with tempfile.TemporaryDirectory() as folder:
        trackers.validate(params.train.trackers)
        trackers.Trackers(params.train.trackers, logdir.LogDir(folder))  # fails without their libraries; begins no run
        prepared_run.PreparedRun(params.Copy().Set(**{'train.trackers': []}), datasets, folder, placement).check()
    unread = f' Checkpoints in {logdir_of_run} were not read.' if logdir_of_run else ''
    print(f'\n{planning.plan(params)}\n\nThe model is built and every input gives a batch: nothing is wrong.{unread}')


def _train(command, placement):
    from lingpipe.training import watchdog
    run = command.trainer(placement, watchdog.Watchdog(command.given.step_timeout_seconds))
    code = run.run_to_exit_code()
    if run.interrupted.is_by_user:
        raise KeyboardInterrupt
    return code


def _eval(params, datasets, placement, given):
    from lingpipe.training import evaluation
    run = evaluation.CheckpointEvaluation(params, datasets, given.logdir, placement.devices)
    if given.follow:
        run.follow()
    else:
        run.once(given.checkpoint)


def _trace(params, unused_datasets, placement, given):
    from lingpipe.tools import trace
    trace.Trace(params, given.logdir, placement.devices).run(given.steps)


def _export(params, unused_datasets, unused_placement, given):
    from lingpipe.training import inference
    inference.Exporter(params, given.logdir).run(given.checkpoint)


def _predict(params, unused_datasets, placement, given):
    from lingpipe.training import inference
    output = given.output and os.path.expanduser(given.output)
    inference.Prediction(params, given.logdir, placement.devices).run(given.input, output, given.checkpoint)


def _generate(params, unused_datasets, placement, given):
    from lingpipe.models import sampling, translation_model
    from lingpipe.training import inference
    if issubclass(params.task.cls, translation_model.TranslationModel):
        run_flags.refuse_sampling(given)
        translation = inference.CheckpointTranslation(params, given.logdir, placement.devices)
        for prompt in run_flags.prompts(given):
            translation.run(prompt, given.checkpoint)
        return
    writer = inference.CheckpointGeneration(
        params, given.logdir, sampling.Sampling(given.temperature, given.top_k, given.seed, given.top_p),
        placement.devices)
    writer.run(run_flags.prompts(given), given.num_tokens, given.checkpoint)


def _inspect_params(params, unused_datasets, unused_placement, given):
    print(params.ToText(), end='')


def _inspect_model(params, unused_datasets, placement, given):
    from lingpipe.training import experiment, inspection
    print(inspection.model_analysis(
        experiment.body_params(params), experiment.input_spec(params), placement.devices))


def _plan(params, unused_datasets, unused_placement, given):
    from lingpipe.placements import tpu_system
    from lingpipe.tools import tpu_compiler
    from lingpipe.training import planning
    from lingpipe.training.logdir import LogDir
    body = params.task.body
    if given.num_devices and 'auto' not in (body.num_partitions, body.num_replicas):
        raise app.UsageError(f"--num_devices={given.num_devices} is for task.body.num_partitions='auto' or "
                             "num_replicas='auto'. Set one of them, or leave it out.")
    accelerator = _accelerator(given)
    if accelerator in tpu_compiler.KINDS:
        params = tpu_system.with_defaults(params)
    planned = planning.plan(params, accelerator, given.device_memory, given.num_devices)
    folder = LogDir(given.logdir).create_folder('plan') if given.logdir else None
    text = str(planned)
    print(text)
    if given.compile:
        from lingpipe.tools import plan_compilation
        is_here = folder is not None and '://' not in folder  # the folder of compiled programs must be local
        report = plan_compilation.compiled_report(
            planned, given.tpu_topology, os.path.join(folder, 'compiled') if is_here else None)
        print(f'\n{report}')
        text += f'\n\n{report}'
    if folder:
        paths = LogDir(given.logdir).write_files('plan', {'memory.png': planned.png(), 'plan.txt': f'{text}\n'})
        print('\n' + '\n'.join(paths))


def _report(params, unused_datasets, unused_placement, given):
    import tensorflow as tf

    from lingpipe.tools import report
    tf.config.set_visible_devices([], 'GPU')  # a training run may use them
    report.Report(params, topics.program(), given.model, given.logdir).write()


def _accelerator(given):
    """Return the accelerator to plan for, or None."""
    from lingpipe.tools import tpu_compiler
    if given.accelerator or not given.compile:
        return given.accelerator
    tpu_compiler.check(given.tpu_topology)
    return given.tpu_topology.split(':')[0]


_MODES = {
    'eval': _eval, 'trace': _trace, 'export': _export, 'generate': _generate, 'predict': _predict,
    'inspect_params': _inspect_params,
    'inspect_model': _inspect_model, 'plan': _plan, 'report': _report}


def main(words: Sequence[str]) -> int:
    """Write the params file of a new model below the current folder. Return the exit code.

    Args:
        words: one word, the name of the module, such as 'my_model' or 'params.my_model'.

    Raises:
        ValueError: `words` is not one name, or the name is invalid or taken.
        OSError: the file cannot be written.
    """
    if len(words) != 1:
        raise ValueError(f'`new` takes the name of one module, but {len(words)} words were given. Give, for instance, '
                         '`lingpipe new my_model`.')
    module = words[0].removesuffix('.py')
    parts = module.split('.')
    name = parts[-1].title().replace('_', '')
    if not all(part.isidentifier() and not keyword.iskeyword(part) for part in [*parts, name]):
        raise ValueError(f'{module!r} is not a name of a Python module. Use letters, digits and _, such as my_model.')
    path = pathlib.Path(*parts).with_suffix('.py')
    if path.exists():
        raise ValueError(f'{path} exists already. Choose another name, or remove the file.')
    is_own_package = parts[0] == 'params' or os.path.exists(os.path.join(parts[0], '__init__.py'))
    installed = None if is_own_package else importlib.util.find_spec(parts[0])
    if installed and installed.origin:  # a folder of models has none
        raise ValueError(f'{parts[0]} is the name of an installed Python module, which would hide this file, or be '
                         'hidden by it. Choose another name.')
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_TEXT.format(module=module, folder=parts[-1], name=name), encoding='utf-8')
    print(f'Wrote {path}. Train it with `lingpipe train --model={module} --logdir=logs/{parts[-1]}`.')
    return 0

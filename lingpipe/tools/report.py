"""The mode `report`, which writes a page of HTML about a run. The page needs no server, network or other file.

::

    train/events*, eval_*/events* ──> curves, samples ─┐
    control/* ──────────────────────> partitions, ...  ├──> report.html
    trace/timeline.png ─────────────> timeline         │
    params ──> plan ────────────────> memory, timeline ┘

If a part is missing, the page names the command that adds the part.
"""

import datetime
import functools
import shlex
from typing import NamedTuple

import tensorflow as tf
from tensorboard.backend.event_processing import event_accumulator

from lingpipe import drawing, hyperparams, wording
from lingpipe.planner import plans
from lingpipe.tools import page, trace_picture
from lingpipe.training import checkpoints, planning, progress
from lingpipe.training import logdir as logdirs

_NUM_SAMPLES = 5


class _Written(NamedTuple):
    """The contents of the event files in a folder."""

    scalars: dict[str, list[tuple[int, float]]]  # dictionary from name to the list of pairs (step, value), by step
    texts: dict[str, list[tuple[int, str]]]  # dictionary from name to the list of pairs (step, text), by step
    times: tuple[float, ...] = ()  # when the first and the last event were written, in seconds since 1970


class Report:
    """The report of a run.

    Args:
        program: the command `lingpipe` as the user typed it. Commands on the page begin with this text.

    Raises:
        TrainingError: there is no such log directory.
    """

    def __init__(self, params: hyperparams.Params, program: str, model: str, logdir: str) -> None:
        self._program, self._model, self._logdir = program, model, logdirs.LogDir(logdir)
        self._logdir.require()
        self._params_text = self._logdir.read('control', 'params.txt')
        self._is_overridden = self._params_text not in (None, params.ToText())
        self._params = params.Copy().FromText(self._params_text) if self._params_text else params
        self._training = _read(self._logdir.train)
        folders = sorted(name.rstrip('/') for name in tf.io.gfile.listdir(self._logdir.path))
        self._evaluations = {name.removeprefix('eval_'): _read(tf.io.gfile.join(self._logdir.path, name))
                             for name in folders if name.startswith('eval_')}

    def write(self) -> str:
        """Write the page to report.html, and replace an earlier page. Return the path."""
        path = f'{self._logdir.path.rstrip("/")}/report.html'
        logdirs.replace_text(path, self.text())
        print(path, flush=True)
        return path

    def text(self) -> str:
        """Return the page."""
        sections = {
            'Curves': self._curves(), 'Partitions': self._partitions(), 'Memory': self._memory(),
            'Timeline of a step': self._timeline(), 'Samples': self._samples(), 'Configuration': self._configuration(),
            'Hardware and versions': self._versions()}
        return page.text(f'{self._params.task.name or self._model} · LingPipe', self._introduction(), sections)

    def _command(self, mode, *flags):
        """Return the command line that runs `mode` for this run."""
        model, logdir = map(shlex.quote, (self._model, self._logdir.path))
        comment = "  # with the run's --model_params_override" if self._is_overridden else ''
        return ' '.join([self._program, mode, f'--model={model}', f'--logdir={logdir}', *flags]) + comment

    def _introduction(self):
        newest = checkpoints.complete(self._logdir.train)
        max_steps = self._params.train.max_steps
        state = (f'{checkpoints.step_of(newest[0]):,} of {max_steps:,} steps' if newest
                 else f'no checkpoint yet, {max_steps:,} steps are planned')
        facts = f'model {self._model}, log directory {self._logdir.path}, {state}{self._dates()}'
        last = {name: {metric: points[-1] for metric, points in written.scalars.items()}
                for name, written in self._evaluations.items() if written.scalars}
        rows = [[name, max(step for step, _ in metrics.values()),
                 progress.metrics_text({metric: value for metric, (_, value) in metrics.items()})]
                for name, metrics in last.items()]
        table = [page.table(wording.table(['evaluation', 'step', 'metrics'], rows))] if rows else []
        return [page.element('p', facts), *table]

    def _dates(self):
        if not self._training.times:
            return ''
        begin, end = (datetime.datetime.fromtimestamp(round(choose(self._training.times))).astimezone()
                      for choose in (min, max))
        return f', trained from {begin:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M %Z} ({end - begin} h, pauses included)'

    def _curves(self):
        train = self._command('train')
        series: dict[str, dict] = {}
        for run, written in {'training': self._training, **self._evaluations}.items():
            for name, points in written.scalars.items():
                if any(value for _, value in points):  # not a line of zeros
                    series.setdefault(name, {})[run] = points
        if not series:
            return [page.missing('This log directory has no curves.', train)]
        drawn = [page.figure(drawing.curves(name, by_run), name) for name, by_run in series.items()]
        if not self._training.scalars:
            drawn.append(page.missing('There are no curves of training.', train))
        if not any(written.scalars for written in self._evaluations.values()):
            drawn.append(page.missing('Nothing was evaluated.', self._command('eval')))
        return drawn

    def _partitions(self):
        analysis = self._logdir.read('control', 'model_analysis.txt')
        if analysis is None:
            return [page.missing('Nothing was trained here yet.', self._command('train'))]
        layers, _, partitions = analysis.partition('\n\n')
        return [page.table(partitions), page.folded('Layers', page.table(layers))]

    @functools.cached_property
    def _plan(self):
        """The plan of the run, or a text that says why there is no plan."""
        try:
            return planning.plan(self._params)
        except ValueError as error:
            return str(error)

    def _memory(self):
        written = self._logdir.read('plan', 'plan.txt')
        told = page.folded('Output of `plan`', page.table(written)) if written is not None else page.missing(
            'This is for a device without a memory limit; nothing was planned for an accelerator.',
            self._command('plan', '--accelerator=v5e'))
        if isinstance(self._plan, str):
            return [page.missing(f'No plan can be made: {self._plan}'), told]
        drawn = plans.figure(self._plan.plan, 'Memory of each device')
        return [page.figure(drawn, 'Memory of each device'), page.table(str(self._plan)), told]

    def _timeline(self):
        path = tf.io.gfile.join(self._logdir.path, 'trace', 'timeline.png')
        if tf.io.gfile.exists(path):
            with tf.io.gfile.GFile(path, 'rb') as file:
                return [page.image(file.read(), 'image/png', 'A measured step')]
        advice = page.missing('No step was traced.', self._command('trace'))
        if isinstance(self._plan, str):
            return [page.missing(f'No step can be simulated: {self._plan}'), advice]
        step = self._plan.plan.timeline
        drawn = trace_picture.figure({'A simulated step, from the operations and bytes of layers': step},
                                     [f'device {device}' for device in range(step.num_devices)])
        return [page.figure(drawn, 'A simulated step'), advice]

    def _samples(self):
        samples = self._training.texts.get('sample', [])[-_NUM_SAMPLES:]
        if samples:
            return [part for step, text in reversed(samples)
                    for part in (page.element('h3', f'Step {step:,}'), page.element('pre', text))]
        return [page.missing('This run has no samples: language models and translation models write one with each '
                             'evaluation of training (eval.interval_steps).')]

    def _configuration(self):
        if self._params_text is None:
            return [page.missing('Nothing was trained here yet.', self._command('train')),
                    page.folded('Params of the model', page.element('pre', self._params.ToText()))]
        num_fields = len(self._params_text.splitlines())
        return [page.folded(f'{num_fields} params of this run', page.element('pre', self._params_text))]

    def _versions(self):
        trained, here = self._logdir.read_versions(), logdirs.versions()
        rows = [[name, trained.get(name, 'not known'), here.get(name, 'not installed')] for name in {**trained, **here}]
        return [page.table(wording.table(['what', 'of the run', 'of this page'], rows))]


def _read(folder):
    """Read the event files of a folder, which may be missing."""
    if not tf.io.gfile.isdir(folder):
        return _Written({}, {})
    scalars, texts, times = {}, {}, []
    accumulator = event_accumulator.EventAccumulator(folder, {'tensors': 0}, purge_orphaned_data=False)
    accumulator.Reload()  # a resumed run has several files
    for name in accumulator.Tags()['tensors']:
        events = sorted(accumulator.Tensors(name), key=lambda event: event.wall_time)
        times += [event.wall_time for event in events]
        kind = accumulator.SummaryMetadata(name).plugin_data.plugin_name
        if kind == 'text':
            texts[name] = [(step, _without_margin(text)) for step, text in _values(events)]
        elif kind == 'scalars':
            scalars[name] = [(step, float(value)) for step, value in _values(events)]
    return _Written(scalars, texts, (min(times), max(times)) if times else ())


def _values(events):
    # Only the last value of a step counts.
    return sorted({event.step: tf.make_ndarray(event.tensor_proto).item() for event in events}.items())


def _without_margin(text):
    """Remove the indentation that `progress.SummaryWriter` adds to each line."""
    return '\n'.join(line.removeprefix('    ') for line in text.decode('utf-8', 'replace').split('\n'))

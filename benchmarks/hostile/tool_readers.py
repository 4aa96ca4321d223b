"""Files of a log directory that tools read: those of a report, a trace, compiled programs, and runs of trackers."""

import gzip
import json
import os
import pathlib

import tensorflow as tf
from tensorboard.compat.proto import event_pb2

from benchmarks.hostile import text_readers
from benchmarks.hostile.readers import DEEP, LONG, Reader, get, labelled, put, special_files, texts
from lingpipe import schedules
from lingpipe.schedules import simulation
from lingpipe.tools.report import page, report
from lingpipe.tools.tpu_compile import compiled_files, tpu_compiler
from lingpipe.tools.trace import trace_blocks, trace_picture
from lingpipe.training import errors, experiment, inspection, logdir, planning, progress, trackers

_TRACE, _TRACKED = 'trace/trace.json', 'control/tensorboard_run.txt'


def _write_report(folder):
    params = text_readers.experiment_params()
    analysis = inspection.model_analysis(
        experiment.body_params(params), params.input.cls.InputSpec(params.input), ['CPU:0'])
    run = logdir.LogDir(folder)
    run.create()
    run.write_control(params.ToText(), analysis)
    put(folder, 'plan/plan.txt', str(planning.plan(params)))
    put(folder, _TRACE, _trace())
    for name in ('train', 'eval_test'):
        curve = progress.SummaryWriter(os.path.join(folder, name))
        curve.scalars(3, {'loss': 0.5})
        curve.flush()


def _read_report(folder):
    report.Report(text_readers.experiment_params(), report.Command('lingpipe', 'eight_weights', folder)).text()


def _report_attacks(folder, target):
    return {
        **labelled('params', texts(
            'control/params.txt', 'task.body.num_micro_batches : 1000000000', 'task.body.num_partitions : 1000000000',
            'task.body.layers[0].units : 1000000000000', 'input.batch_size : 1000000000', "train.max_steps : '{}'",
            "task.body.schedule : '/dev/zero'", "task.body.num_partitions : 'auto'",
            "input.batch_size : 1000000000\ntask.body.num_micro_batches : 'auto'\ntask.body.num_partitions : 'auto'",
            'task.body.num_micro_batches : 149999')(folder, target)),
        **labelled('analysis', texts(
            'control/model_analysis.txt', '\n' * LONG, '\n\n'.join(['a\n' + '- ' * 5000 + '\nb' * 5000] * 3),
            '\n\n'.join(['a\n-' + '\nb' * 1_000_000] * 3), 'a\n\nb\n\nc', 'a\n-\nb\n\n' * 500_000)(folder, target)),
        **labelled('versions', texts(
            'control/versions.txt', 'keras', ' ', 'a b\n' * 500_000, '\n' * LONG, 'a ' * LONG)(folder, target)),
        **labelled('plan', texts('plan/plan.txt', '<script>' * 100_000, '\x1b' * LONG)(folder, target)),
        **labelled('trace', special_files(_TRACE)(folder, target)),
        **labelled('curves', _curve_attacks(folder))}


def _curve_attacks(folder):
    """Event files whose sums are right, which no random change would be."""
    tensors = {
        'huge': tf.make_tensor_proto(0.0, shape=[2**33]), 'text': tf.make_tensor_proto('text'),
        'two': tf.make_tensor_proto([1.0, 2.0]), 'nan': tf.make_tensor_proto(float('nan')),
        'largest': tf.make_tensor_proto(1.7e308, tf.float64), 'least': tf.make_tensor_proto(5e-324, tf.float64),
        'negative': tf.make_tensor_proto(-1.7e308, tf.float64), 'complex': tf.make_tensor_proto(1j)}
    attacks = {name: lambda tensor=tensor: _put_events(folder, [(4, 'loss', tensor)]) for name, tensor in tensors.items()}
    number = tensors['least']
    return attacks | {
        'steps': lambda: _put_events(folder, [(step, 'loss', number) for step in (2**63 - 1, -2**63)]),
        'many points': lambda: _put_events(folder, [(step, 'loss', number) for step in range(50_000)]),
        'a long name': lambda: _put_events(folder, [(4, '<script>' * 100_000, number)])}


def _put_events(folder, points):
    with tf.io.TFRecordWriter(os.path.join(folder, 'train/events.out.tfevents.9.here')) as writer:
        for step, name, tensor in points:
            event = event_pb2.Event(step=step)
            value = event.summary.value.add(tag=name)
            value.tensor.ParseFromString(tensor.SerializeToString())
            value.metadata.plugin_data.plugin_name = 'scalars'
            writer.write(event.SerializeToString())


def _trace():
    schedule = schedules.make_schedule('gpipe', 2, 2)
    steps = [simulation.replay(schedule, [dict.fromkeys(schedule.execution_order(), 0.002)])] * 3
    return trace_picture.trace_text(steps, ['CPU:0, partition 0', 'CPU:1, partition 1'])


def _read_trace(folder):
    panel = trace_blocks.of_trace_file(logdir.LogDir(folder).read('trace', 'trace.json'))
    page.text('a step', {'Timeline': report._drawn_step(panel, 'A measured step')}, [])


def _event(step=1, row=0, begin=0, seconds=9, kind='forward', **arguments):
    return {'name': 'F0', 'ph': 'X', 'tid': row, 'ts': begin, 'dur': seconds, 'cat': kind,
            'args': {'step': step, 'partition': 0, 'micro_batch': 0} | arguments}


def _trace_of(events, num_rows=1):
    rows = [{'name': 'thread_name', 'ph': 'M', 'tid': row, 'args': {'name': 'a'}} for row in range(num_rows)]
    return json.dumps({'traceEvents': rows + events}, separators=(',', ':'))


_TRACE_ATTACKS = (
    _trace_of([_event(step) for step in range(100_000)]), _trace_of([_event(), *[_event(begin=n) for n in range(120_000)]]),
    _trace_of([_event(step) for step in range(40_000)], 40_000), _trace_of([_event(row=1)]), _trace_of([_event(row=-1)]),
    _trace_of([_event(seconds=0)]), _trace_of([_event(seconds=1e-300)]), _trace_of([_event(seconds=1e308)]),
    _trace_of([_event(begin=10**400)]), _trace_of([_event(begin=float('nan'))]), _trace_of([_event(kind='input')]),
    _trace_of([_event(partition='a' * LONG)]), _trace_of([_event(kind='a' * LONG)]), _trace_of([_event(step={})]),
    _trace_of([], 100_000), '{"traceEvents":[' + '[],' * 5_000_000 + '[]]}', '{"traceEvents":' + '[' * DEEP,
    '{"traceEvents":"' + 'a' * LONG + '"}')


_ANSWER = {'arguments': 1, 'outputs': 2, 'aliased': 0, 'temporaries': 3, 'generated_code': 4, 'flops': 5.0,
           'seconds': 0.5, 'hlo': """HloModule m, is_scheduled=true, entry_computation_layout={(f32[60,100]{1,0:T(8,128)}, \
bf16[5,3]{1,0:T(4,128)(2,1)S(1)})->(f32[64]{0:T(256)})}, num_partitions=4

ENTRY %main {
  %g = (f32[4,2,8]{2,1,0}, f32[8]{0}) all-gather(%q, %r), dimensions={0}
}
"""}
_LAYOUT = 'entry_computation_layout={('


def _write_compiled(folder):
    put(folder, 'answer.json', json.dumps(_ANSWER))
    put(folder, 'packed.json.gz', gzip.compress(json.dumps(_ANSWER).encode()))


def _read_compiled(folder):
    """Reads a file, and another whose answer is packed here, so that random changes of it are no errors of gzip."""
    put(folder, 'answer.json.gz', gzip.compress(get(folder, 'answer.json'), 1))
    for name in ('packed.json.gz', 'answer.json.gz'):
        answer = compiled_files.read(pathlib.Path(folder, name), tpu_compiler._check)
        if answer is not None and 'error' not in answer:
            program = tpu_compiler.CompiledProgram(**answer)
            str([program.hbm, program.collectives, program.num_products])


def _compiled_attacks(folder, target):
    def answer(**fields):
        return lambda: put(folder, 'answer.json', json.dumps(_ANSWER | fields))

    programs = ('', '= (' * LONG, _LAYOUT * 500_000, _LAYOUT + ')->{' * LONG, _LAYOUT + 'a' * LONG + ')->}',
                _LAYOUT + 'f32[1]{0:' * 400_000 + ')->}', _LAYOUT + 'f32[' + '9,' * LONG + '9])->}',
                _LAYOUT + 'f32[9]{0:T(0)})->}', _LAYOUT + 'f32[9]{7:T(8)})->}', '\n' * 60_000_000)
    return {
        **{f'program {n}': answer(hlo=hlo) for n, hlo in enumerate(programs)},
        'a size': answer(arguments=10**400), 'another field': answer(stranger=1), 'no number': answer(flops='9'),
        'a refusal': lambda: put(folder, 'answer.json', '{"error": "(1.2.3G) exceeds available HBM (9G)"}'),
        'another error': lambda: put(folder, 'answer.json', json.dumps({'error': '(1' * LONG})),
        'lists': lambda: put(folder, 'answer.json', '[' + '[],' * 20_000_000 + '[]]'),
        'a bomb': lambda: put(folder, 'packed.json.gz', gzip.compress(bytes(2**20)) * 3000),
        'a bomb in one part': lambda: put(folder, 'packed.json.gz', gzip.compress(bytes(2**30), 1)),
        'a name without end': lambda: put(
            folder, 'packed.json.gz', b'\x1f\x8b\x08\x08' + bytes(6) + b'a' * 100_000_000),
        **special_files('packed.json.gz')(folder, target)}


def _read_tracked(folder):
    trackers.Trackers(['tensorboard'], logdir.LogDir(folder)).start(text_readers.experiment_params())


def _write_tracked(folder):
    logdir.LogDir(folder).create()
    _read_tracked(folder)


_TRAINING_ERRORS = (errors.TrainingError,)
READERS = {
    'report': Reader(_write_report, _read_report, _report_attacks, _TRAINING_ERRORS),
    'trace': Reader(lambda folder: put(folder, _TRACE, _trace()), _read_trace, texts(_TRACE, *_TRACE_ATTACKS),
                    (ValueError, errors.TrainingError)),
    'compiled program': Reader(_write_compiled, _read_compiled, _compiled_attacks),
    'run of a tracker': Reader(_write_tracked, _read_tracked, texts(
        _TRACKED, 'a' * 256, 'a' * 257, '../../outside/precious', 'two\nlines', '\x1b[31m', '{target}', '\0'),
                               _TRAINING_ERRORS)}

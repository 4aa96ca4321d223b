"""Draws how a drawn model is cut, scheduled, fed and trained."""

from lingpipe import schedules
from tests.fuzz import fit_options, trial
from tests.fuzz.program import Batch, nest_of_sources

_SCHEDULES = ['gpipe', '1f1b', 'interleaved_1f1b', 'zb_h1', 'zb_v', 'v_half', 'circular']
_SPLIT = ('zb_h1', 'zb_v', 'v_half')
_MOST_PARTITIONS = 4  # two replicas of which have eight devices
_STATE_OF_A_REPLICA = {'counts', 'ordered', 'assigns_weights'}  # that of the first replica counts
_SCALAR_LOSS = '''\
def loss(y_true, outputs):
    pairs = list(zip(tf.nest.flatten(y_true), tf.nest.flatten(outputs))){}
    return tf.add_n([tf.reduce_mean(tf.square(tf.cast(output, tf.float32) - y)) for y, output in pairs])
'''
_LOSS_OF_EXAMPLES = '''\
def loss(y_true, outputs):
    pairs = list(zip(tf.nest.flatten(y_true), tf.nest.flatten(outputs))){}
    errors = [tf.square(tf.cast(output, tf.float32) - y) for y, output in pairs]
    return tf.add_n([tf.reduce_mean(error, list(range(1, error.shape.rank))) for error in errors])
'''


def with_options(drawing, model):
    """Draws the rest of a program.

    Args:
        drawing: `drawing.Drawing`.
        model: `Program` that holds the model alone.

    Returns:
        `Program`.
    """
    traits = model.traits
    way = drawing.choose(['value_and_grad', 'in_function', 'under_tape'] + ([] if 'optional' in traits else ['fit']))
    policy = drawing.choose(['float32'] * 8 + ['mixed_bfloat16', 'mixed_float16'])
    model = model._replace(policy=policy, frozen=_frozen(drawing, model))
    num_units, num_trained = trial.sizes_of(model)
    num_rows, nest = drawing.choose([4, 2, 1, 3, 5, 7]), drawing.choose(['list', 'dict'])
    run = {'way': way, 'predicts': drawing.flag()}
    if way == 'in_function':
        run['has_open_rows'] = not {'counts', 'ordered', 'optional', 'assigns_weights'} & traits and drawing.flag()
    if way == 'under_tape':
        run['is_persistent'] = drawing.choose([False, False, False, True])
    if 'random' in traits:
        run['random_in'] = ['training', 'inference'] if 'random_in_inference' in traits else ['training']
    if '16_bits' in traits or policy != 'float32':
        run['has_16_bits'] = True
    if way == 'fit':
        batch, more = fit_options.drawn(drawing, model, num_rows, nest, num_trained)
    else:
        batch, more = _loss_batch(drawing, model, num_rows, nest), {}
    return model._replace(nest=nest, batch=batch, fields=_fields(drawing, num_units, traits), run={**run, **more})


def _fields(drawing, num_units, traits):
    """What couples the rows of a batch is refused where there are several micro-batches."""
    if 'couples_rows' in traits and drawing.choose([True] * 9 + [False]):
        fields = {'num_partitions': _num_partitions(drawing, num_units), 'num_micro_batches': 1, 'schedule': 'gpipe'}
    else:
        fields = _fields_of_schedule(drawing, num_units, traits)
    fields['recompute'] = drawing.choose(
        ['stage', 'none', 'selective'] if fields['schedule'] in _SPLIT else ['stage', 'none', 'selective', 'layer'])
    by = drawing.choose(['flops', 'ends', 'params'])
    if by == 'ends':
        fields['partition_by'] = _ends(
            drawing, num_units, fields['num_partitions'] * fields.get('num_virtual_stages', 1))
    elif by != 'flops':
        fields['partition_by'] = by
    return fields


def _fields_of_schedule(drawing, num_units, traits):
    schedule = drawing.choose(_SCHEDULES)
    if schedules.has_virtual_stages(schedule) and num_units >= 2:
        num_partitions = _num_partitions(drawing, num_units // 2)
        fields = {'num_partitions': num_partitions, 'num_virtual_stages': 2,
                  'num_micro_batches': num_partitions * drawing.choose([1, 1, 2])}
    else:
        schedule = 'gpipe' if schedules.has_virtual_stages(schedule) else schedule
        fields = {
            'num_partitions': _num_partitions(drawing, num_units), 'num_micro_batches': drawing.choose([1, 2, 3, 4])}
    if not _STATE_OF_A_REPLICA & traits and drawing.choose([False] * 4 + [True]):
        fields['num_replicas'] = drawing.choose([2, 3] if fields['num_partitions'] <= 2 else [2])
        fields['gradient_sum'] = drawing.choose(['add', 'ring', 'two_dimensional'])
    return {**fields, 'schedule': schedule}


def _num_partitions(drawing, most):
    return drawing.choose(list(range(1, 1 + min(_MOST_PARTITIONS, most))))


def _ends(drawing, num_units, num_stages):
    ends, start = [], 0
    for left in range(num_stages - 1, 0, -1):
        start = drawing.choose(list(range(start + 1, num_units - left + 1)))
        ends.append(start)
    return [*ends, num_units]


def _frozen(drawing, model):
    owners = [number for number, node in enumerate(model.nodes) if node.layer is not None]
    if len(owners) < 2 or drawing.choose([False, False, True]) is False:
        return ()
    return tuple(owners[:drawing.choose(list(range(1, len(owners))))])


def _loss_batch(drawing, model, num_rows, nest):
    shapes = [model.values[number].shape for number in model.outputs]
    some = drawing.choose(['', '', '[:1]']) if len(shapes) > 1 else ''
    kind = drawing.choose(
        ['scalar', 'examples', 'keras'] if len(shapes) == 1 and nest == 'list' else ['scalar', 'examples'])
    if kind == 'scalar':
        return Batch(num_rows, _SCALAR_LOSS.format(some), '', 'float32', None)
    weight = drawing.choose([None, ()])
    if kind == 'examples':
        return Batch(num_rows, _LOSS_OF_EXAMPLES.format(some), '', 'float32', weight)
    loss = drawing.choose(fit_options.KERAS_LOSSES if shapes[0][-1] > 1 else fit_options.KERAS_LOSSES[:-1])
    weight = drawing.choose([None, shapes[0][:-1]])
    return Batch(num_rows, f'loss = keras.losses.{loss}', '', 'int32' if 'Sparse' in loss else 'float32', weight)


def with_plain_loss(program):
    """Returns a program with a loss that goes with any outputs."""
    loss = _SCALAR_LOSS.format('')
    if program.batch.optimizer:
        loss = f'loss = {nest_of_sources("list", [], ["keras.losses.MeanSquaredError()"] * len(program.outputs))}'
    run = {**program.run, 'compiled': {}} if program.batch.optimizer else program.run
    batch = program.batch._replace(loss=loss, target_dtype='float32', sample_weight=None)
    return program._replace(batch=batch, run=run, nest='list')

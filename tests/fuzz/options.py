"""Draws how a drawn model is cut, scheduled, fed and trained."""

from lingpipe import schedules
from tests.fuzz import fit_options, loss_sources, trial
from tests.fuzz.program import Batch

_SCHEDULES = ['gpipe', '1f1b', 'interleaved_1f1b', 'zb_h1', 'zb_v', 'v_half', 'circular']
_SPLIT = ('zb_h1', 'zb_v', 'v_half')
_MOST_PARTITIONS = 4  # two replicas of which have eight devices
_STATE_OF_A_REPLICA = {'counts', 'ordered', 'assigns_weights'}  # that of the first replica counts
_POLICIES = ['float32'] * 9 + ['mixed_bfloat16', 'mixed_float16', 'float64']


def with_options(drawing, model):
    """Draw the rest of a program."""
    traits = model.traits
    way = drawing.choose(['value_and_grad', 'in_function', 'under_tape', 'fit'])
    policy = drawing.choose(_POLICIES)
    model = model._replace(policy=policy, frozen=_frozen(drawing, model))
    num_units, num_trained = trial.sizes_of(model)
    num_rows, nest = drawing.choose([4, 2, 1, 3, 5, 7]), drawing.choose(['list', 'dict'])
    run = {'way': way, 'predicts': drawing.flag()}
    if way == 'in_function':
        run['has_open_rows'] = not _STATE_OF_A_REPLICA & traits and drawing.flag()
    if 'random' in traits:
        # Outputs of layers that change in inference differ from call to call without random numbers.
        in_both = 'random_in_inference' in traits and 'ordered' not in traits
        run['random_in'] = ['training', 'inference'] if in_both else ['training']
    if '16_bits' in traits or policy.startswith('mixed'):
        run['num_bits'] = 16
    elif policy == 'float64' and not any(map(_is_equal_to_32_bits_only, model.nodes)):
        run['num_bits'] = 64
    if way == 'fit':
        batch, more = fit_options.drawn(drawing, model, num_rows, nest, num_trained)
    else:
        batch, more = _loss_batch(drawing, model, num_rows, nest, way == 'under_tape'), {}
    if 'keras.losses.' in batch.loss and run.get('num_bits') == 64:
        del run['num_bits']  # the source makes them while floatx is still float32
    fields = _fields(drawing, num_units, traits)
    run = {**run, **more, **_uses(drawing, model, fields, num_units, 'amplifies_noise' in more)}
    return model._replace(nest=nest, batch=batch, fields=fields, run=run)


def _is_equal_to_32_bits_only(node):
    is_complex = any(value.dtype == 'complex64' for value in node.outputs)
    # Keras adds its epsilon, 1e-7, to the counts of a masked norm: here once for each micro-batch
    is_masked_norm = 'batch_norm' in node.traits and any(value.is_masked for value in node.outputs)
    return is_complex or is_masked_norm or any('32' in part for part in (node.layer or '', node.call))


def _uses(drawing, model, fields, num_units, amplifies_noise):
    """Draw what else is done with the layers: beside the pipeline, between its steps."""
    uses, traits = {}, model.traits
    if 'couples_rows' in traits and 'random_in_inference' not in traits:
        uses['couples_rows'] = True
    if 'random_in_inference' in traits:
        return uses
    possible = ['predict_source']
    if fields.get('num_replicas', 1) == 1:
        possible.append('second_pipeline')
        uses['second'] = {'num_partitions': _num_partitions(drawing, num_units),
                          'num_micro_batches': fields['num_micro_batches'], 'recompute': fields['recompute']}
    between = [use for use in possible if drawing.choose([True] + [False] * 5)]
    if amplifies_noise or not between:
        return uses
    return {**uses, 'between': between, 'num_steps': 2}


def _fields(drawing, num_units, traits):
    """What couples the rows of a batch is refused where there are several micro-batches."""
    if 'couples_rows' in traits and drawing.flag():
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
    if schedules.NUM_VIRTUAL_STAGES[schedule] != 1 and num_units >= 2:
        num_partitions = _num_partitions(drawing, num_units // 2)
        fields = {'num_partitions': num_partitions, 'num_virtual_stages': 2,
                  'num_micro_batches': num_partitions * drawing.choose([1, 1, 2])}
    else:
        schedule = 'gpipe' if schedules.NUM_VIRTUAL_STAGES[schedule] != 1 else schedule
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


def _loss_batch(drawing, model, num_rows, nest, is_outside):
    """What is no mean over the examples is refused inside of a pipeline."""
    shapes = [model.values[number].shape for number in model.outputs]
    some = drawing.choose(['', '', '[:1]']) if len(shapes) > 1 else ''
    is_one = len(shapes) == 1 and nest == 'list'
    has_labels = is_one and len(shapes[0]) > 0 and shapes[0][-1] > 1
    kind = drawing.choose(
        ['scalar', 'examples', *['keras'] * is_one] * (2 if is_outside else 8) + loss_sources.WHOLE)
    weight = drawing.choose([None, ()]) if kind == 'examples' else None
    if kind != 'keras':
        return Batch(num_rows, loss_sources.source_of(kind, some), '', 'float32', weight)
    loss = drawing.choose(fit_options.KERAS_LOSSES if has_labels else fit_options.KERAS_LOSSES[:-2])
    weight = drawing.choose([None, shapes[0][:-1]])
    return Batch(num_rows, f'loss = keras.losses.{loss}', '', 'int32' if 'Sparse' in loss else 'float32', weight)

"""Draws how a drawn model is cut, scheduled, fed and trained."""

from tests.fuzz.program import Batch, nest_of_sources

_SCHEDULES = ['gpipe', '1f1b', 'interleaved_1f1b', 'zb_h1']
_MOST_MICRO_BATCHES, _MOST_STAGES = 4, 4
_KERAS_LOSSES = ['MeanSquaredError()', 'Huber()', 'LogCosh()', "MeanSquaredError(reduction='mean_with_sample_weight')",
                 'SparseCategoricalCrossentropy(from_logits=True)']
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
_SEVERAL = ('MultiOptimizer(keras.optimizers.OptimizerMap(keras.optimizers.SGD(0.1{0}), '
            "{{'.*kernel': keras.optimizers.Adam(0.02, epsilon=0.01{0})}}))")
_OPTIMIZERS = [
    'SGD(0.1{})', 'SGD(0.1, momentum=0.9, nesterov=True{})', 'Adam(0.02, epsilon=0.01{})', 'AdamW(0.02, epsilon=0.01{})',
    'RMSprop(0.02, epsilon=0.01, centered=True{})', 'Adam(0.02, epsilon=0.01, amsgrad=True{})', 'Adamax(0.02, epsilon=0.01{})',
    'Nadam(0.02, epsilon=0.01{})', 'Adagrad(0.1, epsilon=0.01{})', 'Adadelta(1.0, epsilon=0.01{})', 'Ftrl(0.1{})',
    'ScheduleFreeAdamW(0.02, epsilon=0.01{})', 'Lion(0.01{})', 'Adafactor(0.05{})', 'Lamb(0.02, epsilon=0.01{})', 'Muon(0.02{})',
    'SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5){})', _SEVERAL]
_OPTIMIZER_OPTIONS = [
    '', ', weight_decay=0.1', ', clipnorm=0.05', ', clipvalue=0.02', ', global_clipnorm=0.1', ', use_ema=True, ema_momentum=0.5',
    ', use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2', ', gradient_accumulation_steps=2',
    ', use_ema=True, ema_momentum=0.5, gradient_accumulation_steps=2']
_AMPLIFIERS = ('Lion', 'Adafactor', 'Lamb', 'Muon')


def with_options(drawing, model, num_units):
    """Draws the rest of a program.

    Args:
        drawing: `drawing.Drawing`.
        model: `Program` that holds the model alone.
        num_units: how many layer calls it is to a cut.

    Returns:
        `Program`.
    """
    traits = model.traits
    way = drawing.choose(['value_and_grad', 'in_function'] + ([] if 'optional' in traits else ['fit'])
                         + ([] if 'adds_loss' in traits else ['under_tape']))
    fields = _fields(drawing, num_units)
    num_rows = drawing.choose([4, 2, 1, 3, 5, 7])
    policy = drawing.choose(['float32'] * 8 + ['mixed_bfloat16', 'mixed_bfloat16' if way == 'fit' else 'mixed_float16'])
    frozen = _frozen(drawing, model)
    run = {'way': way, 'predicts': drawing.flag()}
    if way == 'in_function':
        run['has_open_rows'] = not {'counts', 'ordered', 'optional', 'assigns_weights'} & traits and drawing.flag()
    if way == 'under_tape':
        run['is_persistent'] = drawing.choose([False, False, False, True])
    if 'random' in traits:
        run['is_random'] = True
    if '16_bits' in traits or policy != 'float32':
        run['has_16_bits'] = True
    nest = drawing.choose(['list', 'dict'])
    make_batch = {'fit': _fit_batch}.get(way, _loss_batch)
    batch, more = make_batch(drawing, model, num_rows, nest)
    return model._replace(frozen=frozen, nest=nest, policy=policy, batch=batch, fields=fields,
                          run={**run, **more})


def _fields(drawing, num_units):
    schedule = drawing.choose(_SCHEDULES)
    num_virtual = 2 if schedule == 'interleaved_1f1b' and num_units >= 2 else 1
    if schedule == 'interleaved_1f1b' and num_virtual == 1:
        schedule = 'gpipe'
    num_partitions = drawing.choose(list(range(1, 1 + min(_MOST_STAGES, num_units) // num_virtual)))
    num_micro_batches = drawing.choose(list(range(1, _MOST_MICRO_BATCHES + 1)))
    if num_virtual > 1:
        num_micro_batches = num_partitions * (1 + num_micro_batches // 3)
    recompute = drawing.choose(['stage', 'none'] if schedule == 'zb_h1' else ['stage', 'none', 'layer'])
    fields = {'num_partitions': num_partitions, 'num_micro_batches': num_micro_batches, 'schedule': schedule,
              'recompute': recompute}
    if num_virtual > 1:
        fields['num_virtual_stages'] = num_virtual
    by = drawing.choose(['flops', 'ends', 'params'])
    if by == 'ends':
        fields['partition_by'] = _ends(drawing, num_units, num_partitions * num_virtual)
    elif by != 'flops':
        fields['partition_by'] = by
    return fields


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
    kind = drawing.choose(['scalar', 'examples', 'keras'] if len(shapes) == 1 and nest == 'list' else ['scalar', 'examples'])
    if kind == 'scalar':
        return Batch(num_rows, _SCALAR_LOSS.format(some), '', 'float32', None), {}
    weight = drawing.choose([None, ()])
    if kind == 'examples':
        return Batch(num_rows, _LOSS_OF_EXAMPLES.format(some), '', 'float32', weight), {}
    loss = drawing.choose(_KERAS_LOSSES if shapes[0][-1] > 1 else _KERAS_LOSSES[:-1])
    weight = drawing.choose([None, shapes[0][:-1]])
    return Batch(num_rows, f'loss = keras.losses.{loss}', '', 'int32' if 'Sparse' in loss else 'float32', weight), {}


def _fit_batch(drawing, model, num_rows, nest):
    names = [f'h{number}' for number in model.outputs]
    losses = {name: f'keras.losses.{drawing.choose(_KERAS_LOSSES[:4])}' for name in names}
    if len(names) > 1 and drawing.flag():
        losses[names[-1]] = 'None'
    are_vectors = all(len(model.values[number].shape) == 1 for number in model.outputs)
    weight, arguments = drawing.choose([None, ()]) if are_vectors else None, {}
    if len(names) == 1 and nest == 'list':
        arguments = drawing.choose([{}, {'metrics': ['mae']}, {'weighted_metrics': ['mae'], 'metrics': ['mse']}])
    elif drawing.flag() and 'None' not in losses.values():
        weights = {name: 0.5 + place for place, name in enumerate(names)}
        arguments = {'loss_weights': weights if nest == 'dict' else list(weights.values())}
    source, more = _optimizer(drawing)
    batch = Batch(num_rows, f'loss = {nest_of_sources(nest, names, list(losses.values()))}', source, 'float32', weight)
    return batch, {'num_steps': 1, 'compiled': arguments, 'batch_size': drawing.choose([num_rows, 3]), 'num_epochs': 2, **more}


def with_plain_loss(program):
    """Returns a program of one output with a loss that goes with any."""
    loss = 'loss = keras.losses.MeanSquaredError()'
    run = {**program.run, 'compiled': {}} if program.batch.optimizer else program.run
    batch = program.batch._replace(loss=loss, target_dtype='float32', sample_weight=None)
    return program._replace(batch=batch, run=run, nest='list')


def _optimizer(drawing):
    optimizer, option = drawing.choose(_OPTIMIZERS), drawing.choose(_OPTIMIZER_OPTIONS)
    lines = [f'optimizer = keras.optimizers.{optimizer.format(option)}']
    if 'weight_decay' in option:
        lines += drawing.choose([[], ["optimizer.exclude_from_weight_decay(var_names=['bias'])"],
                                 ['optimizer.exclude_from_weight_decay(var_list=model.trainable_variables[:1])']])
    body = '\n'.join(f'    {line}' for line in [*lines, 'return optimizer'])
    return f'\n\ndef make_optimizer(model):\n{body}\n\n', {'amplifies_noise': True} if optimizer.startswith(_AMPLIFIERS) else {}

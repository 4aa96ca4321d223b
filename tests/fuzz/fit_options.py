"""Draws losses, metrics and an optimizer for `fit`."""

from tests.fuzz import loss_sources
from tests.fuzz.program import Batch, nest_of_sources

KERAS_LOSSES = ['MeanSquaredError()', 'Huber()', 'LogCosh()', "MeanSquaredError(reduction='mean_with_sample_weight')",
                'SparseCategoricalCrossentropy(from_logits=True)',
                'SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)']
_LOSSES = [*KERAS_LOSSES[:4], "MeanSquaredError(reduction='sum')"]
_SEVERAL = ('MultiOptimizer(keras.optimizers.OptimizerMap(keras.optimizers.SGD(0.1{0}), '
            "{{'.*kernel': keras.optimizers.Adam(0.02, epsilon=0.01{0})}}))")
_OPTIMIZERS = [
    'SGD(0.1{})', 'SGD(0.1, momentum=0.9, nesterov=True{})', 'Adam(0.02, epsilon=0.01{})',
        'AdamW(0.02, epsilon=0.01{})',
    'RMSprop(0.02, epsilon=0.01, centered=True{})', 'Adam(0.02, epsilon=0.01, amsgrad=True{})',
        'Adamax(0.02, epsilon=0.01{})',
    'Nadam(0.02, epsilon=0.01{})', 'Adagrad(0.1, epsilon=0.01{})', 'Adadelta(1.0, epsilon=0.01{})', 'Ftrl(0.1{})',
    'ScheduleFreeAdamW(0.02, epsilon=0.01{})', 'Lion(0.01{})', 'Adafactor(0.05{})', 'Lamb(0.02, epsilon=0.01{})',
    'Muon(0.02{})',
    'SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5){})', _SEVERAL]
_OPTIMIZER_OPTIONS = [
    '', ', weight_decay=0.1', ', clipnorm=0.05', ', clipvalue=0.02', ', global_clipnorm=0.1',
        ', use_ema=True, ema_momentum=0.5',
    ', use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2', ', gradient_accumulation_steps=2',
    ', use_ema=True, ema_momentum=0.5, gradient_accumulation_steps=2']
_AMPLIFIERS = ('Lion', 'Adafactor', 'Lamb', 'Muon')
_WAYS_TO_RUN = [{}] * 20 + [{'run_eagerly': True}, {'steps_per_execution': 2}]
# XLA takes a minute, and draws other random numbers.
_WAYS_TO_RUN_FOR_XLA = [*_WAYS_TO_RUN, {'jit_compile': True}]


def drawn(drawing, model, num_rows, nest, num_trained):
    """Draw the data of `fit` and its arguments."""
    names, shapes = [f'h{number}' for number in model.outputs], [model.values[number].shape for number in model.outputs]
    whole = drawing.choose([None] * 3 + [drawing.choose(loss_sources.WHOLE)])
    losses = {name: f'keras.losses.{drawing.choose(_LOSSES)}' for name in names}
    if whole:
        losses[names[0]] = 'whole_loss'
    if len(names) > 1 and not model.frozen and drawing.flag():
        losses[names[-1]] = 'None'
    arguments = _arguments(drawing, losses, nest)
    is_one = len(names) == 1 and nest == 'list'
    weight = drawing.choose([None, shapes[0][:-1] if is_one
                             else ()]) if is_one or all(len(shape) <= 1 for shape in shapes) else None
    weight = None if whole else weight
    compiled = drawing.choose(_WAYS_TO_RUN if 'random' in model.traits else _WAYS_TO_RUN_FOR_XLA)
    source, more = _optimizer(drawing, num_trained > 0, model.policy, 'table' in model.traits)
    lines = [loss_sources.source_of(whole, name='whole_loss')] if whole else []
    loss = '\n'.join([*lines, f'loss = {nest_of_sources(nest, names, list(losses.values()))}'])
    batch = Batch(num_rows, loss, source, 'float32', weight)
    batch_size = drawing.choose([num_rows, 3, max(1, num_rows - 1)])  # the last one leaves a batch of one row
    return batch, {'num_steps': 1, 'compiled': {**arguments, **compiled}, 'batch_size': batch_size, 'num_epochs': 2,
                   **more}


def _arguments(drawing, losses, nest):
    """Draw metrics where there is one output, and the weights of several losses."""
    if len(losses) == 1 and nest == 'list':
        return drawing.choose([{}, {'metrics': ['mae']}, {'weighted_metrics': ['mae'], 'metrics': ['mse']}])
    if 'None' in losses.values() or drawing.flag():
        return {}
    weights = {name: 0.5 + place for place, name in enumerate(losses)}
    return {'loss_weights': weights if nest == 'dict' else list(weights.values())}


def _optimizer(drawing, has_variables, policy, has_table):
    """Draw an optimizer; Keras's `fit` has no moving averages of no weights, and builds those inside of others
    again."""
    optimizer = drawing.choose(_OPTIMIZERS)
    options = [*_OPTIMIZER_OPTIONS, *[', global_clipnorm=0.1'] * 6 * has_table]
    option = drawing.choose([option for option in options if has_variables or 'ema' not in option])
    lines = [f'optimizer = keras.optimizers.{optimizer.format(option)}']
    if 'weight_decay' in option:
        lines += drawing.choose([[], ["optimizer.exclude_from_weight_decay(var_names=['bias'])"],
                                 ['optimizer.exclude_from_weight_decay(var_list=model.trainable_variables[:1])']])
    if has_variables and policy != 'mixed_float16' and drawing.choose([False] * 4 + [True]):
        lines.append('optimizer.build(model.trainable_variables)')
    body = '\n'.join(f'    {line}' for line in [*lines, 'return optimizer'])
    return f'\n\ndef make_optimizer(model):\n{body}\n\n', {'amplifies_noise': True} if optimizer.startswith(_AMPLIFIERS) else {}

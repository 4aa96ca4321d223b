"""Arguments of a pipeline for Keras users: layers, one argument per field, and numbers instead of 'auto'."""

from typing import Any

from absl import logging

from lingpipe import hyperparams
from lingpipe.devices import device_kinds
from lingpipe.partition import balancing
from lingpipe.pipeline import layer_sources

AUTO = balancing.AUTO
DEFAULTS = dict.fromkeys(('num_partitions', 'num_micro_batches', 'schedule', 'recompute'), AUTO)  # for Keras users
_MICRO_BATCHES_PER_PARTITION = 4


def with_fields(pipeline: Any) -> Any:
    """Put the fields of a pipeline's Params, with their defaults for Keras users, into its docstring."""
    defaults = {**dict(pipeline.Params().IterParams()), **DEFAULTS}
    lines = ''.join(f'        {name}={defaults[name]!r}: {p.description}\n'
                    for name, p in pipeline.Params()._params.items() if name not in ('cls', 'model'))
    pipeline.__doc__ = f'{(pipeline.__doc__ or "").rstrip()}\n\n    Fields:\n{lines}'
    return pipeline


def given(pipeline: Any, params: hyperparams.InstantiableParams | None, source: Any, fields: dict[str, Any]
          ) -> tuple[hyperparams.InstantiableParams, list[str], layer_sources.LayerSource]:
    """Return what the constructor arguments of a pipeline describe; `pipeline` is the class `GPipeLayer`.

    Returns:
        `GPipeLayer.Params()` with numbers; the list of the fields that were 'auto'; the source of the layers.

    Raises:
        TypeError: there are both Params and other arguments, or neither Params nor layers.
        ValueError: an argument cannot work.
    """
    if params is not None:
        if not isinstance(params, hyperparams.Params):
            raise TypeError(f'params={params!r} is not a Params object. A Keras model goes into GPipeLayer.from_keras('
                            'model), a list of layers into GPipeLayer(layers=[...]).')
        for name, value in fields.items():
            raise TypeError(f'{name}={value!r} was given beside Params, which have it as a field. Give '
                            f'params.Set({name}=...), or no Params.')
        source = source or layer_sources.of_params(params)
        return (*_with_numbers(params, len(source)), source)
    layers, policy = fields.pop('layers', None), fields.get('dtype_policy')
    if not isinstance(layers, (list, tuple)):
        raise TypeError(f'layers={layers!r} is not a list of Keras layers. Give one, such as '
                        '[keras.layers.Dense(8), keras.layers.Dense(1)], or give Params.')
    if policy is not None:
        raise ValueError(f'dtype_policy={policy!r} was given with layers that have policies of their own. Leave it '
                         'out, and call keras.config.set_dtype_policy before the layers are made.')
    source = layer_sources.LayersOfList(layers)
    return (*_with_numbers(pipeline.Params().Set(**{**DEFAULTS, **fields}), len(source)), source)


def _with_numbers(p: Any, num_layers: int) -> tuple[hyperparams.InstantiableParams, list[str]]:
    """Replace 'auto' by values that follow from the devices, the layers and `batch_size`.

    ::

        num_partitions     as many as there are devices for a replica, and layers
        num_micro_batches  4 K, or less; see `num_micro_batches`
        schedule           '1f1b', which keeps fewer activations than 'gpipe' and waits no longer
        recompute          when the pipeline is built; see `balancing.cut`
    """
    p = hyperparams.CopyFieldsTo(p, p.cls.Params())  # a layer's Params are frozen
    chosen = [field for field in DEFAULTS if p.Get(field) == AUTO]
    if p.num_partitions == AUTO:
        p.num_partitions = _num_partitions(p, num_layers)
    if p.schedule == AUTO:
        p.schedule = '1f1b' if p.num_virtual_stages == 1 else 'interleaved_1f1b'
    if p.num_micro_batches == AUTO:
        p.num_micro_batches = num_micro_batches(p.num_partitions, p.batch_size, p.num_replicas)
    for field in ('num_partitions', 'num_micro_batches'):
        if field in chosen and p.Get(field) == 1:
            logging.warning(
                "Nothing overlaps in %r: 'auto' chose %s=1 for %d layers, batch_size=%s and the devices %s. "
                'lingpipe.use_virtual_devices makes several of a CPU.', p.name or 'a pipeline', field, num_layers,
                p.batch_size, p.devices or device_kinds.num_devices())
            break
    return p, chosen


def _num_partitions(p: hyperparams.Params, num_layers: int) -> int:
    replicas, stages = [size if isinstance(size, int) and size > 0 else 1
                        for size in (p.num_replicas, p.num_virtual_stages)]
    if p.devices:
        return max(1, len(p.devices) // replicas)
    return max(1, min(device_kinds.num_devices() // replicas, num_layers // stages))


def num_micro_batches(num_partitions: int, batch_size: int | None, num_replicas: int) -> int:
    """Return M for num_micro_batches='auto': 4 K, or less if that does not divide the batch.

    With M >= 4 K, GPipe's authors found the bubble negligible (arXiv 1811.06965, section 2.3). M is the largest number
    up to 4 K that divides the rows of a replica; with one partition there is one micro-batch. Nothing is measured, so
    the choice is always the same.

    Args:
        batch_size: rows of a training batch; None: not known, so M is 4 K, and batches that it does not divide are cut
            as evenly as possible.
    """
    if not isinstance(num_partitions, int) or num_partitions <= 1:
        return 1  # a value that is not a number is refused with all other fields
    most = _MICRO_BATCHES_PER_PARTITION * num_partitions
    if not isinstance(batch_size, int) or not isinstance(num_replicas, int) or min(batch_size, num_replicas) < 1:
        return most
    rows = max(1, batch_size // num_replicas)
    return max(count for count in range(1, most + 1) if rows % count == 0)

"""In which precision layers are made: Keras's dtype policies, handed down from a stack to its layers."""

import contextlib

import keras

from lingpipe import spelling

MIXED_FLOAT16 = 'mixed_float16'
CHOICES = ['float32', 'mixed_bfloat16', MIXED_FLOAT16]


@contextlib.contextmanager
def default_policy(policy):
    """Makes a dtype policy the one that layers created inside have by default.

    Args:
        policy: name of a Keras dtype policy, or one itself; None, and a map of policies, change nothing.

    Raises:
        ValueError: there is no such policy.
    """
    if policy is None or isinstance(policy, keras.dtype_policies.DTypePolicyMap):
        yield
        return
    policy, before = _policy(policy), keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def _policy(policy):
    try:
        return keras.dtype_policies.get(policy)
    except (TypeError, ValueError) as error:
        raise ValueError(f'dtype_policy={policy!r} is unknown{spelling.did_you_mean(str(policy), CHOICES)}') from error


def with_policy(layer_params, policy):
    """Returns a copy of a layer's Params that names its precision: its own where it has one.

    Args:
        layer_params: InstantiableParams of a Keras layer.
        policy: name of the policy, or None to leave it open.

    Raises:
        ValueError: the layer's constructor takes no policy.
    """
    copy = layer_params.Copy()
    if policy is None:
        return copy
    field = next((field for field in ('dtype_policy', 'dtype') if field in copy), None)
    if field is None and policy == 'float32':
        return copy
    if field is None:
        raise ValueError(
            f'dtype_policy={policy!r} cannot be handed on to {layer_params.cls.__name__}, which takes no argument dtype. Give '
            'its constructor **kwargs, and pass them on in super().__init__(**kwargs).')
    return copy if copy.Get(field) is not None else copy.Set(**{field: policy})

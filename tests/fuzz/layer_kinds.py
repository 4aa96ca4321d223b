"""Layers of Keras that work on any features: products, norms, dropout, merges, regularizers, wrappers."""

from tests.fuzz.kinds import is_exact, is_float, is_image, is_sequence, kind

_ACTIVATIONS = ['tanh', 'gelu', 'sigmoid', 'softplus']


def _has_features(value):
    return is_float(value) and len(value.shape) >= 1


@kind(_has_features, weight=6)
def dense(d, x, value):
    units, extra = d.choose([3, 2, 4]), d.choose([
        '', ", kernel_regularizer='l2'", ", bias_regularizer='l2'", ', use_bias=False', ", activity_regularizer='l2'",
        ", kernel_constraint='non_neg'", ", kernel_constraint=keras.constraints.MaxNorm(0.8)",
            ", dtype='mixed_bfloat16'"])
    traits = {'activity': ['adds_loss'], 'bfloat16': ['16_bits']}
    d.add_layer(f"layers.Dense({units}, activation='{d.choose(_ACTIVATIONS)}'{extra}, name={{name!r}})", x,
                value._replace(
                    shape=(*value.shape[:-1], units), dtype='bfloat16' if 'bfloat16' in extra else 'float32'),
                traits=[trait for word, found in traits.items() if word in extra for trait in found])


@kind(is_exact, weight=4)
def batch_norm(d, x, value):
    axis = d.choose([-1, 1]) if len(value.shape) > 1 and not value.is_masked else -1
    extra = d.choose(['', ', trainable=False', ', scale=False', ', center=False', ", gamma_regularizer='l2'"])
    call = d.choose(['{layer}({0})', '{layer}({0}, training=False)'])
    d.add_layer(f'layers.BatchNormalization(axis={axis}, momentum={d.choose([0.9, 0.5, 0.0])}{extra}, name={{name!r}})', x, value,
                call, traits=['batch_norm'])


@kind(is_sequence)
def time_distributed(d, x, value):
    inner = d.choose([
        'layers.BatchNormalization(momentum=0.9)', "layers.Dense(3, activation='tanh')", 'layers.LayerNormalization()'])
    shape = (value.shape[0], 3) if 'Dense' in inner else value.shape
    d.add_layer(f'layers.TimeDistributed({inner}, name={{name!r}})', x, value._replace(shape=shape),
                traits=['batch_norm'] if 'Batch' in inner else [])


@kind(_has_features)
def layer_norm(d, x, value):
    d.add_layer(d.choose(['layers.LayerNormalization(epsilon=0.1, name={name!r})',
                          'layers.RMSNormalization(epsilon=0.1, name={name!r})',
                          'layers.UnitNormalization(name={name!r})']), x, value._replace(dtype='float32'))


@kind(is_image)
def group_norm(d, x, value):
    d.add_layer(f'layers.GroupNormalization({d.choose([1, -1])}, epsilon=0.1, name={{name!r}})', x, value)


@kind(_has_features)
def dropout(d, x, value):
    source = d.choose(['layers.Dropout(0.5, name={name!r})', 'layers.GaussianNoise(0.3, name={name!r})',
                       'layers.GaussianDropout(0.3, name={name!r})', 'layers.Dropout(0.5, seed=5, name={name!r})',
                       'layers.AlphaDropout(0.3, name={name!r})'])
    d.add_layer(source, x, value._replace(dtype='float32'), d.choose(['{layer}({0})', '{layer}({0}, training=True)']),
                traits=['random'])


@kind(_has_features, weight=1)
def activation(d, x, value):
    source = d.choose(["layers.Activation('tanh', name={name!r})", "layers.Softmax(name={name!r})",
                       "layers.ELU(name={name!r})",
                       "layers.PReLU(alpha_initializer='ones', name={name!r})", 'layers.Identity(name={name!r})'])
    d.add_layer(source, x, value._replace(dtype='float32'))


@kind(is_exact)
def merge(d, x, value):
    other = d.other(x, lambda found: found.is_float and found.shape == value.shape and found.rows == value.rows)
    name = d.choose(['Add', 'Multiply', 'Average', 'Subtract', 'Maximum'])
    if name == 'Maximum' and other == x:
        name = 'Add'
    d.add_layer(f'layers.{name}(name={{name!r}})', [x, other], value._replace(is_masked=False), '{layer}([{0}, {1}])')


@kind(is_exact)
def concatenate(d, x, value):
    other = d.other(x,
                    lambda found: found.is_float and found.shape[:-1] == value.shape[:-1] and found.rows == value.rows
                    and len(found.shape) == len(value.shape))
    shape = (*value.shape[:-1], value.shape[-1] + d.values[other].shape[-1])
    d.add_layer('layers.Concatenate(name={name!r})', [x, other], value._replace(shape=shape, is_masked=False),
                '{layer}([{0}, {1}])')


@kind(_has_features, weight=1)
def activity_regularization(d, x, value):
    d.add_layer('layers.ActivityRegularization(l2=0.01, name={name!r})', x, value._replace(dtype='float32'),
                traits=['adds_loss'])


@kind(is_exact)
def spectral_normalization(d, x, value):
    d.add_layer("layers.SpectralNormalization(layers.Dense(3, activation='tanh'), name={name!r})", x,
                value._replace(shape=(*value.shape[:-1], 3), is_masked=False), traits=['assigns_weights', 'ordered'])


@kind(lambda value: is_exact(value) and len(value.shape) > 1, weight=1)
def flatten(d, x, value):
    size = 1
    for length in value.shape:
        size *= length
    d.add_layer('layers.Flatten(name={name!r})', x, value._replace(shape=(size,), is_masked=False))


@kind(lambda value: value.is_float and len(value.shape) == 1 and value.shape[0] % 2 == 0)
def reshape(d, x, value):
    d.add_layer(f'layers.Reshape((2, {value.shape[0] // 2}), name={{name!r}})', x, value._replace(
        shape=(2, value.shape[0] // 2)))


@kind(lambda value: value.is_float and len(value.shape) == 1)
def repeat(d, x, value):
    d.add_layer('layers.RepeatVector(3, name={name!r})', x, value._replace(shape=(3, *value.shape)))


@kind(lambda value: value.is_float and len(value.shape) == 1, weight=4)
def nested_model(d, x, value):
    width = value.shape[0]
    source, traits = d.choose([
        (f"keras.Sequential([keras.Input([{width}]), layers.Dense({width}, activation='tanh'), "
         "layers.LayerNormalization(epsilon=0.1)], name={name!r})", []),
        (f'residual_block({width}, name={{name!r}})', ['batch_norm']),
        (f'SubclassedBlock({width}, name={{name!r}})', [])])
    d.add_layer(source, x, value._replace(is_masked=False), traits=traits)

"""Layers of Keras over time and space: convolutions, pooling, recurrence, attention, embeddings and masks."""

from tests.fuzz.kinds import is_image, is_sequence, kind


def _is_long(value):
    return is_sequence(value) and value.shape[0] >= 2


@kind(_is_long)
def convolution_1d(d, x, value):
    source = d.choose(["layers.Conv1D(3, 2, padding='same', activation='tanh', name={name!r})",
                       "layers.Conv1D(3, 2, padding='causal', dilation_rate=2, name={name!r})",
                       "layers.SeparableConv1D(3, 2, padding='same', name={name!r})",
                       "layers.Conv1DTranspose(3, 2, padding='same', name={name!r})"])
    d.add_layer(source, x, value._replace(shape=(value.shape[0], 3), is_masked=False))


@kind(is_image, weight=4)
def convolution_2d(d, x, value):
    source, channels = d.choose([
        ("layers.Conv2D(3, 3, padding='same', activation='tanh', name={name!r})", 3),
        ("layers.DepthwiseConv2D(2, padding='same', name={name!r})", value.shape[-1]),
        ("layers.SeparableConv2D(2, 2, padding='same', activation='tanh', name={name!r})", 2),
        ("layers.Conv2DTranspose(2, 2, padding='same', name={name!r})", 2)])
    d.add_layer(source, x, value._replace(shape=(*value.shape[:-1], channels)))


@kind(lambda value: is_image(value) and min(value.shape[:2]) >= 2)
def pooling_2d(d, x, value):
    height, width, channels = value.shape
    source = d.choose(['layers.MaxPooling2D(2, name={name!r})', 'layers.AveragePooling2D(2, name={name!r})',
                       'layers.Cropping2D(((0, 1), (1, 0)), name={name!r})'])
    sizes = (height - 1, width - 1) if 'Cropping' in source else (height // 2, width // 2)
    d.add_layer(source, x, value._replace(shape=(*sizes, channels)))


@kind(lambda value: is_image(value) and value.shape[0] <= 4)
def up_sampling_2d(d, x, value):
    height, width, channels = value.shape
    d.add_layer('layers.UpSampling2D(name={name!r})', x, value._replace(shape=(2 * height, 2 * width, channels)))


@kind(lambda value: is_sequence(value) or is_image(value))
def global_pooling(d, x, value):
    name = f"Global{d.choose(['Average', 'Max'])}Pooling{len(value.shape) - 1}D"
    d.add_layer(f'layers.{name}(name={{name!r}})', x, value._replace(shape=value.shape[-1:], is_masked=False))


@kind(is_image)
def spatial_dropout(d, x, value):
    d.add_layer('layers.SpatialDropout2D(0.4, name={name!r})', x, value, traits=['random'])


@kind(is_sequence, weight=4)
def recurrent(d, x, value):
    name, units = d.choose(['LSTM', 'GRU', 'SimpleRNN']), d.choose([2, 3])
    returns_sequences = d.flag()
    extra = d.choose(['', ', go_backwards=True', ', unroll=True', ", kernel_regularizer='l2'", ', dropout=0.3',
                      ', recurrent_dropout=0.3'])
    shape = (value.shape[0], units) if returns_sequences else (units,)
    if d.flag() and 'backwards' not in extra:
        mode = d.choose(['concat', 'sum'])
        source = f'layers.Bidirectional(layers.{name}({units}, return_sequences={returns_sequences}{extra}), merge_mode={mode!r}, name={{name!r}})'
        shape = (*shape[:-1], 2 * units) if mode == 'concat' else shape
    else:
        source = f'layers.{name}({units}, return_sequences={returns_sequences}{extra}, name={{name!r}})'
    d.add_layer(source, x, value._replace(shape=shape, is_masked=value.is_masked and returns_sequences),
                traits=['random'] if 'dropout' in extra else [])


@kind(is_sequence)
def recurrent_with_state(d, x, value):
    outputs = [value._replace(shape=(value.shape[0], 2)), *[value._replace(shape=(2,), is_masked=False)] * 2]
    d.add_layer('layers.LSTM(2, return_sequences=True, return_state=True, name={name!r})', x, outputs)


@kind(is_sequence, weight=4)
def attention(d, x, value):
    other = d.other(x,
                    lambda found: is_sequence(found) and found.shape[-1] == value.shape[-1] and found.rows == value.rows
                    and not found.is_masked)
    source, call, traits = d.choose([
        ('layers.MultiHeadAttention(2, 2, name={name!r})', '{layer}({0}, {1})', []),
        ('layers.MultiHeadAttention(1, 3, name={name!r})', '{layer}({0}, {1}, use_causal_mask=True)', []),
        ('layers.Attention(use_scale=True, name={name!r})', '{layer}([{0}, {1}])', []),
        ('layers.AdditiveAttention(name={name!r})', '{layer}([{0}, {1}])', []),
        ('layers.GroupQueryAttention(2, 2, 1, name={name!r})', '{layer}({0}, {1})', []),
        ('layers.MultiHeadAttention(2, 2, dropout=0.4, name={name!r})', '{layer}({0}, {1})', ['random'])])
    d.add_layer(source, [x, other], value, call, traits=traits)


@kind(lambda value: value.dtype == 'int32' and value.limit > 0 and value.rows > 0 and len(value.shape) <= 1)
def embedding(d, x, value):
    is_masked = len(value.shape) == 1 and d.flag()
    extra = d.choose(['', ", embeddings_regularizer='l2'", ", embeddings_constraint='unit_norm'"])
    d.add_layer(f'layers.Embedding({value.limit}, 3, mask_zero={is_masked}{extra}, name={{name!r}})', x,
                value._replace(shape=(*value.shape, 3), dtype='float32', limit=0, is_masked=is_masked),
                traits=['table'])


@kind(is_sequence)
def mask_by_value(d, x, value):
    d.add_layer('MaskByValue(name={name!r})', x, value._replace(is_masked=True))

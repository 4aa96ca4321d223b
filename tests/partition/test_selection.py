import keras
import numpy as np
import pytest
import tensorflow as tf

from benchmarks.support import decoder
from lingpipe.partition import selection
from lingpipe.stages import stage_program
from tests.plain_stack import make_pipe

LENGTH, WIDTH, VOCABULARY = 128, 256, 256  # those of the decoder that benchmarks measure, of fewer blocks
cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)


@pytest.fixture(name='calls')
def calls_fixture(monkeypatch):
    """What each forward action in a graph hands on: (what is kept, tensors)."""
    calls, forward = [], stage_program.StageProgram.forward

    def recording_forward(self, known, kept, flow=None):
        done = forward(self, known, kept, flow)
        calls.append((kept, [ref.deref() for ref in done.known if ref not in known]))
        return done

    monkeypatch.setattr(stage_program.StageProgram, 'forward', recording_forward)
    return calls


def step_of(pipe, x, y):
    step = tf.function(lambda x, y: pipe.value_and_grad(cross_entropy, x, y).gradients)
    return step.get_concrete_function(x, y)


def decoder_pipe(**fields):
    tokens = tf.constant(np.random.default_rng(0).integers(0, VOCABULARY, [8, LENGTH]), tf.int32)
    pipe = make_pipe(decoder.decoder_layers(2, WIDTH, 4, VOCABULARY), num_micro_batches=4, **fields)
    pipe.build_from_specs(tf.TensorSpec(tokens.shape, tokens.dtype))
    return pipe, tokens


def kept_by(pipe, tokens, calls):
    calls.clear()
    step_of(pipe, tokens, tokens)
    assert [how for how, _ in calls] == ['selected'] * 3 + ['residuals'], 'the last B follows its own F'
    return calls[0][1]


def distinct_bytes(tensors):
    """Bytes of tensors, each buffer once: a view has its source's name in front of 'Reshape'."""
    return selection.size({tensor.op.inputs[0].ref() if tensor.op.type == 'Reshape' else tensor.ref(): tensor
                           for tensor in tensors}.values())


def test_of_a_decoder_less_than_half_is_kept_and_no_probabilities(calls):
    pipe, tokens = decoder_pipe(recompute='none')
    step_of(pipe, tokens, tokens)
    residuals = calls[0][1]
    kept = kept_by(decoder_pipe(recompute='selective')[0], tokens, calls)
    assert any('Softmax' in tensor.name for tensor in residuals)
    assert not [tensor.name for tensor in kept if tensor.shape[-2:] == [LENGTH, LENGTH]]
    assert distinct_bytes(kept) < 0.5 * distinct_bytes(residuals)


def test_a_memory_limit_is_filled_and_not_exceeded(calls):
    least = sum(part.memory for part in decoder_pipe(recompute='selective', memory_limit=1e9)[0].partitions)
    amounts = []
    for more in (0, 12e6, 24e6, 1e9):
        kept = kept_by(*decoder_pipe(recompute='selective', memory_limit=least + more), calls)
        amounts.append(3 * distinct_bytes(kept))
        assert amounts[-1] <= more
    assert amounts[0] == 0 and 11e6 < amounts[1] and 23e6 < amounts[2] < amounts[3] / 2

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

from benchmarks.support import decoder
from lingpipe.partition import selection
from lingpipe.partition.selection import Choice
from lingpipe.stages import stage_program
from tests.plain_stack import make_pipe

LENGTH, WIDTH, VOCABULARY = 128, 256, 256  # those of the decoder that benchmarks measure, of fewer blocks
cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)


@pytest.fixture(name='calls')
def calls_fixture(monkeypatch):
    """What each forward action in a graph hands on: (what is kept, tensors)."""
    calls, forward = [], stage_program.StageProgram.forward

    def recording_forward(self, arguments, kept, needed=None):
        done = forward(self, arguments, kept, needed)
        given = {tensor.ref() for tensor in self._all_arguments}
        calls.append((kept, [ref.deref() for ref in done.in_flight if ref not in given]))
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


@pytest.mark.slow
def test_of_a_decoder_less_than_half_is_kept_and_no_probabilities(calls):
    pipe, tokens = decoder_pipe(recompute='none')
    step_of(pipe, tokens, tokens)
    residuals = calls[0][1]
    kept = kept_by(decoder_pipe(recompute='selective')[0], tokens, calls)
    assert any('Softmax' in tensor.name for tensor in residuals)
    assert not [tensor.name for tensor in kept if tensor.shape[-2:] == [LENGTH, LENGTH]]
    assert distinct_bytes(kept) < 0.5 * distinct_bytes(residuals)


@pytest.mark.slow
def test_a_memory_limit_is_filled_and_not_exceeded(calls):
    least = sum(part.memory for part in decoder_pipe(recompute='selective', memory_limit=1e9)[0].partitions)
    amounts = []
    for more in (0, 12e6, 24e6, 1e9):
        kept = kept_by(*decoder_pipe(recompute='selective', memory_limit=least + more), calls)
        amounts.append(3 * distinct_bytes(kept))
        assert amounts[-1] <= more
    assert amounts[0] == 0 and 11e6 < amounts[1] and 23e6 < amounts[2] < amounts[3] / 2


def drawn(seed):
    """Return operations that make one or two tensors each and read what those before have made."""
    random = np.random.default_rng(seed)
    num_operations = int(random.integers(2, 8))
    makers = [index for index in range(num_operations) for _ in range(random.integers(1, 3))]
    reads = [(operation, tensor) for operation in range(num_operations) for tensor, maker in enumerate(makers)
             if maker < operation and random.random() < 0.4]
    wanted = [tensor for tensor in range(len(makers)) if random.random() < 0.6] or [0]
    unrepeatable = [index for index in range(num_operations) if random.random() < 0.15]
    return Choice(random.integers(1, 20, num_operations).tolist(), random.integers(1, 20, len(makers)).tolist(), makers,
                  reads, wanted, unrepeatable)


def possible(choice):
    """Yield the cost and the bytes of everything that can be done, by the definition of recomputation."""
    operations = range(len(choice.costs))
    for repeated in itertools.product([False, True], repeat=len(operations)):
        if not any(repeated[operation] for operation in choice.unrepeatable):
            needed = {*choice.wanted, *(tensor for operation, tensor in choice.reads if repeated[operation])}
            kept = [tensor for tensor in needed if not repeated[choice.makers[tensor]]]
            yield of(choice.costs, repeated), sum(choice.sizes[tensor] for tensor in kept)


def of(costs, repeated):
    return sum(cost for cost, is_repeated in zip(costs, repeated) if is_repeated)


def bytes_kept(choice, repeated):
    return sum(choice.sizes[tensor] for tensors in choice.kept(repeated) for tensor in tensors)


@pytest.mark.parametrize('seed', range(30))
def test_no_choice_keeps_less_in_the_same_time(seed):
    choice, most = drawn(seed), seed
    repeated = choice.least_bytes(most)
    assert of(choice.costs, repeated) <= most
    assert bytes_kept(choice, repeated) == min(size for cost, size in possible(choice) if cost <= most)


@pytest.mark.parametrize('seed', range(30))
def test_no_choice_that_fits_takes_less_time(seed):
    choice, most = drawn(seed), 2 * seed
    fitting = [cost for cost, size in possible(choice) if size <= most]
    repeated = choice.least_cost(most)
    if fitting:
        assert bytes_kept(choice, repeated) <= most
        assert of(choice.costs, repeated) == min(fitting)
    else:
        assert bytes_kept(choice, repeated) == min(size for _, size in possible(choice))


def test_what_a_repeated_operation_reads_is_kept_or_repeated():
    """0 ─> tensor 0 ─> 1 ─> tensor 1 ─> 2 ─> tensor 2, which is wanted and large."""
    choice = Choice([100, 1, 1], [5, 50, 500], [0, 1, 2], [(1, 0), (2, 1)], [2], [])
    repeated = choice.least_bytes(10)
    assert repeated.tolist() == [False, True, True]
    assert choice.kept(repeated) == ({0}, set())

"""Text generation for many prompts or source texts at once."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from lingpipe.devices import variable_placement
from lingpipe.input import hub_tokenizer, tokenization
from lingpipe.models import pipelined_generation
from lingpipe.models.sampling import LoopSampler, Sampling
from lingpipe.pipeline import gpipe_layer


class StackTask:
    """A stack of layers that generates text, with the interface of a KerasHub task.

    A layer that applies one function to each position, such as a dense layer, needs no extra method. Every other layer
    needs a method `decode(inputs, cache, start) -> outputs, cache`. A layer with a cache needs a method
    `initial_cache(batch_size, length)`.

    Args:
        body: built `GPipeLayer`, which maps tokens `[batch, length]` to logits `[batch, length, vocab_size]`.
    """

    def __init__(self, body: gpipe_layer.GPipeLayer, sampler: LoopSampler) -> None:
        self._layers = body.stack
        self.variables, self.sampler = body.variables, sampler

    def call_with_cache(self, token_ids: tf.Tensor, cache: Any, cache_update_index: Any) -> tuple:
        """Return logits `[batch, n, vocab_size]` and the new cache.

        Args:
            token_ids: int32 `[batch, n]`.
            cache_update_index: position of `token_ids[:, 0]` in the texts.
        """
        x, found = token_ids, []
        for layer, old in zip(self._layers, cache):
            if hasattr(layer, 'decode'):
                x, old = layer.decode(x, old, cache_update_index)
            else:
                x = layer(x, training=False)
            found.append(old)
        return x, tuple(found)

    def generate_step(self, inputs: dict[str, tf.Tensor], stop_token_ids: tuple[int, ...] | None = None) -> dict:
        """Continue the prompts of a batch.

        Args:
            inputs: 'token_ids', int32 `[batch, length]`, and 'padding_mask', which is 1 where a prompt has a token.
        """
        tokens, mask = inputs['token_ids'], tf.cast(inputs['padding_mask'], tf.bool)
        empty = tuple(layer.initial_cache(*tokens.shape) if hasattr(layer, 'initial_cache') else ()
                      for layer in self._layers)
        _, cache = self.call_with_cache(tokens, empty, 0)

        def next_logits(prompt, cache, index):
            logits, cache = self.call_with_cache(prompt[:, index - 1, tf.newaxis], cache, index - 1)
            return logits[:, 0], None, cache

        index = tf.reduce_min(tf.reduce_sum(tf.cast(mask, tf.int32), 1))
        tokens = self.sampler(next=next_logits, prompt=tokens, cache=cache, index=index, mask=mask,
                              stop_token_ids=stop_token_ids)
        return {'token_ids': tokens, 'padding_mask': _before_end(tokens, mask, stop_token_ids)}


def _before_end(tokens, mask, stop_token_ids):
    """Return a mask that covers each text and its end token."""
    is_stop = tf.reduce_any(tokens[..., tf.newaxis] == tf.constant(stop_token_ids or [-1], tokens.dtype), -1)
    return tf.cumsum(tf.cast(is_stop & ~mask, tf.int32), 1, exclusive=True) == 0


class _Texts:
    """A writer of texts that divides prompts into one group per device."""

    def __init__(self, body, tokenizer, task, sampler, read):
        self._task, self._tokenizer, self._sampler = task, tokenizer, sampler
        self._states = [(variable, np.asarray(variable)) for variable in sampler.variables]
        num_groups = len({stage.device for stage in body.stages})
        self._generate = pipelined_generation.PipelinedGeneration(task, body.stages, num_groups, body.jit_compile, read)

    def _generated(self, inputs):
        """Generate texts for `inputs`, and return a dictionary with their tokens and masks."""
        variable_placement.assign(self._states)  # so equal inputs give equal results in every call
        with pipelined_generation.replaced(self._task, {'sampler': self._sampler}):
            return self._generate(inputs, self._tokenizer.stop_ids)


class PromptedTexts(_Texts):
    """A writer that continues prompts with a language model.

    Args:
        body: built `GPipeLayer`. Its layers fit `StackTask`, or its model is a KerasHub task.
        context_length: largest number of tokens of a prompt and its continuation together.
    """

    def __init__(self, body: gpipe_layer.GPipeLayer, tokenizer: Any, context_length: int, sampling: Sampling,
                 read: Callable = variable_placement.read_variable) -> None:
        super().__init__(body, tokenizer, *_task_and_sampler(body, sampling), read)
        self._context_length = context_length

    def texts(self, prompts: Sequence[str], num_tokens: int) -> list[str]:
        """Return a continuation of each prompt. Equal calls return equal texts.

        Args:
            num_tokens: largest number of tokens of a continuation. A continuation may end earlier.

        Raises:
            ValueError: a prompt fills the context.
        """
        tokens = [tokenization.prompt_tokens(self._tokenizer, prompt) for prompt in prompts]
        self._require_room(tokens)
        inputs = self._rows(tokens, min(self._context_length, max(map(len, tokens)) + num_tokens))
        found = self._generated(inputs)
        return [self._text(known, written, mask, num_tokens) for known, written, mask in zip(
            tokens, found['token_ids'].numpy(), found['padding_mask'].numpy())]

    def shown(self, prompt: str, text: str) -> str:
        """Return the prompt and its continuation as one text."""
        return prompt + text

    def _rows(self, tokens, length):
        """Return the prompts as rows of equal length, with masks."""
        filler = next(token for token in range(len(self._tokenizer.stop_ids) + 1)
                      if token not in self._tokenizer.stop_ids)  # samplers look for end tokens after prompts
        rows = np.full([len(tokens), length], filler, np.int32)
        mask = np.zeros([len(tokens), length], np.int32)
        for row, known in enumerate(tokens):
            rows[row, :len(known)], mask[row, :len(known)] = known, 1
        return {'token_ids': rows, 'padding_mask': mask}

    def _require_room(self, tokens):
        for number, known in enumerate(tokens, 1):
            if len(known) >= self._context_length:
                raise ValueError(
                    f'Prompt {number} has {len(known) - len(self._tokenizer.start_ids)} tokens, which leaves no room '
                    f'among the {self._context_length} that the model was trained on. Give a shorter prompt.')

    def _text(self, known, tokens, mask, num_tokens):
        places = slice(len(known), len(known) + num_tokens)
        written = [token for token in tokens[places][mask[places].astype(bool)].tolist()
                   if token not in self._tokenizer.stop_ids]
        return tokenization.continuation(self._tokenizer, known, written)


def _task_and_sampler(body, sampling):
    if body.model is None:
        sampler = LoopSampler(sampling)
        return StackTask(body, sampler), sampler
    if not hasattr(body.model, 'generate_step'):
        raise ValueError(f'{type(body.model).__name__} {body.model.name!r} does not generate text. Use a body whose '
                         "model is a task of KerasHub, such as KerasHubModel with head='causal_lm'.")
    return body.model, sampling.keras_hub_sampler(body.output_of_one_example.shape[-1])


class TargetTexts(_Texts):
    """A writer that generates targets with a sequence-to-sequence model of KerasHub."""

    def __init__(self, body: gpipe_layer.GPipeLayer, tokenizer: hub_tokenizer.KerasHubTokenizer, source_length: int,
                 target_length: int, sampling: Sampling, read: Callable = variable_placement.read_variable) -> None:
        sampler = sampling.keras_hub_sampler(body.output_of_one_example.shape[-1])
        super().__init__(body, tokenizer, body.model, sampler, read)
        self._source_length, self._target_length = source_length, target_length
        self._preprocessor = tokenizer.preprocessor(
            'Seq2SeqLMPreprocessor', encoder_sequence_length=source_length, decoder_sequence_length=target_length)

    def texts(self, sources: Sequence[str], num_tokens: int) -> list[str]:
        """Generate a target for each source text. Equal calls return equal targets.

        Args:
            num_tokens: largest number of tokens of a target. A target may end earlier.

        Raises:
            ValueError: a source is empty or too long.
        """
        self._require_room(sources)
        inputs = self._preprocessor.generate_preprocess(list(sources))
        start = int(np.sum(inputs['decoder_padding_mask'], 1).min())
        length = min(self._target_length, start + num_tokens)
        inputs = {name: part[:, :length] if name.startswith('decoder') else part for name, part in inputs.items()}
        return [str(text) for text in self._preprocessor.generate_postprocess(self._generated(inputs))]

    def shown(self, source: str, target: str) -> str:
        """Return a line with the source and the target."""
        return f'{source} -> {target}'

    def _require_room(self, sources):
        num_special = int(np.sum(self._preprocessor.generate_preprocess([''])['encoder_padding_mask']))
        room = self._source_length - num_special
        for number, source in enumerate(sources, 1):
            num_tokens = len(self._tokenizer.encode(tf.constant(source)))
            if not 0 < num_tokens <= room:
                raise ValueError(f'Prompt {number} has {num_tokens} tokens, but the model reads 1 to {room}. Give a '
                                 'text of so many, or train with a larger input.sequence_length.')


def reads_sources(input_spec: Any) -> bool:
    """Return whether an input with these `tf.TensorSpec`s has source texts."""
    return isinstance(input_spec, dict) and 'encoder_token_ids' in input_spec


def text_writer(body: gpipe_layer.GPipeLayer, tokenizer: Any, input_spec: Any, sampling: Sampling,
                read: Callable = variable_placement.read_variable) -> PromptedTexts | TargetTexts:
    """Return `TargetTexts` if the input has source texts, else `PromptedTexts`.

    Raises:
        ValueError: the body does not generate text, or a field of `sampling` is out of its range.
    """
    if reads_sources(input_spec):
        lengths = [input_spec[f'{side}_token_ids'].shape[1] for side in ('encoder', 'decoder')]
        return TargetTexts(body, tokenizer, *lengths, sampling, read)
    return PromptedTexts(body, tokenizer, tf.nest.flatten(input_spec)[0].shape[1], sampling, read)

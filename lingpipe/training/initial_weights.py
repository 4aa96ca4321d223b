"""The initial weights of a new training run, from a preset or checkpoints. Rules for checkpoints are as in Lingvo.

    train.init_from_checkpoint_rules = {'logs/a/train/ckpt-100': ([('(.*)', '%s')], ['head/'])}

A rule is a pair of a regular expression and a name in the checkpoint. The expression matches names of the model's
variables, as `re.match` does. The groups of the match replace each '%s' in the name. Only the first rule that matches
applies. The list after the rules has expressions for variables that are not read. If several checkpoints give a value
for a variable, the last of these checkpoints applies.
"""

import operator
import os
import re
from collections.abc import Sequence

import keras

from lingpipe import hyperparams, wording
from lingpipe.cluster import waits
from lingpipe.pipeline import gpipe_layer
from lingpipe.training import checkpoint_contents, errors

_FIELD = 'train.init_from_checkpoint_rules'
_MODEL = checkpoint_contents.MODEL


def validate(train: hyperparams.Params) -> None:
    """Raise ValueError if `init_from_checkpoint` or `init_from_checkpoint_rules` of `train` is invalid."""
    if train.init_from_checkpoint and train.init_from_checkpoint_rules:
        raise ValueError(f"train.init_from_checkpoint and {_FIELD} were both given. Give one of them: ([('(.*)', "
                         "'%s')], []) are the rules for all variables of a checkpoint.")
    if not isinstance(train.init_from_checkpoint, (str, type(None))):
        raise ValueError(f'train.init_from_checkpoint={train.init_from_checkpoint!r} is not possible: it must be a '
                         "path or None. Set it to one, such as 'logs/a/train/ckpt-100'.")
    try:
        for rules, ignored in train.init_from_checkpoint_rules.values():
            for pattern, name in rules:
                operator.mod(name, ('',) * re.compile(pattern).groups)  # fails unless each group has a '%s'
            if isinstance(ignored, str):
                raise ValueError(f'{ignored!r} is not a list')
            for pattern in ignored:
                re.compile(pattern)
    except (AttributeError, TypeError, ValueError, re.error) as error:
        raise ValueError(f'{_FIELD}={train.init_from_checkpoint_rules!r} is not possible: {error}. It must be a '
                         'dictionary from paths of checkpoints to pairs of rules and expressions to leave alone. Write '
                         "it like {'logs/a/train/ckpt-100': ([('(.*)', '%s')], ['head/'])}, or {} for none.") from error


def load(train: hyperparams.Params, body: gpipe_layer.GPipeLayer) -> None:
    """Load the initial weights of a pipeline. If checkpoints are given, print which variables they do not set.

    Raises:
        TrainingError: a checkpoint cannot be read, or its names or shapes do not fit the model or the rules.
        ValueError: a regular expression matches no variable of the model.
    """
    body.source.load_weights()
    if not (train.init_from_checkpoint or train.init_from_checkpoint_rules):
        return
    named = checkpoint_contents.model_variables(body)
    if train.init_from_checkpoint:
        path = os.path.expanduser(train.init_from_checkpoint)
        sources = {path: _equal_names(path, named)}
    else:
        sources = {os.path.expanduser(path): _mapped(named, *entry)
                   for path, entry in train.init_from_checkpoint_rules.items()}
    for path, names in sources.items():
        with waits.for_checkpoint(path, 'read', train.checkpoint_timeout_seconds):
            _read(str(path).removesuffix('.index'), names, named)
    loaded = {name for names in sources.values() for name in names}
    print(f'{len(loaded)} of {len(named)} variables come from {" and ".join(map(str, sources))}'
          + (f'; these are newly initialised: {", ".join(name for name in named if name not in loaded)}.'
             if len(loaded) < len(named) else '.'))


def _equal_names(path: str, named: dict[str, keras.Variable]) -> dict[str, str]:
    """Pair each variable with the checkpoint's variable of the same name."""
    stored = checkpoint_contents.stored_shapes(str(path).removesuffix('.index'))
    found = {name: name for name in named if _MODEL + name in stored}
    if not found:
        raise errors.TrainingError(f'train.init_from_checkpoint: {path} has no variable of this model, only such as '
                                   f'{next(iter(stored), None)!r}. Pair them with the model\'s by {_FIELD}.')
    checkpoint_contents.require_low_rank_parts(path, stored, named)
    return found


def _mapped(named: dict[str, keras.Variable], rules: Sequence[tuple[str, str]],
            ignored: Sequence[str]) -> dict[str, str]:
    """Pair the variables with names in the checkpoint by `rules`."""
    for pattern in [*(pattern for pattern, _ in rules), *ignored]:
        if not any(re.match(pattern, name) for name in named):
            raise ValueError(f'{_FIELD}: {pattern!r} matches no variable of the model; '
                             f'{wording.what_there_is(pattern, named)}. Change it, or leave it out.')
    found = {}
    for name in named:
        if not any(re.match(pattern, name) for pattern in ignored):
            matches = ((re.match(pattern, name), wanted) for pattern, wanted in rules)
            match, wanted = next(((match, wanted) for match, wanted in matches if match), (None, ''))
            if match:
                found[name] = wanted % match.groups()
    return found


def _read(path: str, names: dict[str, str], named: dict[str, keras.Variable]) -> None:
    stored = checkpoint_contents.stored_shapes(path)
    keys = {name: _MODEL + other if _MODEL + other in stored else other for name, other in names.items()}
    for name, key in keys.items():
        if key not in stored:
            known = [other.removeprefix(_MODEL) for other in stored if other.startswith(_MODEL)]
            raise errors.TrainingError(
                f'{_FIELD}: {path} has no variable {key!r} for {name}{wording.did_you_mean(key, known)} Change the '
                f'rule, or name {name} among those to be left alone.')
        if stored[key] != list(named[name].shape):
            raise errors.TrainingError(
                f'{path} has {key} of shape {stored[key]}, but {name} of this model has {list(named[name].shape)}. To '
                'initialise it instead, '
                f"set {_FIELD}={{{path!r}: ([('(.*)', '%s')], [{name.rpartition('/')[0] + '/'!r}])}}.")
    checkpoint_contents.read_variables(path, [(key, named[name]) for name, key in keys.items()])

from lingpipe.input import python_tokens_dataset, text_records


def records(split):
    return [record.fields for record in text_records.from_tfds('python_tokens', split, None, ['text', 'tokens', 'labels'])]


def test_splits_share_no_statement_and_have_all_labels():
    splits = {split: records(split) for split in ('train', 'dev', 'test')}
    train, dev, test = ({row['text'] for row in rows} for rows in splits.values())
    assert not train & dev and not train & test and not dev & test
    for split, most in (('train', 4000), ('dev', 400), ('test', 400)):
        assert most / 2 < len(splits[split]) <= most
        assert len({label for row in splits[split] for label in row['labels']}) == 9
        assert all(len(row['tokens']) == len(row['labels']) and ' '.join(row['tokens']) == row['text'] for row in splits[split])


def test_names_are_told_apart_by_what_stands_beside_them():
    tokens = 'def f ( x , y = 1.5 ) : return x . y . z ( w , key = "k" )'.split()
    assert python_tokens_dataset.labels_of(tokens) == [
        'keyword', 'definition', 'operator', 'name', 'operator', 'argument', 'operator', 'number', 'operator', 'operator',
        'keyword', 'name', 'operator', 'attribute', 'operator', 'call', 'operator', 'name', 'operator', 'argument', 'operator',
        'string', 'operator']


def test_statements_are_those_of_the_module_tokenize(tmp_path):
    path = tmp_path / 'module.py'
    path.write_text('x = 1\nif x:  # a comment\n    call(x,\n         y)\n    s = "two words"\n    z = f(x) + .5\n')
    assert list(python_tokens_dataset._statements(path)) == ['call ( x , y )', 'z = f ( x ) + .5']

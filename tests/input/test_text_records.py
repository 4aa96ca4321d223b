import json

import keras
import pytest
import tensorflow_datasets as tfds

from lingpipe.input import text_records
from tests.input import small_datasets


class Reviews(small_datasets.SmallDataset):
    """Three texts, one of them without a class."""

    features = tfds.features.FeaturesDict({
        'text': tfds.features.Text(), 'label': tfds.features.ClassLabel(names=['poor', 'fine'])})

    def examples(self, split):
        return [{'text': 'é', 'label': 1}, {'text': 'b', 'label': 0}, {'text': 'c', 'label': -1}]


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def fields_of(*arguments):
    return [record.fields for record in text_records.from_files(*arguments)]


def test_json_lines_are_read_with_their_places(tmp_path):
    rows = [{'text': 'a\nb', 'label': 1}, {'text': 'é "c"', 'label': None}]
    path = write(tmp_path / 'a.jsonl', '\ufeff' + json.dumps(rows[0]) + '\r\n\n' + json.dumps(rows[1]))
    records = list(text_records.from_files(path))
    assert [record.fields for record in records] == rows
    assert [record.place for record in records] == [f'{path}, line 1', f'{path}, line 3']


def test_csv_fields_hold_commas_quotes_and_line_ends(tmp_path):
    long = 'x' * 200_000
    path = write(tmp_path / 'a.csv', f'\r\ntext,label\r\n"a, ""b""\r\nc",1\r\n\r\n{long},2\r\nd,"3"')
    records = list(text_records.from_files(path))
    assert [record.fields for record in records] == [
        {'text': 'a, "b"\r\nc', 'label': '1'}, {'text': long, 'label': '2'}, {'text': 'd', 'label': '3'}]
    assert [record.place.rpartition(' ')[2] for record in records] == ['3', '6', '7']


def test_files_of_a_pattern_are_read_in_the_order_of_their_paths(tmp_path):
    paths = [write(tmp_path / name, content) for name, content in (('b.tsv', 't\tl\nc\t2\n'), ('a.tsv', 't\tl\na\t1\n'))]
    expected = [{'t': 'a', 'l': '1'}, {'t': 'c', 'l': '2'}]
    assert fields_of(str(tmp_path / '*.tsv')) == expected and fields_of(paths, 'tsv') == expected[::-1]


@pytest.mark.parametrize(('name', 'content', 'line', 'words'), [
    ('a.jsonl', '{"text": "a"}\n{"text":', 2, 'is not JSON, but each line must be one object (Expecting value at column 9): {"text":'),
    ('a.jsonl', '"a"', 1, 'is not a JSON object, but each line must be one: "a"'),
    ('a.jsonl', '[{"text": "a"}, {"text": "b"}]', 1, 'is a JSON array, but each line must be one object: [{"text'),
    ('a.jsonl', '[' * 10**5, 1, 'cannot be read (maximum recursion depth exceeded'),
    ('a.jsonl', '9' * 5000, 1, 'cannot be read (Exceeds the limit (4300 digits)'),
    ('a.csv', 'text,label\na,b,c\n', 2, "has 3 columns, not the 2 of ['text', 'label']: ['a', 'b', 'c']"),
    ('a.csv', 'text,label\n"a\nb\nc"d,1\n', 2, "is not valid CSV (',' expected after '\"'); a quote may be open, up to line 4."),
    ('a.csv', 'text,label\na,1\n"b,1\n', 3, 'is not valid CSV (unexpected end of data)')])
def test_what_cannot_be_read_is_named(tmp_path, name, content, line, words):
    path = write(tmp_path / name, content)
    record = next(record for record in text_records.from_files(path) if record.problem)
    assert record.place == f'{path}, line {line}' and record.problem.startswith(words)


def test_a_bad_record_says_up_to_which_line_a_quote_is_open(tmp_path):
    path = write(tmp_path / 'a.csv', 'text,label\na,1\n"b,2\nc,3\nd,4\n')
    good, bad = text_records.from_files(path)
    assert not good.problem and bad.place == f'{path}, line 3'
    assert bad.problem == 'is not valid CSV (unexpected end of data); a quote may be open, up to line 5.'


@pytest.mark.parametrize('name', ['a.jsonl', 'a.csv', 'a.txt'])
@pytest.mark.parametrize('encoding', ['utf-16', 'utf-16-le', 'utf-16-be'])
def test_text_in_utf_16_is_refused(tmp_path, name, encoding):
    path = write(tmp_path / name, '{"text": "a"}\n'.encode(encoding))
    with pytest.raises(ValueError, match='is text in UTF-16, not in UTF-8. Convert it'):
        list(text_records.from_files(path))


def test_what_follows_a_bad_csv_row_is_read(tmp_path):
    path = write(tmp_path / 'a.csv', 'text,label\n"a"b,1\nc,2\n')
    bad, good = text_records.from_files(path)
    assert bad.problem and good.fields == {'text': 'c', 'label': '2'}


def test_a_folder_is_read_as_keras_reads_it(tmp_path):
    for name in ('poor/b.txt', 'poor/a.txt', 'fine/deep/c.txt', 'fine/d.txt', '.git/e.txt'):
        write(tmp_path / name, f'text of {name}')
    write(tmp_path / 'fine/notes.md', 'no text')
    found = {(fields['text'], fields['label']) for fields in fields_of(str(tmp_path))}
    expected = keras.utils.text_dataset_from_directory(str(tmp_path), shuffle=False, batch_size=1)
    assert found == {(text[0].numpy().decode(), expected.class_names[int(label[0])]) for text, label in expected}
    (tmp_path / 'fine/._d.txt').write_bytes(b'\0\5\26\7')  # what macOS adds to archives
    assert found == {(fields['text'], fields['label']) for fields in fields_of(str(tmp_path))}


def test_text_files_without_classes_are_plain_texts(tmp_path):
    for name in ('b.txt', 'a.txt'):
        write(tmp_path / name, name)
    assert fields_of(str(tmp_path)) == fields_of(str(tmp_path / '*.txt')) == [{'text': 'a.txt'}, {'text': 'b.txt'}]


def test_tfds_gives_texts_and_names_of_classes(tmp_path):
    records = list(text_records.from_tfds('reviews', 'train', str(tmp_path), ['text', 'label']))
    assert sorted((record.fields['text'], record.fields['label']) for record in records) == [
        ('b', 'poor'), ('c', -1), ('é', 'fine')]
    assert records[2].place == "record 2 of split 'train' of 'reviews'"
    assert text_records.class_names_of_tfds('reviews', str(tmp_path), 'label') == ['poor', 'fine']
    with pytest.raises(ValueError, match="'reviews' has no feature 'txt'; did you mean text"):
        list(text_records.from_tfds('reviews', 'train', str(tmp_path), ['txt']))


@pytest.mark.parametrize(('name', 'file_format', 'words'), [
    ('b.jsonl', None, "b.jsonl' is not there"), ('a.dat', None, "the ending of '.*a.dat' tells no format"),
    ('a.dat', 'jason', "format='jason' is unknown")])
def test_unknown_files_and_formats_are_refused(tmp_path, name, file_format, words):
    write(tmp_path / 'a.dat', '{}')
    with pytest.raises(ValueError, match=words):
        list(text_records.from_files(str(tmp_path / name), file_format))
    assert fields_of(str(tmp_path / 'a.dat'), 'jsonl') == [{}]


@pytest.mark.parametrize('files', [5, [5]])
def test_files_that_are_not_paths_are_refused(files):
    with pytest.raises(ValueError, match='^files: .*5.* is not possible: it must be a path'):
        list(text_records.from_files(files))


def test_columns_that_are_named_twice_are_refused(tmp_path):
    (tmp_path / 'a.csv').write_text('text,label,text\none,1,two\n')
    with pytest.raises(ValueError, match="a.csv' has more than one column 'text' in its first row. Rename one"):
        list(text_records.from_files(str(tmp_path / 'a.csv')))

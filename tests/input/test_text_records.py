import json

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
    path.write_bytes(content.encode())
    return str(path)


def fields_of(files):
    return [record.fields for record in text_records.from_files(files)]


def test_json_lines_are_read_with_their_places(tmp_path):
    rows = [{'text': 'a\nb', 'label': 1}, {'text': 'é "c"', 'label': None}]
    path = write(tmp_path / 'a.jsonl', '\ufeff' + json.dumps(rows[0]) + '\r\n\n' + json.dumps(rows[1]))
    records = list(text_records.from_files(path))
    assert [record.fields for record in records] == rows
    assert [record.place for record in records] == [f'{path}, line 1', f'{path}, line 3']


def test_csv_fields_hold_commas_quotes_and_line_ends(tmp_path):
    path = write(tmp_path / 'a.csv', 'text,label\r\n"a, ""b""\r\nc",1\r\n\r\nd,"3"')
    records = list(text_records.from_files(path))
    assert [record.fields for record in records] == [{'text': 'a, "b"\r\nc', 'label': '1'}, {'text': 'd', 'label': '3'}]
    assert [record.place.rpartition(' ')[2] for record in records] == ['3', '5']


def test_csv_fields_may_be_long_but_have_to_be_utf_8(tmp_path):
    assert fields_of(str(write(tmp_path / 'a.csv', f'text\n{"a" * 200_000}\n'))) == [{'text': 'a' * 200_000}]
    (tmp_path / 'b.csv').write_bytes('text\ncaf\u00e9\n'.encode('latin-1'))
    with pytest.raises(ValueError, match='b.csv.* is not UTF-8 .*Convert it'):
        list(text_records.from_files(str(tmp_path / 'b.csv')))


def test_files_are_read_in_the_order_of_their_paths(tmp_path):
    for name, content in (('b.csv', 't,l\nc,2\n'), ('a.csv', 't,l\na,1\n')):
        write(tmp_path / name, content)
    (tmp_path / 'inner').mkdir()
    assert fields_of(str(tmp_path)) == fields_of(str(tmp_path / '*.csv')) == [{'t': 'a', 'l': '1'}, {'t': 'c', 'l': '2'}]


@pytest.mark.parametrize(('name', 'content', 'words'), [
    ('a.jsonl', '{"text": "a"}\n{"text":', 'line 2, is not JSON .Expecting value.*, but each line must be one object'),
    ('a.jsonl', '[{"text": "a"}, {"text": "b"}]', 'line 1, is not a JSON object, but each line must be one: .*text'),
    ('a.csv', 'text,label\na,b,c\n', "line 2, has more or fewer columns than .'text', 'label'."),
    ('a.csv', 'text,label\na\n', "line 2, has more or fewer columns than .'text', 'label'."),
    ('a.csv', 'text,label\n"a"d,1\n', "after line 1, is not valid CSV .',' expected after"),
    ('a.csv', 'text,label\na,1\n"b,1\n', 'after line 2, is not valid CSV .unexpected end of data')])
def test_what_cannot_be_read_is_named(tmp_path, name, content, words):
    path = write(tmp_path / name, content)
    with pytest.raises(ValueError, match=f'^{path}, {words}.* Repair the record'):
        list(text_records.from_files(path))


def test_tfds_gives_texts_and_names_of_classes(tmp_path):
    records = list(text_records.from_tfds('reviews', 'train', str(tmp_path), ['text', 'label']))
    assert sorted((record.fields['text'], record.fields['label']) for record in records) == [
        ('b', 'poor'), ('c', -1), ('é', 'fine')]
    assert records[2].place == "record 2 of split 'train' of 'reviews'"
    assert text_records.class_names_of_tfds('reviews', str(tmp_path), 'label') == ['poor', 'fine']
    with pytest.raises(ValueError, match="'reviews' has no feature 'txt'; did you mean text"):
        list(text_records.from_tfds('reviews', 'train', str(tmp_path), ['txt']))


@pytest.mark.parametrize(('name', 'words'), [
    ('b.jsonl', "b.jsonl' names no file"), ('a.dat', "the ending of '.*a.dat' tells no format"),
    ('a.csv', "a.csv' has a column twice in its first row: .*Rename one")])
def test_unknown_files_and_columns_that_are_named_twice_are_refused(tmp_path, name, words):
    write(tmp_path / 'a.dat', '{}')
    write(tmp_path / 'a.csv', 'text,label,text\none,1,two\n')
    with pytest.raises(ValueError, match=words):
        list(text_records.from_files(str(tmp_path / name)))

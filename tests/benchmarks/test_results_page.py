"""The page of results has the tables of the CSV files, and every file says what measured it."""

import re
import sys

import pytest


@pytest.fixture
def results_page(load_benchmark):
    return load_benchmark('results_page')


def test_the_page_is_built_from_the_files(results_page):
    page = results_page.PAGE.read_text('utf-8')
    assert results_page.built(page) == page, 'Run python -m benchmarks.results_page.'


def test_every_file_is_on_the_page_and_says_what_measured_it(results_page):
    page, files = results_page.PAGE.read_text('utf-8'), sorted(results_page.RESULTS.glob('*.csv'))
    assert len(files) > 20
    for path in files:
        about, rows = results_page.read(path)
        assert list(about) == ['command', 'processor', 'versions', 'date'], path
        assert re.fullmatch(r'\d{4}-\d\d-\d\d', about['date']) and about['command'].startswith('python -m benchmarks.')
        assert len({len(row) for row in rows}) == 1, path
        assert f'(../benchmarks/results/{path.name})' in page, path


def test_a_benchmark_writes_such_files(load_benchmark, results_page, tmp_path, monkeypatch):
    path = tmp_path / 'sums.csv'
    common = load_benchmark('support.common', f'--csv={path}')
    monkeypatch.setattr(sys, 'orig_argv', ['/bin/python', '-m', 'benchmarks.a', '--models=a b', f'--csv={path}'])
    common.report(common.Table(['chips', 'ms, ring'], [['1,024', 4.09], ['4', 'no']]), 'A sentence.',
                  common.Table(['one'], [[1]]), other_versions='PyTorch 9.8')
    about, rows = results_page.read(path)
    assert about['command'] == "python -m benchmarks.a '--models=a b'" and about['versions'].endswith(', PyTorch 9.8')
    assert re.fullmatch(r'.+, \d+ cores', about['processor'])
    assert rows == [['chips', 'ms, ring'], ['1024', '4.09'], ['4', 'no']]
    assert results_page.read(tmp_path / 'sums_2.csv')[1] == [['one'], ['1']]

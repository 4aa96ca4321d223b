"""The defects that the tests have to find fit the source, and what is found is told from what fails in any case."""

import pathlib

import pytest

_ROOT = pathlib.Path(__file__).parents[3]


@pytest.fixture(name='benchmark')
def benchmark_fixture(load_benchmark):
    return load_benchmark('equality.planted_bugs')


@pytest.fixture(name='checkout')
def checkout_fixture(tmp_path):
    """A checkout with one file of source and tests of it, of which one fails in any case."""
    for name, text in {
            'lingpipe/sums.py': 'def add(a, b):\n    return a + b\n',
            'tests/test_sums.py': 'from lingpipe import sums\n\ndef test_of_one():\n    assert sums.add(1, 0) == 1\n\n'
                                  'def test_of_two():\n    assert sums.add(1, 1) == 2\n',
            'tests/test_broken.py': 'def test_that_fails():\n    assert False\n'}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_the_text_of_every_defect_is_there_once_and_still_compiles(benchmark):
    for defect in benchmark.defects.DEFECTS:
        compile(benchmark.patched(defect, _ROOT), defect.file, 'exec')
        assert all((_ROOT / 'tests' / name).exists() for name in defect.tests.split()), defect.tests


@pytest.mark.parametrize('new, tests, found', [
    ('a - b', 'test_sums.py', 'tests/test_sums.py::test_of_two'),
    ('b + a', 'test_sums.py', None),
    ('a - b', 'test_broken.py', None)])
def test_a_defect_is_found_by_a_test_that_passes_without_it(benchmark, checkout, new, tests, found):
    before = (checkout / 'lingpipe/sums.py').read_text()
    defect = benchmark.defects.Defect('sums are wrong', 'sums.py', 'a + b', new, tests)
    assert benchmark.find(defect, checkout).test == found
    assert (checkout / 'lingpipe/sums.py').read_text() == before


def test_the_whole_suite_finds_what_the_tests_of_a_defect_do_not(benchmark, checkout):
    (checkout / 'tests/test_broken.py').write_text('def test_that_passes():\n    pass\n')
    defect = benchmark.defects.Defect('sums are wrong', 'sums.py', 'a + b', 'a - b', 'test_broken.py')
    assert benchmark.find(defect, checkout, whole_suite=True).test == 'tests/test_sums.py::test_of_two'


def test_a_defect_whose_text_or_tests_are_gone_is_an_error(benchmark, checkout):
    defect = benchmark.defects.Defect('sums are wrong', 'sums.py', 'a * b', 'a - b', 'test_sums.py')
    with pytest.raises(ValueError, match='occurs 0 times in lingpipe/sums.py'):
        benchmark.find(defect, checkout)
    with pytest.raises(benchmark.TestsNotRun, match='test_gone.py'):
        benchmark.find(defect._replace(old='a + b', tests='test_gone.py'), checkout)

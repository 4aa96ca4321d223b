"""The page of a run, read as a browser reads it, against what the run has written and printed."""

import base64
import re
import shutil
from html import parser

import pytest

from lingpipe.tools import report, trace
from lingpipe.training import logdir, planning, progress

VOID = {'meta', 'img'}


class Page(parser.HTMLParser):
    """Reads a page, and asserts that every element is closed by its own end tag."""

    def __init__(self, text):
        super().__init__()
        self.tags, self._open, self._texts = [], [], []
        self.sections, self.images = {'': self._texts}, {}  # what stands above the first heading
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == 'img':
            self.images.setdefault(list(self.sections)[-1], []).append(dict(attrs)['alt'])
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if self._open and self._open[-1] == 'h2':
            self.sections[data] = self._texts = []
        elif data.strip() and self._open[-1] != 'style':
            self._texts.append(data)

    def has(self, section, *texts):
        """Return whether all of some texts stand, whole, in a section."""
        return set(texts) <= set(self.sections[section])


def page_of(folder, params):
    return Page(report.Report(params, 'lingpipe', 'tiny_digits', str(folder)).text())


def with_test(tiny, **overrides):
    params = tiny.params(**overrides)
    params.Define('test', tiny.evaluation_inputs()['Test'], 'The input of Test.')
    return params


@pytest.fixture(scope='module')
def resumed(tiny, tmp_path_factory):
    """A run of 8 steps that went on to 12."""
    folder = tmp_path_factory.mktemp('resumed') / 'logs'
    for max_steps in (8, 12):
        run = tiny.train(folder, train__max_steps=max_steps, eval__interval_steps=4)
    text = with_test(tiny, train__max_steps=12, eval__interval_steps=4).ToText()
    (folder / 'control/params.txt').write_text(text)  # as the command has it, which knows the input of Test
    return run


@pytest.fixture(scope='module')
def page(resumed, tiny):
    return page_of(resumed.logdir, with_test(tiny))


def test_a_page_needs_no_other_file_and_no_script(page):
    assert not [tag for tag, _ in page.tags if tag in ('script', 'link', 'iframe', 'object')]
    addresses = [attributes[name] for _, attributes in page.tags for name in ('href', 'src') if name in attributes]
    assert addresses and all(address.startswith(('#', 'data:image/')) for address in addresses)
    ids = {attributes.get('id') for _, attributes in page.tags}
    assert {address[1:] for address in addresses if address.startswith('#')} <= ids


def test_curves_of_a_resumed_run_have_all_its_points(page, resumed, tiny):
    names = ['loss', 'accuracy', 'learning_rate', 'gradient_norm', 'images_per_second', 'bad_records']
    assert page.images['Curves'] == names[:-1]  # a line of zeros is not drawn
    assert re.search(r', trained from 20\d\d-\d\d-\d\d \d\d:\d\d to .* \(0:\d\d:\d\d h, pauses', ' '.join(page.sections['']))
    made = report.Report(with_test(tiny), 'lingpipe', 'tiny_digits', str(resumed.logdir))
    assert all([step for step, _ in made._training.scalars[name]] == [4, 8, 12] for name in names)
    test = made._evaluations['test'].scalars
    assert {name: points[-1] for name, points in test.items()} == {
        name: (12, pytest.approx(value)) for name, value in resumed.results['Test'].items()}


def test_partitions_are_those_of_the_analysis(page, resumed):
    layers, partitions = (resumed.logdir / 'control/model_analysis.txt').read_text().split('\n\n', 1)
    assert page.has('Partitions', layers, partitions)


def test_memory_is_that_of_the_plan(page, tiny):
    assert page.has('Memory', str(planning.plan(tiny.params())))
    assert page.images['Memory'] == ['Memory of each device']
    assert re.fullmatch("lingpipe plan --model=tiny_digits --logdir=.* --accelerator=v5e  # with the run's "
                        '--model_params_override', page.sections['Memory'][-1])


def test_without_a_trace_the_step_is_simulated(page):
    assert page.images['Timeline of a step'] == ['A simulated step']
    assert any(text.startswith('lingpipe trace ') for text in page.sections['Timeline of a step'])


def test_configuration_and_versions_are_those_of_the_run(page, resumed):
    text = (resumed.logdir / 'control/params.txt').read_text()
    assert page.has('Configuration', text, f'{len(text.splitlines())} params of this run')
    versions = dict(line.split(' ', 1) for line in (resumed.logdir / 'control/versions.txt').read_text().splitlines())
    assert {'processor', 'python', 'keras', 'numpy'} <= set(versions)
    table, = page.sections['Hardware and versions']
    assert all(re.search(rf'^{name} +{re.escape(version)} ', table, re.MULTILINE) for name, version in versions.items())


def test_a_traced_step_is_shown_as_its_trace_shows_it(tiny, tmp_path):
    trace.Trace(tiny.params(), tmp_path).run(1)
    source, = (attributes['src'] for tag, attributes in page_of(tmp_path, tiny.params()).tags
               if tag == 'img' and attributes['alt'] == 'A measured step')
    assert base64.b64decode(source.partition(',')[2]) == (tmp_path / 'trace/timeline.png').read_bytes()


def test_an_empty_folder_says_which_commands_fill_it(tiny, tmp_path):
    found = page_of(tmp_path, tiny.params())
    for section, mode in {'Curves': 'train', 'Partitions': 'train', 'Memory': 'plan', 'Timeline of a step': 'trace',
                          'Configuration': 'train'}.items():
        assert any(text.startswith(f'lingpipe {mode} --model=tiny_digits --logdir={tmp_path}')
                   for text in found.sections[section]), section
    assert found.has('Configuration', tiny.params().ToText())


HOSTILE = '</pre><script>alert(1)</script><img src=x onerror="y">&amp;\' \ud800'


def test_hostile_texts_are_shown_as_they_are(resumed, tiny, tmp_path):
    folder = shutil.copytree(resumed.logdir, tmp_path / '<b>&"')
    params = with_test(tiny)
    params.task.name = HOSTILE
    (folder / 'control/params.txt').unlink()
    with (folder / 'control/versions.txt').open('a') as file:
        file.write('package<i> <b>1</b>\n')
    found = page_of(folder, params)
    assert not {'script', 'b', 'i'} & {tag for tag, _ in found.tags}
    assert any(re.search('package<i> +<b>1</b>', text) for text in found.sections['Hardware and versions'])
    assert all('onerror' not in attributes for _, attributes in found.tags)
    assert found.has('', f'{HOSTILE} · LingPipe'.replace('\ud800', '?'))
    assert any('</pre><script>alert(1)</script><img src=x' in text for text in found.sections['Configuration'])
    assert any(str(folder) in text for text in found.sections['Memory'])


def test_texts_that_a_model_wrote_are_shown_newest_first(tiny, tmp_path):
    writer = progress.SummaryWriter(logdir.LogDir(tmp_path).train)
    for step in range(1, 8):
        writer.text('sample', f'text of {step}\n  <i>{HOSTILE[:40]}', step)
    writer.flush()
    texts = page_of(tmp_path, tiny.params()).sections['Samples']
    assert [text for text in texts if text.startswith('Step')] == [f'Step {step}' for step in (7, 6, 5, 4, 3)]
    assert f'text of 7\n  <i>{HOSTILE[:40]}' in texts

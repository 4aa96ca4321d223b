"""The page of a run in a real browser, without a window."""

import collections
import re
import subprocess

import numpy as np
import pytest
from PIL import Image, ImageColor

from lingpipe.planner import picture
from lingpipe.tools.report import report
from tests import needs

WIDTH, HEIGHT = 1100, 3000


def browse(folder, page, *flags):
    """Opens a page, and returns what the browser prints."""
    command = [needs.CHROMIUM, '--headless', '--no-sandbox', '--disable-gpu', '--hide-scrollbars',
               f'--user-data-dir={folder}/browser', f'--window-size={WIDTH},{HEIGHT}', *flags, page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


@pytest.fixture(scope='module', name='page')
def page_fixture(tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp('browsed')
    run = tiny.train(folder / 'logs', train__max_steps=4)
    page = folder / 'report.html'
    page.write_text(report.Report(tiny.params(), report.Command('lingpipe', 'tiny_digits', str(run.logdir))).text())
    return page


@needs.chromium
def test_a_browser_shows_the_whole_page(page, tmp_path):
    browse(tmp_path, page, f'--screenshot={tmp_path}/page.png')
    shown = np.asarray(Image.open(tmp_path / 'page.png').convert('RGB'))
    assert shown.shape == (HEIGHT, WIDTH, 3)
    pixels = collections.Counter(map(tuple, shown.reshape(-1, 3).tolist()))
    for kind in ('weights', 'slots', 'working'):  # the bars of the memory of each device
        assert pixels[ImageColor.getrgb(picture.LEGEND[kind][1])] > 50, kind
    columns = np.flatnonzero((shown != shown[0, 0]).any(axis=(0, 2)))
    assert columns[0] > 5 and columns[-1] < WIDTH - 5  # nothing is cut off at the sides


@needs.chromium
def test_a_browser_reads_all_headings_and_links(page, tmp_path):
    text = browse(tmp_path, page, '--dump-dom')
    headings, links, anchors = (re.findall(pattern, text) for pattern in (r'<h2', r'href="#([^"]+)"', r' id="([^"]+)"'))
    assert len(headings) >= 5 and links and set(links) <= set(anchors)

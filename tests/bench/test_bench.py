"""The benchmark runs, and its corpus is what it says it is. How long anything takes is not tested here."""

from __future__ import annotations

import json
import re
import statistics
from collections import Counter
from importlib import resources
from pathlib import Path
from random import Random

import pytest
import zstandard

from bench import peers, show
from bench.__main__ import MEASUREMENTS, measure
from bench.corpus import Corpus, Turn, json_size
from bench.prose import Prose
from bench.results import Result, at_least, at_most, below, paired, spread
from bench.scale import Scale, files_size, scratch
from bench.syllables import COLUMNS, Syllables
from bench.words import vocabulary
from clew.log import fold
from clew.messages import plain_text
from tests.sampling import sampled
from tests.servers.temporal import binary as temporal_program

TINY = Scale(
    turns=(2, 12),
    opened=(12,),
    repeats=2,
    reads=2,
    sessions=3,
    session_turns=2,
    threads=5,
    files=60,
    files_bytes=200_000,
    agent_turns=3,
    agent_files=60,
    agent_files_bytes=200_000,
    model_seconds=0.001,
    many_threads=600,
    long_turns=60,
)


def words_of_the_dictionary() -> set[str]:
    dictionary = resources.files("clew.log").joinpath("dictionary-1.zstd").read_bytes()
    return {word.decode().lower() for word in re.findall(rb"[A-Za-z]+", dictionary)}


@pytest.fixture(scope="module")
def conversation() -> list[Turn]:
    return Corpus().conversation(300)


def test_a_corpus_is_made_of_its_seed_alone() -> None:
    assert Corpus(7).conversation(5) == Corpus(7).conversation(5)
    assert Corpus(7).conversation(5) != Corpus(8).conversation(5)


def test_no_row_and_no_sentence_comes_twice() -> None:
    corpus = Corpus()
    turns = [turn for _ in range(4) for turn in corpus.conversation(100)]
    rows = [json.dumps(row) for turn in turns for row in turn.rows]
    assert len(rows) == len(set(rows))
    ends = str.maketrans({"?": ".", "\n": " "})
    prose = " ".join(f"{turn.user} {turn.reply}" for turn in turns).translate(ends)
    sentences = [sentence for sentence in prose.split(". ") if len(sentence) > 12]
    assert len(sentences) == len(set(sentences))
    assert len({turn.call_id for turn in turns}) == len(turns)


def test_a_turn_takes_in_two_kilobytes_and_gives_out_one(conversation: list[Turn]) -> None:
    taken_in = statistics.mean(len(turn.user) + len(json.dumps(turn.rows)) for turn in conversation)
    given_out = statistics.mean(len(turn.reply) + len(json.dumps(turn.arguments)) for turn in conversation)
    assert 1700 < taken_in < 2300
    assert 850 < given_out < 1150
    assert 2900 < json_size(conversation) / len(conversation) < 3500


def test_half_of_it_is_prose_and_half_is_rows(conversation: list[Turn]) -> None:
    prose = sum(len(turn.user) + len(turn.reply) for turn in conversation)
    rows = sum(len(json.dumps(turn.rows)) + len(json.dumps(turn.arguments)) for turn in conversation)
    assert 0.47 < prose / (prose + rows) < 0.53
    assert len({tuple(turn.rows[0]) for turn in conversation}) > 250


def test_prose_is_as_hard_to_compress_as_english() -> None:
    compress = zstandard.ZstdCompressor(level=3).compress
    prose = Prose(Random(1))
    ratios = []
    for _ in range(100):
        prose.change_subject()
        text = prose.write(1500).encode()
        ratios.append(len(compress(text)) / len(text))
    assert 0.45 < statistics.median(ratios) < 0.52
    assert len(vocabulary()) > 2000


def test_rows_are_as_hard_to_compress_as_those_of_a_service(conversation: list[Turn]) -> None:
    compress = zstandard.ZstdCompressor(level=3).compress
    tables = [json.dumps(turn.rows).encode() for turn in conversation]
    assert 0.28 < statistics.median(len(compress(table)) / len(table) for table in tables) < 0.40


def test_the_frame_dictionary_was_not_made_from_the_corpus(conversation: list[Turn]) -> None:
    """Else sizes would be measured on text that the store already holds."""
    dictionary = resources.files("clew.log").joinpath("dictionary-1.zstd").read_bytes()
    for turn in conversation:
        for words in map(str.split, (turn.user, turn.reply)):
            for start in range(len(words) - 4):
                assert " ".join(words[start : start + 5]).encode() not in dictionary


def test_the_second_corpus_shares_no_word_with_the_frame_dictionary() -> None:
    """Except for the names of the columns, so that sizes and times do not depend on words that the store already has."""
    turns = Syllables().conversation(300)
    words = {word.lower() for turn in turns for word in re.findall("[A-Za-z]{3,}", f"{turn.user} {turn.reply}")}
    assert not (words - set(COLUMNS)) & words_of_the_dictionary()
    assert len(words) > 2000


def test_the_second_corpus_is_made_of_its_seed_alone() -> None:
    assert Syllables(7).conversation(4) == Syllables(7).conversation(4)
    assert Syllables(7).conversation(4) != Syllables(8).conversation(4)


def test_turns_of_the_second_corpus_are_prose_and_rows_by_turns() -> None:
    turns = Syllables().conversation(300)
    assert 3000 < json_size(turns) / len(turns) < 3400
    for turn in turns[1::2]:
        for text in (turn.user, turn.reply):
            assert all(tuple(row) == COLUMNS for row in json.loads(text))
    for turn in turns[::2]:
        assert turn.reply.endswith(".")
        assert "{" not in turn.user + turn.reply


def test_words_of_the_second_corpus_come_as_often_as_zipf_says() -> None:
    prose = " ".join(turn.reply for turn in Syllables().conversation(600)[::2])
    count = Counter(re.findall("[a-z]+", prose.lower()))
    (_, first), *_, (_, tenth) = count.most_common(10)
    assert 6 < first / tenth < 15


def test_both_forms_of_a_turn_say_the_same(conversation: list[Turn]) -> None:
    for turn in conversation[:20]:
        said, answered, returned = json.loads(turn.json())
        state = fold(turn.entries())
        assert state.turns == 1
        assert [plain_text(message) for message in state.messages[:2]] == [said["content"], answered["content"]]
        assert json.loads(answered["tool_calls"][0]["function"]["arguments"]) == turn.arguments
        assert json.loads(returned["content"]) == turn.rows
        assert state.usage.output_tokens > 0
        assert state.cost_usd


@pytest.mark.anyio
@pytest.mark.crash
@pytest.mark.parametrize("name", sampled([name for name in MEASUREMENTS if name not in ("peers", "temporal")], 3))
@pytest.mark.slow
async def test_a_measurement_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CLEW_BENCH_DIR", str(tmp_path))
    monkeypatch.setattr(peers, "has_agents", lambda: False)
    results = await measure([name], TINY)
    assert results
    for result in results:
        assert result.ratio.median > 0
        assert result.ratio.low <= result.ratio.median <= result.ratio.high
    assert list(tmp_path.iterdir()) == []
    assert name in capsys.readouterr().err


@pytest.mark.anyio
@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
async def test_the_peers_that_are_installed_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEW_BENCH_DIR", str(tmp_path))
    results = await measure(["peers", "crowd"], TINY)
    names = " ".join(result.measurement for result in results)
    assert (peers.SESSION in names) == peers.has_agents()
    assert (peers.SAVER in names) == peers.has_langgraph()


@pytest.mark.anyio
@pytest.mark.slow
async def test_runs_on_temporal_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporal_program()
    monkeypatch.setenv("CLEW_BENCH_DIR", str(tmp_path))
    results = await measure(["temporal"], TINY)
    assert [result.measurement for result in results if "history of a run" in result.measurement]
    assert [result.measurement for result in results if "plain Clew" in result.measurement]
    assert list(tmp_path.iterdir()) == []


def test_a_limit_is_shown_with_all_its_digits() -> None:
    limits = [at_most(2.0), at_most(0.45), below(1.0), at_most(0.02)]
    rows = show.markdown([Result("m", "1", "1", spread([1.0]), limit) for limit in limits]).splitlines()[2:]
    assert [row.split(" | ")[4] for row in rows] == ["<= 2.0", "<= 0.45", "all < 1.0", "<= 0.02"]


@pytest.mark.anyio
async def test_without_peers_it_says_how_to_install_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CLEW_BENCH_DIR", str(tmp_path))
    monkeypatch.setattr(peers, "has_agents", lambda: False)
    monkeypatch.setattr(peers, "has_langgraph", lambda: False)
    assert await measure(["peers"], TINY) == []
    assert "pip install --group peers" in capsys.readouterr().err


def test_a_ratio_is_paired_within_its_repeat() -> None:
    found = paired([[1.0, 4.0, 9.0], [2.0, 2.0, 2.0]], [[1.0, 2.0, 3.0], [1.0, 2.0, 1.0]])
    assert (found.median, found.repeats) == (2.0, 2)


def test_a_limit_is_met_or_not() -> None:
    assert at_most(2.0).met_by(spread([2.0]))
    assert not at_most(2.0).met_by(spread([1.0, 3.0, 4.0]))
    assert at_least(2.5).met_by(spread([2.5]))
    assert not at_least(2.5).met_by(spread([2.4]))
    assert below(1.0).met_by(spread([0.7, 0.8, 0.9]))
    assert not below(1.0).met_by(spread([0.7, 0.8, 1.0]))


def test_a_table_says_what_was_measured_and_whether_it_is_enough() -> None:
    results = [
        Result("append", "12 µs", "10 µs", spread([1.1, 1.2, 1.3]), at_most(1.3)),
        Result("size", "1.0 GB", "2.0 MB", spread([500.0])),
    ]
    first, rule, append, size = show.plain(results).splitlines()
    assert first.startswith("measurement | ours   | floor or peer | ratio (quartiles) | limit  | met")
    assert set(rule) <= {"-", "|", " "}
    assert append.split(" | ")[3:] == ["1.20 (1.15-1.25) ", "<= 1.3", "yes"]
    assert size.split(" | ")[3].strip(" |") == "500.00"
    assert show.markdown(results).splitlines()[2] == "| append | 12 µs | 10 µs | 1.20 (1.15-1.25) | <= 1.3 | yes |"


def test_a_small_limit_is_shown_as_it_is() -> None:
    row = show.markdown([Result("agent", "90 ms", "6,000 ms", spread([0.015]), at_most(0.02))]).splitlines()[2]
    assert row == "| agent | 90 ms | 6,000 ms | 0.015 | <= 0.02 | yes |"


def test_sizes_count_every_file_of_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEW_BENCH_DIR", str(tmp_path))
    with scratch() as folder:
        for name, count in (("clew.db", 5), ("clew.db-wal", 3), ("other.db", 7)):
            (folder / name).write_bytes(bytes(count))
        (folder / "deep" / "er").mkdir(parents=True)
        (folder / "deep" / "er" / "file").write_bytes(bytes(11))
        assert files_size(folder / "clew.db") == 8
        assert files_size(folder / "deep") == 11
        assert folder.parent == tmp_path
    assert not folder.exists()

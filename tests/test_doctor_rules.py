"""From facts to findings: each fault is named, its gain follows from the rates, and no more."""

from __future__ import annotations

import inspect
import string
from dataclasses import is_dataclass, replace
from typing import Any, get_args, get_type_hints

import pytest

from fastio import Stats
from fastio.diagnose import Facts, Use, diagnose, diagnose_stats, expected
from fastio.diagnose.cases import Case
from fastio.diagnose.costs import Costs
from fastio.diagnose.facts import Trial
from fastio.diagnose.report import report
from fastio.diagnose.rules import RULES
from fastio.diagnose.rules.rule import Rule
from fastio.diagnose.rules.stages import LIMIT_RULES
from tests.doctor_facts import (
    FAULTLESS,
    FOLDER,
    GPU,
    IMAGES,
    MACHINE,
    PACKED,
    REMOTE,
    SETTINGS,
    STORAGE,
    TABLES,
    advice,
    culprits,
    gains,
    of_machine,
)

IN_FOLDER = replace(FAULTLESS, data=FOLDER, images=IMAGES)


def test_without_faults_nothing_is_found() -> None:
    assert diagnose(FAULTLESS, Use()) == ()


def test_without_facts_nothing_is_found() -> None:
    assert diagnose(Facts(), Use()) == ()


# --- Images --------------------------------------------------------------------------------------


def test_packing_gains_what_the_try_was_faster_by() -> None:
    first, second = diagnose(IN_FOLDER, Use())
    assert (first.culprit, first.gain) == ("decode", 8000 / 2000)
    assert "fastio pack photos/ PACKED" in first.advice
    assert (second.culprit, second.gain) == ("decode", 2000 / (4 * 250))


def test_the_gain_of_packing_ends_where_the_model_does() -> None:
    assert gains(IN_FOLDER, model_rate=3000.0) == [2.0, 1.5]


def test_a_slow_model_is_named_before_all_that_has_no_gain() -> None:
    storage = replace(STORAGE, file_system="overlay")
    facts = replace(FAULTLESS, storage=storage, machine=replace(MACHINE, others_cores=3.5))
    assert culprits(facts, model_rate=900.0)[0] == "compute"


def test_where_the_model_is_slowest_it_is_the_culprit() -> None:
    (found,) = diagnose(FAULTLESS, Use(model_rate=900.0))
    assert (found.culprit, found.gain) == ("compute", None)


def test_few_threads_are_named_with_what_all_cores_bring() -> None:
    (found,) = diagnose(FAULTLESS, Use(threads=1))
    assert (found.culprit, found.gain) == ("threads", pytest.approx(2000 / 550))
    assert "num_workers=0" in found.advice


def test_fewer_threads_gain_by_packing_in_proportion() -> None:
    before = expected(IN_FOLDER, Use(threads=1))
    assert before is not None
    assert before.samples_per_s() == pytest.approx(550)
    assert gains(IN_FOLDER, threads=1) == pytest.approx([8000 / 2000, 2000 / 550, 550 / 250])


def test_a_try_is_compared_with_the_same_images_as_they_are() -> None:
    lighter = Trial("blocks", None, 48, 8000.0, 1.06, before_rate=4000.0)
    facts = replace(IN_FOLDER, images=replace(IMAGES, trials=(lighter,)))
    (found,) = [one for one in diagnose(facts, Use()) if "fastio pack" in one.advice]
    assert found.gain == 8000 / 4000
    assert "8,000 images/s in a trial pack of 48, 4,000 as they are" in found.evidence


def test_the_rate_of_as_many_threads_as_are_used_is_taken_where_it_was_measured() -> None:
    images = replace(IMAGES, used=(2, 1500.0), trials=())
    facts = replace(FAULTLESS, images=images)
    assert gains(facts, threads=2) == pytest.approx([2000 / 1500])
    assert Case(facts, Use(threads=3)).loader_rate == (1500 + 2000) / 2
    assert Case(facts, Use(threads=64)).loader_rate == 2000


def test_images_larger_than_their_crop_are_shrunk_for_a_try() -> None:
    shrunk = Trial("blocks", 600, 8, 6000.0, 0.2)
    images = replace(IMAGES, short_side=3000, long_side=4000, trials=(shrunk,))
    found = diagnose(replace(FAULTLESS, data=FOLDER, images=images), Use())
    assert found[0].gain == 3.0
    assert "--max-side 600" in found[0].advice
    assert "changes the images" in found[0].advice


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"progressive": 0.4}, "40% of the images are progressive"),
        ({"formats": {"PNG": 0.7, "JPEG": 0.3}}, "PNG 70%"),
        ({"cmyk": 0.2}, "CMYK JPEG 20%"),
    ],
)
def test_what_is_slow_to_decode_is_named(changed: dict[str, Any], words: str) -> None:
    facts = replace(IN_FOLDER, images=replace(IMAGES, **changed))
    assert any(words in finding.waits_for for finding in diagnose(facts, Use()))


# --- Storage -------------------------------------------------------------------------------------


def test_a_slow_disk_is_named_where_memory_does_not_hold_the_data() -> None:
    large = replace(PACKED, nbytes=64 << 30)
    facts = replace(FAULTLESS, data=large, storage=replace(STORAGE, cold_reads_s=500.0))
    (found,) = diagnose(facts, Use())
    assert (found.culprit, found.gain) == ("fetch", 4.0)
    network = replace(facts, storage=replace(facts.storage, network=True, file_system="nfs4"))
    assert culprits(network) == ["network"]


def test_the_disk_is_not_named_where_memory_holds_the_data() -> None:
    facts = replace(FAULTLESS, storage=replace(STORAGE, cold_reads_s=500.0))
    assert culprits(facts) == []


def test_a_first_epoch_from_a_slow_disk_is_told_of_without_a_gain() -> None:
    facts = replace(FAULTLESS, storage=replace(STORAGE, cold_reads_s=500.0, resident_share=0.0))
    (found,) = diagnose(facts, Use())
    assert (found.culprit, found.gain) == ("fetch", None)
    assert "15 s" in found.waits_for  # 10,000 samples at 500/s instead of 2,000/s


def test_a_loader_s_cold_rate_goes_before_that_of_plain_reads() -> None:
    storage = replace(STORAGE, cold_reads_s=500.0, cold_loader_s=250.0, resident_share=0.0)
    assert gains(replace(FAULTLESS, storage=storage), epochs=1) == pytest.approx([8.0])


def test_the_first_epoch_counts_as_much_as_there_are_few() -> None:
    facts = replace(FAULTLESS, storage=replace(STORAGE, cold_reads_s=500.0, resident_share=0.0))
    assert gains(facts, epochs=1) == pytest.approx([4.0])
    assert gains(facts, epochs=3) == pytest.approx([(4.0 + 2) / 3])


def test_packing_makes_room_in_memory_where_it_makes_data_smaller() -> None:
    images = replace(IMAGES, trials=(Trial("blocks", 500, 8, 8000.0, 0.1),), short_side=4000)
    data = replace(FOLDER, nbytes=64 << 30)
    facts = replace(
        FAULTLESS, data=data, images=images, storage=replace(STORAGE, cold_reads_s=100.0)
    )
    first = diagnose(facts, Use())[0]
    assert first.gain == 8000 / 100


def test_a_url_without_a_cache_waits_for_the_network() -> None:
    data = replace(PACKED, path="s3://bucket/x", remote=True)
    facts = Facts(MACHINE, SETTINGS, data=data, remote=REMOTE)
    (found,) = diagnose(facts, Use())
    assert found.culprit == "network"
    assert found.gain == pytest.approx(8000 / (200e6 / 110_000))
    assert diagnose(facts, Use(cache="/nvme")) == ()
    assert diagnose(replace(facts, data=replace(data, nbytes=10_000_000)), Use()) == ()


def test_a_cache_gains_from_the_second_epoch_on() -> None:
    data = replace(PACKED, path="s3://bucket/x", remote=True)
    facts = Facts(MACHINE, SETTINGS, data=data, remote=replace(REMOTE, parallel_bytes_s=220e6))
    assert gains(facts, epochs=1) == []
    assert gains(facts, epochs=2) == pytest.approx([2 * 4.0 / (4.0 + 1.0)])


def test_what_a_loader_fetched_is_the_network_s_rate() -> None:
    data = replace(PACKED, path="s3://bucket/x", remote=True)
    facts = Facts(data=data, remote=replace(REMOTE, loader_bytes_s=110e6))
    assert gains(facts) == pytest.approx([8.0])


def test_a_cache_that_is_too_small_fetches_the_rest_every_epoch() -> None:
    data = replace(PACKED, path="s3://bucket/x", remote=True)
    remote = replace(REMOTE, cache_bytes=data.nbytes // 2, parallel_bytes_s=55e6)
    (found,) = diagnose(Facts(MACHINE, SETTINGS, data=data, remote=remote), Use(cache="/nvme"))
    assert "room for 50%" in found.waits_for
    assert found.gain == pytest.approx(8000 / (2 * 55e6 / 110_000))


def test_a_cache_on_a_network_file_system_is_named() -> None:
    data = replace(PACKED, path="s3://bucket/x", remote=True)
    remote = replace(REMOTE, cache_bytes=1 << 40, cache_file_system="nfs4")
    assert "local disk" in advice(Facts(data=data, remote=remote), cache="/home/x")


def test_a_slow_client_is_told_of() -> None:
    data = replace(PACKED, path="s3://bucket/x", remote=True)
    facts = Facts(data=data, remote=replace(REMOTE, backend="fsspec"))
    assert "that obstore takes" in advice(facts, cache="/nvme")


@pytest.mark.parametrize(
    ("data", "storage", "words"),
    [
        (replace(FOLDER, files=200_000, rows=200_000), STORAGE, "a few large files"),
        (replace(PACKED, files=5000), STORAGE, "--shard-size"),
        (PACKED, replace(STORAGE, file_system="overlay"), "volume"),
        (PACKED, replace(STORAGE, file_system="fuse.s3fs"), "volume"),
    ],
)
def test_how_data_lies_is_looked_at(data: Any, storage: Any, words: str) -> None:
    assert words in advice(replace(FAULTLESS, data=data, storage=storage))


# --- Tables --------------------------------------------------------------------------------------

TABLE = replace(FAULTLESS, data=replace(FOLDER, kind="tables"), images=None, tables=TABLES)


def test_packed_rows_gain_what_the_try_was_faster_by() -> None:
    (found,) = diagnose(TABLE, Use())
    assert (found.culprit, found.gain) == ("decode", 4.0)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"group_rows": 500}, "row_group_size"),
        ({"group_bytes": 1 << 30}, "row_group_size"),
        ({"compressions": ("GZIP", "SNAPPY")}, "snappy"),
        ({"text_columns": 3}, "dictionary-encode"),
        ({"format": "csv"}, "fastio pack"),
    ],
)
def test_how_tables_are_laid_out_is_looked_at(changed: dict[str, Any], words: str) -> None:
    tables = replace(TABLES, trial=None, **changed)
    assert words in advice(replace(TABLE, tables=tables))
    assert words not in advice(replace(TABLE, tables=replace(TABLES, trial=None)))


# --- The machine and its settings ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "culprit", "words"),
    [
        ({"quota": 2.0, "throttled_share": 0.4, "cores": 2}, "machine", "--cpus"),
        ({"others_cores": 3.5}, "machine", "top"),
        ({"simd": "portable"}, "machine", "AVX2"),
        ({"swapped_bytes": 8 << 30}, "memory", "smaller batches"),
        ({"shm_bytes": 64 << 20}, "memory", "--shm-size"),
    ],
)
def test_the_machine_is_looked_at(parts: dict[str, Any], culprit: str, words: str) -> None:
    images = replace(FAULTLESS.images, rate=None)  # type: ignore[type-var]
    facts = replace(of_machine(**parts), images=images)
    assert culprit in culprits(facts)
    assert words in advice(facts)


def test_a_low_limit_of_open_files_counts_where_there_are_many_shards() -> None:
    facts = of_machine(open_files=1024)
    assert advice(facts) == ""
    assert "ulimit -n 1048576" in advice(
        replace(facts, data=replace(PACKED, files=900, nbytes=90 << 30))
    )


def test_huge_pages_count_for_tables() -> None:
    facts = of_machine(huge_pages="never")
    assert advice(facts) == ""
    table = replace(facts, data=replace(PACKED, kind="tables", codecs={}))
    assert "transparent_hugepage" in advice(table)


def test_more_threads_than_cores_are_named() -> None:
    settings = replace(SETTINGS, torch_threads=64)
    assert "OMP_NUM_THREADS=4" in advice(replace(FAULTLESS, settings=settings))
    ranks = replace(SETTINGS, local_ranks=4, torch_threads=1)
    assert "num_workers=1" in advice(replace(FAULTLESS, settings=ranks))


def test_a_device_that_torch_does_not_see_is_named() -> None:
    facts = replace(FAULTLESS, settings=replace(SETTINGS, nvidia=True))
    (found,) = diagnose(facts, Use())
    assert "built without CUDA" in found.waits_for


def test_another_allocator_is_named_where_there_is_one_and_the_processor_trains() -> None:
    settings = replace(SETTINGS, other_allocator="/usr/lib/libjemalloc.so.2")
    assert "LD_PRELOAD=/usr/lib/libjemalloc.so.2" in advice(replace(FAULTLESS, settings=settings))
    assert advice(replace(FAULTLESS, settings=settings, gpu=GPU)) == ""


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"tf32": False, "flops": {"float32": 1e13, "tf32": 8e13}}, "set_float32_matmul"),
        ({"flops": {"float32": 1e13, "bfloat16": 8e13}}, "autocast"),
        ({"channels_last_gain": 1.8}, "channels_last"),
        ({"pinned_bytes_s": 25e9, "pageable_bytes_s": 6e9}, "Loader(device="),
        ({"link": (3, 16), "best_link": (5, 16)}, "slot"),
    ],
)
def test_the_gpu_is_looked_at(parts: dict[str, Any], words: str) -> None:
    assert words in advice(replace(FAULTLESS, gpu=replace(GPU, **parts)))
    assert words not in advice(replace(FAULTLESS, gpu=GPU))


def test_copies_to_the_gpu_are_a_stage() -> None:
    slow = replace(GPU, pinned_bytes_s=1000.0 * 3 * 224 * 224)
    found = expected(replace(FAULTLESS, gpu=slow), Use())
    assert found is not None
    assert (found.waits_for(), found.samples_per_s()) == ("copy", 1000.0)


# --- The order -----------------------------------------------------------------------------------


def test_the_largest_gain_comes_first_and_what_has_none_last() -> None:
    images = replace(IMAGES, progressive=0.5)
    found = gains(replace(IN_FOLDER, images=images), threads=2)
    known = [gain for gain in found if gain is not None]
    assert known == sorted(known, reverse=True)
    assert found[-1] is None


# --- A loader that ran ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stats", "culprit", "gain"),
    [
        (Stats(wait_s=6.0, between_s=4.0, decode_s=9.0, threads=4), "decode", 2.5),
        (Stats(wait_s=5.0, between_s=5.0, decode_s=5.0, threads=1), "threads", 2.0),
        (Stats(wait_s=5.0, between_s=5.0, read_s=9.0, decode_s=1.0, threads=4), "fetch", 2.0),
        (Stats(wait_s=5.0, between_s=5.0, fetch_s=4.9, threads=4), "network", 10 / 5.1),
        (Stats(wait_s=5.0, between_s=5.0, transform_s=4.9, threads=4), "transform", 10 / 5.1),
        (Stats(path="torch", reason="x", wait_s=5.0, between_s=5.0), "threads", 2.0),
        (Stats(wait_s=0.1, between_s=9.9, threads=4), "compute", None),
        (Stats(wait_s=0.1, between_s=9.9, copy_s=9.9, threads=4), "copy", None),
    ],
)
def test_a_loader_s_stats_name_the_culprit(stats: Stats, culprit: str, gain: float | None) -> None:
    first = diagnose_stats(stats, cores=4)[0]
    assert first.culprit == culprit
    assert first.gain == (None if gain is None else pytest.approx(gain))


@pytest.mark.parametrize(
    ("stats", "culprit", "gain"),
    [
        (Stats(wait_s=9.0, between_s=1.0, transform_s=8.8, samples=5000), "transform", 2.0),
        (Stats(wait_s=9.0, between_s=1.0, fetch_s=8.8, samples=4000), "network", 2.5),
        (Stats(wait_s=9.0, between_s=1.0, decode_s=9.0, threads=1, samples=4000), "threads", 2.5),
        (Stats(wait_s=0.1, between_s=9.9, samples=5000), "copy", 10 / 5.1),
        (Stats(wait_s=0.1, between_s=9.9, samples=9900), "compute", None),
        (Stats(wait_s=0.1, between_s=9.9, copy_s=4.0, samples=5000), "compute", None),
    ],
)
def test_nothing_gains_more_than_the_model_lets(
    stats: Stats, culprit: str, gain: float | None
) -> None:
    first = diagnose_stats(replace(stats, threads=stats.threads or 4), 4, model_rate=1000.0)[0]
    assert first.culprit == culprit
    assert first.gain == (None if gain is None else pytest.approx(gain))


def test_nothing_gains_more_than_the_threads_let() -> None:
    stats = Stats(wait_s=9.0, between_s=1.0, transform_s=8.5, decode_s=20.0, threads=4)
    assert diagnose_stats(stats, cores=4)[0].gain == pytest.approx(10 / 5)


def test_more_threads_gain_no_more_than_in_proportion() -> None:
    stats = Stats(wait_s=9.9, between_s=0.1, decode_s=20.0, threads=2)
    assert diagnose_stats(stats, cores=3)[0].gain == pytest.approx(1.5)


def test_without_the_model_s_rate_copies_are_not_told_from_it() -> None:
    (found,) = diagnose_stats(Stats(wait_s=0.1, between_s=9.9, samples=5000, threads=4), cores=4)
    assert found.culprit == "compute"
    assert "--model-rate" in found.evidence[0]


def test_a_loader_that_did_not_run_says_nothing() -> None:
    assert diagnose_stats(Stats(), cores=4) == ()


# --- Texts ----------------------------------------------------------------------------------------


def names_in(text: str) -> list[str]:
    """The names in braces: "machine.cores", "gpu.link[0]"."""
    return [name for _, name, _, _ in string.Formatter().parse(text) if name]


def resolves(kind: Any, names: list[str]) -> bool:
    """Whether attributes of attributes exist, as far as their types are known."""
    if not names:
        return True
    if not is_dataclass(kind):
        return False
    hints = get_type_hints(kind)
    if names[0] not in hints:
        return len(names) == 1 and hasattr(kind, names[0])  # a property
    (found, *_) = get_args(hints[names[0]]) or (hints[names[0]],)
    return resolves(found, names[1:])


def is_known(name: str, given: str) -> bool:
    """Whether a name in braces is a fact, what follows from facts, or what a rule gives."""
    first, *rest = name.split("[")[0].split(".")
    if first in get_type_hints(Facts):
        return resolves(Facts, [first, *rest])
    if first in ("use", "now", "stats"):
        return resolves({"use": Use, "now": Costs, "stats": Stats}[first], rest)
    if first in ("trial", "shrunk"):
        return resolves(Trial, rest)
    return not rest and (hasattr(Case, first) or f'"{first}"' in given)


def test_every_name_in_every_text_exists() -> None:
    for rule in (*RULES, *LIMIT_RULES):
        given = inspect.getsource(inspect.getmodule(rule.when))  # type: ignore[arg-type]
        given += '"waits"'  # which Rule adds
        texts = (rule.waits_for, rule.advice, rule.change, *rule.evidence)
        unknown = [name for text in texts for name in names_in(text) if not is_known(name, given)]
        assert unknown == []
    given = inspect.getsource(report)
    texts = tuple(text for parts in report._LINES.values() for text in parts)
    assert [name for text in texts for name in names_in(text) if not is_known(name, given)] == []


@pytest.mark.parametrize("name", ["machine.corse", "corse", "data.sample_byte", "trial.rates"])
def test_a_misspelt_name_is_an_error(name: str) -> None:
    assert not is_known(name, "")
    found = Rule("decode", lambda _: True, f"it waits for {{{name}}}", "wait")
    with pytest.raises(AttributeError):
        list(found.findings(Case(IN_FOLDER, Use())))


def test_facts_are_told_where_nothing_is_known() -> None:
    assert report.fact_lines(Facts(), Use()) == []

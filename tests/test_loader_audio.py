"""Sound files decoded in a loader's threads: from packed data, folders and tars."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch

import fastio
from fastio import AudioDecode, AudioError, Loader, TransformError

soundfile = pytest.importorskip("soundfile")
RATE = 16000
DTYPES = ("float32", "int16")


def ramp(n: int, frames: int, channels: int = 1) -> np.ndarray[Any, Any]:
    """int16 (frames, channels) whose first number tells the file, and the others their frame."""
    clip = np.arange(frames, dtype=np.int16)[:, None] + 1000 * n
    return np.repeat(clip, channels, axis=1) + np.arange(channels, dtype=np.int16)


def encoded(clip: np.ndarray[Any, Any], kind: str = "WAV", rate: int = RATE) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, clip, rate, format=kind)
    return file.getvalue()


FRAMES = [100 + 30 * n for n in range(12)]


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("audio") / "packed"
    kinds = ["WAV", "FLAC"]
    samples = [
        {"audio": encoded(ramp(n, frames, 2), kinds[n % 2]), "label": n}
        for n, frames in enumerate(FRAMES)
    ]
    fastio.pack(samples, path)
    return path


@pytest.mark.parametrize("form", ["list", "padded", "nested", "flat"])
def test_whole_clips_in_every_form(packed: Path, form: Any) -> None:
    how = {"audio": AudioDecode(dtype="int16")}
    with Loader(packed, 5, shuffle=True, transforms=how, ragged={"audio": form}) as loader:
        for batch in loader:
            clips = batch["audio"]
            if form == "padded":
                lengths = batch["audio_length"].tolist()
                assert clips.shape[2] == max(lengths)
                assert not any(clip[:, n:].any() for clip, n in zip(clips, lengths, strict=True))
                clips = [clip[:, :n] for clip, n in zip(clips, lengths, strict=True)]
            if form == "nested":
                clips = clips.unbind()
            if form == "flat":
                clips = clips.tensor_split(batch["audio_offsets"][1:-1], dim=1)
            for row, clip in zip(batch["label"].tolist(), clips, strict=True):
                np.testing.assert_array_equal(clip.numpy(), ramp(row, FRAMES[row], 2).T)


def crops(path: Path, how: AudioDecode, threads: int = 2, **options: Any) -> dict[int, Any]:
    options = {"seed": 0, **options}
    with Loader(path, 5, shuffle=True, num_workers=threads, transforms=how, **options) as loader:
        return {
            int(n): clip.clone()
            for batch in loader
            for n, clip in zip(batch["label"], batch["audio"], strict=True)
        }


def test_crops_are_frames_in_a_row_and_short_clips_end_in_zeros(packed: Path) -> None:
    for crop in ("random", "center", "start"):
        how = AudioDecode(length=200, crop=crop, dtype="int16", channels=2)  # type: ignore[arg-type]
        for row, clip in crops(packed, how).items():
            assert clip.shape == (2, 200)
            frames = min(200, FRAMES[row])
            begin = int(clip[0, 0]) - 1000 * row
            room = FRAMES[row] - frames
            assert begin in {"start": [0], "center": [room // 2], "random": range(room + 1)}[crop]
            np.testing.assert_array_equal(
                clip[0, :frames], ramp(row, FRAMES[row])[begin:, 0][:frames]
            )
            assert not clip[:, frames:].any()


def test_random_crops_are_a_function_of_seed_epoch_and_row(packed: Path) -> None:
    how = AudioDecode(length=50, dtype="int16", mono=True)
    first = crops(packed, how, 1)
    again = crops(packed, how, 3)
    assert all(torch.equal(first[row], again[row]) for row in first)
    other = crops(packed, how, 2, seed=1)
    assert sum(torch.equal(first[row], other[row]) for row in first) < 6


def test_lengths_stand_beside_clips_of_one_length_if_wanted(packed: Path) -> None:
    how = AudioDecode(length=200, channels=2, lengths=True)
    with Loader(packed, 12, transforms=how) as loader:
        (batch,) = loader
    assert batch["audio"].shape == (12, 2, 200)
    assert batch["audio"].dtype == torch.float32
    assert batch["audio_length"].tolist() == [min(200, n) for n in FRAMES]


@pytest.mark.parametrize("on_error", ["skip", "replace"])
def test_clips_keep_their_length_where_a_bad_one_is_left_out(tmp_path: Path, on_error: Any) -> None:
    samples = [{"audio": encoded(ramp(n, 10 + n)), "label": n} for n in range(4)]
    samples[1]["audio"] = b"no sound"
    schema = fastio.Schema({"audio": fastio.Bytes(), "label": fastio.Scalar("int64")})
    fastio.pack(samples, tmp_path / "p", schema=schema)
    how = {"audio": AudioDecode(length=200, dtype="int16", lengths=True)}
    with Loader(tmp_path / "p", 4, transforms=how, on_error=on_error) as loader:
        (batch,) = loader
    labels = batch["label"].tolist()
    assert labels == ([0, 2, 3] if on_error == "skip" else [0, 2, 2, 3])
    assert batch["audio_length"].tolist() == [10 + n for n in labels]
    assert batch["audio"].shape == (len(labels), 1, 200)
    for clip, n in zip(batch["audio"].numpy(), labels, strict=True):
        np.testing.assert_array_equal(clip[:, : 10 + n], ramp(n, 10 + n).T)
        assert not clip[:, 10 + n :].any()


def test_collate_fn_gets_a_clip_and_its_length(tmp_path: Path) -> None:
    folder = tmp_path / "sounds" / "a"
    folder.mkdir(parents=True)
    for n in range(2):
        (folder / f"{n}.wav").write_bytes(encoded(ramp(n, 10 + n)))
    fastio.pack([{"audio": encoded(ramp(n, 10 + n)), "label": n} for n in range(2)], tmp_path / "p")
    how = {"audio": AudioDecode(length=20, lengths=True)}
    with Loader(tmp_path / "sounds", 2, transforms=how, collate_fn=list) as loader:
        ((one, other),) = loader
    ((clip, length), label) = other
    assert (clip.shape, length, label) == ((1, 20), 11, 0)
    assert torch.equal(clip[0, 11:], torch.zeros(9))
    assert one[0][1] == 10
    with Loader(tmp_path / "p", 2, transforms=how, collate_fn=list) as loader:
        ((_, sample),) = loader
    assert torch.equal(sample.pop("audio"), clip)
    assert sample == {"audio_length": 11, "label": 1}


def test_functions_per_sample_cannot_have_lengths_beside_them(packed: Path) -> None:
    steps = [AudioDecode(length=20, lengths=True), fastio.PerSample(np.abs)]
    with pytest.raises(TransformError, match="lengths=True"):
        Loader(packed, 2, transforms={"audio": steps})


def test_mono_is_the_mean_of_the_channels(tmp_path: Path) -> None:
    clip = np.stack([np.full(10, 0.5), np.full(10, -0.25)], axis=1)
    file = io.BytesIO()
    soundfile.write(file, clip, RATE, format="WAV", subtype="FLOAT")
    fastio.pack([{"audio": file.getvalue()}], tmp_path / "p")
    with Loader(tmp_path / "p", 1, transforms=AudioDecode(mono=True)) as loader:
        (batch,) = loader
    assert batch["audio"].tolist() == [[[0.125] * 10]]


def test_another_sample_rate_is_an_error_unless_it_is_converted(tmp_path: Path) -> None:
    pytest.importorskip("soxr")
    time_s = np.arange(2 * RATE) / (2 * RATE)
    tone = np.sin(2 * np.pi * 440 * time_s)
    samples = [{"audio": encoded(tone, rate=2 * RATE)}]
    fastio.pack(samples, tmp_path / "p")
    with Loader(tmp_path / "p", 1, transforms=AudioDecode(sample_rate=RATE)) as loader:
        message = r"32000 Hz, expected 16000 Hz.*resample=True"
        with pytest.raises(AudioError, match=message):
            next(iter(loader))
    how = AudioDecode(length=RATE, sample_rate=RATE, resample=True, mono=True)
    with Loader(tmp_path / "p", 1, transforms=how) as loader:
        (batch,) = loader
    expected = np.sin(2 * np.pi * 440 * np.arange(RATE) / RATE)
    np.testing.assert_allclose(batch["audio"][0, 0, 100:-100], expected[100:-100], atol=2e-3)


@pytest.mark.parametrize("channels", [1, 2])
def test_int16_is_converted_without_random_noise(tmp_path: Path, channels: int) -> None:
    soxr = pytest.importorskip("soxr")
    clip = np.random.default_rng(0).integers(-(1 << 15), 1 << 15, (3000, channels), np.int16)
    fastio.pack([{"audio": encoded(clip, rate=22050)}], tmp_path / "p")
    how = AudioDecode(sample_rate=RATE, resample=True, dtype="int16")
    with Loader(tmp_path / "p", 1, transforms=how) as loader:
        first, second = (next(iter(loader))["audio"][0].numpy() for _ in range(2))
    exact = np.rint(soxr.resample(clip.astype(np.float32), 22050, RATE)).T
    assert first.dtype == np.int16
    np.testing.assert_array_equal(first, exact.clip(-(1 << 15), (1 << 15) - 1))
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("subtype", ["FLOAT", "DOUBLE"])
def test_int16_of_a_file_of_floats_is_scaled_and_clipped(tmp_path: Path, subtype: str) -> None:
    exact = np.random.default_rng(0).integers(-(1 << 15), 1 << 15, 3000, np.int16)
    beyond = np.array([1.0, -1.5, 1e30, np.inf, np.nan])
    file = io.BytesIO()
    clip = np.append(exact / 32768, beyond)
    soundfile.write(file, clip, RATE, format="WAV", subtype=subtype)
    fastio.pack([{"audio": file.getvalue()}], tmp_path / "p")
    with Loader(tmp_path / "p", 1, transforms=AudioDecode(dtype="int16")) as loader:
        found = next(iter(loader))["audio"][0, 0].numpy()
    high, low = (1 << 15) - 1, -(1 << 15)
    np.testing.assert_array_equal(found, [*exact, high, low, high, high, 0])


@pytest.mark.parametrize("subtype", ["VORBIS", "OPUS"])
def test_int16_of_a_loud_sound_does_not_overflow(tmp_path: Path, subtype: str) -> None:
    if subtype not in soundfile.available_subtypes("OGG"):
        pytest.skip("libsndfile cannot write it")
    square = np.where(np.arange(RATE) // 20 % 2, 0.999, -0.999)  # which the codec overshoots
    soundfile.write(tmp_path / "loud.ogg", square, RATE, subtype=subtype)
    floats, whole = (AudioDecode(dtype=d).decode(tmp_path / "loud.ogg", 0) for d in DTYPES)
    assert np.abs(floats).max() > 1.1
    np.testing.assert_allclose(whole, (floats * 32768).clip(-(1 << 15), (1 << 15) - 1), atol=0.5)


@pytest.mark.parametrize("channels", [1, 2])
def test_crops_in_the_last_page_of_a_vorbis_file_are_those_of_the_whole(
    tmp_path: Path, channels: int
) -> None:
    path, frames = tmp_path / "noise.ogg", 50_000
    noise = np.random.default_rng(0).normal(0, 0.2, (frames, channels))
    soundfile.write(path, noise, RATE, subtype="VORBIS")
    whole = AudioDecode().decode(path, 0)
    room = frames - 300
    for begin in [*range(1, room, 997), *range(room - 3000, room, 97), room]:
        key = -(-(begin << 64) // (room + 1))
        clip = AudioDecode(length=300).decode(path, key)
        np.testing.assert_array_equal(clip, whole[:, begin : begin + 300], str(begin))


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    samples = [{"audio": encoded(ramp(n, 50)), "label": n} for n in range(6)]
    samples[2]["audio"] = b"no sound"
    samples[4]["audio"] = b""
    schema = fastio.Schema({"audio": fastio.Bytes(), "label": fastio.Scalar("int64")})
    fastio.pack(samples, tmp_path / "damaged", schema=schema)
    return tmp_path / "damaged"


@pytest.mark.parametrize("how", [AudioDecode(), AudioDecode(length=20, channels=1)])
def test_damaged_files_are_named_or_left_out(damaged: Path, how: AudioDecode) -> None:
    with Loader(damaged, 6, transforms=how) as loader:
        assert len(loader) == 1
        with pytest.raises(
            AudioError, match=r"shard-000000.arrow row 2: it cannot be decoded"
        ) as e:
            next(iter(loader))
        assert "object at" not in str(e.value)
    with Loader(damaged, 6, transforms=how, on_error="skip") as loader:
        (batch,) = loader
        assert [error.row for error in loader.batch.errors] == [2, 4]
    assert batch["label"].tolist() == [0, 1, 3, 5]
    assert batch["audio"][:, 0, 0].shape == (4,)
    with Loader(damaged, 6, transforms=how, on_error="replace") as loader:
        (batch,) = loader
    assert batch["label"].tolist() == [0, 1, 3, 3, 5, 5]
    assert torch.equal(batch["audio"][2], batch["audio"][3])


def test_channels_that_differ_are_named(tmp_path: Path) -> None:
    fastio.pack([{"audio": encoded(ramp(0, 5, n))} for n in (1, 2)], tmp_path / "p")
    with Loader(tmp_path / "p", 2, transforms=AudioDecode()) as loader:
        assert len(loader) == 1
        with pytest.raises(fastio.SchemaError, match=r"1 and 2 channels.*mono=True"):
            next(iter(loader))
    with Loader(tmp_path / "p", 2, transforms=AudioDecode(channels=1)) as loader:
        assert len(loader) == 1
        with pytest.raises(AudioError, match="2 channels, expected 1"):
            next(iter(loader))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for n in range(6):
        path = tmp_path / "folder" / "ab"[n % 2] / f"{n}.flac"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(ramp(n, 40 + n), "FLAC"))
    (tmp_path / "folder" / "a" / "notes.txt").write_text("no sound")
    return tmp_path / "folder"


def test_folders_are_read_as_they_are_and_packed(folder: Path, tmp_path: Path) -> None:
    fastio.pack(folder, tmp_path / "packed")
    for path in (folder, tmp_path / "packed"):
        with Loader(path, 6, transforms=AudioDecode(length=40, mono=True, dtype="int16")) as loader:
            ((audio, label),) = loader
        assert (audio.shape, label.tolist()) == ((6, 1, 40), [0, 0, 0, 1, 1, 1])
        assert (audio[:, 0, 0] // 1000).tolist() == [0, 2, 4, 1, 3, 5]
    with fastio.open(tmp_path / "packed") as dataset:
        assert dataset.schema.classes == ("a", "b")


def test_a_folder_of_files_without_classes(folder: Path, tmp_path: Path) -> None:
    fastio.pack(folder / "b", tmp_path / "packed")
    for path in (folder / "b", tmp_path / "packed"):
        with Loader(path, 3, transforms=AudioDecode(length=4, crop="start", mono=True)) as loader:
            (audio,) = loader
        assert audio.shape == (3, 1, 4)


def test_tars_are_read_as_they_are(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "t.tar", "w") as tar:
        for n in range(4):
            data = encoded(ramp(n, 30))
            member = tarfile.TarInfo(f"{n:03}.wav")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    how = {"wav": AudioDecode(dtype="int16")}
    with Loader(tmp_path / "t.tar", 4, fields=["wav"], transforms=how) as loader:
        (batch,) = loader
    assert batch["wav"][:, 0, 7].tolist() == [7, 1007, 2007, 3007]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"length": 0}, "length must be"),
        ({"crop": "end"}, "crop must be"),
        ({"dtype": "float64"}, "dtype must be"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(TransformError, match=message):
        AudioDecode(**arguments)


def test_fields_of_other_types_are_refused(packed: Path) -> None:
    with pytest.raises(TransformError, match="'label' is not one"):
        Loader(packed, 2, transforms={"label": AudioDecode()})


def test_mixes_have_clips_of_one_length(packed: Path) -> None:
    mix = fastio.mix({str(packed): 1.0})
    how = {"audio": AudioDecode(length=20, channels=2, crop="start", dtype="int16", lengths=True)}
    with Loader(mix, 4, transforms=how) as loader:
        batch = next(iter(loader))
    assert batch["audio"].shape == (4, 2, 20)
    assert (batch["audio"][:, 0, 0] // 1000).tolist() == batch["label"].tolist()
    assert batch["audio_length"].tolist() == [20] * 4
    with pytest.raises(TransformError, match="length="):
        Loader(mix, 4, transforms={"audio": AudioDecode()})


def test_tables_are_to_be_packed(tmp_path: Path) -> None:
    table = pa.table({"audio": pa.array([encoded(ramp(n, 9)) for n in range(3)], pa.binary())})
    pa.parquet.write_table(table, tmp_path / "t.parquet")
    with pytest.raises(TransformError, match="pack the tables"):
        Loader(tmp_path / "t.parquet", 2, transforms=AudioDecode())
    fastio.pack(tmp_path / "t.parquet", tmp_path / "packed")
    with Loader(tmp_path / "packed", 3, transforms=AudioDecode(dtype="int16")) as loader:
        (batch,) = loader
    assert batch["audio"][:, 0, 5].tolist() == [5, 1005, 2005]


@pytest.mark.parametrize("kind", ["OGG", "MP3", "AIFF", "CAF"])
def test_other_formats_are_read(tmp_path: Path, kind: str) -> None:
    tone = 0.5 * np.sin(2 * np.pi * 440 * np.arange(RATE) / RATE)
    fastio.pack([{"audio": encoded(tone, kind)}], tmp_path / "p")
    with Loader(tmp_path / "p", 1, transforms=AudioDecode()) as loader:
        whole = next(iter(loader))["audio"]
    assert 0.1 < float(whole.square().mean()) < 0.15  # of a sine of this height: 1 / 8
    how = AudioDecode(length=RATE // 4, crop="center")
    with Loader(tmp_path / "p", 1, transforms=how) as loader:
        part = next(iter(loader))["audio"]
    begin = (whole.shape[2] - RATE // 4) // 2
    torch.testing.assert_close(part, whole[:, :, begin : begin + RATE // 4], atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", ["WAV", "FLAC", "OGG", "MP3"])
def test_a_file_that_is_read_in_parts_is_the_same(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = encoded(0.5 * np.sin(np.arange(RATE) / 9), kind)
    decodes = [AudioDecode(), AudioDecode(length=RATE // 2, crop="center")]
    expected = [decode.decode(io.BytesIO(file), 0) for decode in decodes]
    monkeypatch.setattr("fastio.transforms.audio._READ_BYTES", 4 * 700)
    for decode, clip in zip(decodes, expected, strict=True):
        np.testing.assert_allclose(decode.decode(io.BytesIO(file), 0), clip, atol=1e-5, rtol=0)


def test_samples_one_by_one_and_by_collate_fn(packed: Path) -> None:
    how = AudioDecode(dtype="int16")
    with Loader(packed, None, transforms=how, ragged="list") as loader:
        for n, sample in enumerate(loader):
            np.testing.assert_array_equal(sample["audio"].numpy(), ramp(n, FRAMES[n], 2).T)
    with Loader(packed, 4, transforms=how, ragged="list", collate_fn=list) as loader:
        assert [clip["audio"].shape[1] for clip in next(iter(loader))] == FRAMES[:4]


def test_callables_get_the_decoded_batch(packed: Path) -> None:
    how = {
        "audio": [AudioDecode(length=50, channels=2), fastio.OnBatch(lambda clips: clips * 0 + 1)]
    }
    with Loader(packed, 4, transforms=how) as loader:
        assert bool((next(iter(loader))["audio"] == 1).all())


def test_resample_needs_a_rate_of_its_own_or_of_the_dataset(packed: Path) -> None:
    with pytest.raises(TransformError, match="needs a sample_rate"):
        next(iter(Loader(packed, 4, transforms={"audio": AudioDecode(resample=True)})))


@pytest.mark.parametrize("lacking", [None, {"bytes": None, "path": "gone.wav"}])
def test_sounds_that_a_table_lacks_are_bad_samples_with_the_option_that_the_error_names(
    tmp_path: Path, lacking: Any
) -> None:
    cells = [{"bytes": encoded(ramp(1, 50)), "path": "a.wav"}, lacking]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    path = tmp_path / "sounds.parquet"
    table = pa.table({"audio": pa.array(cells * 2, kind), "x": list(range(4))})
    pyarrow.parquet.write_table(table, path)
    with (
        Loader(path, batch_size=4, transforms={"audio": AudioDecode()}) as loader,
        pytest.raises(fastio.AudioError, match=r'row 1: .* nulls={"audio": b""}'),
    ):
        list(loader)
    sounds = fastio.open(path, nulls={"audio": b""})
    decode = {"audio": AudioDecode()}
    with Loader(sounds, batch_size=4, transforms=decode, on_error="skip") as loader:
        (batch,) = loader
        assert batch["audio_length"].tolist() == [50, 50]
        assert loader.stats().skipped == 2

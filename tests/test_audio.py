"""Speech in memory and on disk."""

import errno
import os
import wave
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tts_compress.audio import Audio, read_wav, write_wav
from tts_compress.errors import ArtifactError, ModelError


def test_duration_is_samples_over_rate() -> None:
    assert Audio(samples=np.zeros(8000, np.float32), sample_rate=16000).duration_s == 0.5


@pytest.mark.slow
@given(
    samples=arrays(np.float32, st.integers(0, 50), elements=st.floats(-4, 4, width=32)),
    rate=st.sampled_from([8000, 16000, 22050, 48000]),
)
def test_float_wav_keeps_every_sample(
    tmp_path_factory: pytest.TempPathFactory, samples: npt.NDArray[np.float32], rate: int
) -> None:
    """Samples beyond full scale are kept too, because an evaluation has to see them."""
    path = tmp_path_factory.mktemp("wav") / "x.wav"
    write_wav(path, Audio(samples=samples, sample_rate=rate), encoding="FLOAT")
    found = read_wav(path)
    np.testing.assert_array_equal(found.samples, samples)
    assert found.samples.dtype == np.float32
    assert found.sample_rate == rate


def test_pcm_wav_plays_in_the_standard_library_and_saturates(tmp_path: Path) -> None:
    """Values beyond full scale stay at full scale; wrapping round would be a loud click."""
    path = tmp_path / "x.wav"
    samples = np.array([0.0, 0.5, -0.5, 1.5, -1.5], np.float32)
    write_wav(path, Audio(samples=samples, sample_rate=16000))
    with wave.open(str(path)) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, 16000)
        integers = np.frombuffer(file.readframes(5), "<i2")
    assert integers.tolist() == [0, 16384, -16384, 32767, -32768]


def test_unreadable_file_is_a_model_error(tmp_path: Path) -> None:
    """Soundfile takes the suffix .raw for headerless samples and raises a TypeError."""
    for name in ("x.wav", "x.raw"):
        path = tmp_path / name
        for content in (None, b"", b"RIFF", b"no audio at all" * 20, bytes(100)):
            if content is not None:
                path.write_bytes(content)
            with pytest.raises(ModelError, match=name):
                read_wav(path)
    soundfile.write(tmp_path / "x.wav", np.zeros((10, 2)), 16000)
    with pytest.raises(ModelError, match="2 channels; mono"):
        read_wav(tmp_path / "x.wav")


@pytest.mark.parametrize(("stated", "is_cut"), [(None, True), (0xFFFF_FFFF, False)])
def test_a_file_that_is_cut_off_is_refused_and_a_stream_is_not(
    tmp_path: Path, stated: int | None, is_cut: bool
) -> None:
    """Half of a recording was judged, and its length called damage."""
    audio = Audio(samples=np.zeros(1000, np.float32), sample_rate=16000)
    content = bytearray(audio.to_wav()[:1000])
    if stated is not None:
        content[4:8] = content[40:44] = stated.to_bytes(4, "little")
    (tmp_path / "x.wav").write_bytes(content)
    if is_cut:
        with pytest.raises(
            ModelError, match=r"x\.wav' is cut off: by its header it has 1044 bytes"
        ):
            read_wav(tmp_path / "x.wav")
    else:
        assert len(read_wav(tmp_path / "x.wav").samples) == 478


def test_unwritable_output_is_an_artifact_error(tmp_path: Path) -> None:
    audio = Audio(samples=np.zeros(10, np.float32), sample_rate=16000)
    with pytest.raises(ArtifactError, match=r"cannot write '.*x\.wav'"):
        write_wav(tmp_path / "no folder" / "x.wav", audio)


def test_a_full_disk_is_called_that_and_leaves_no_half_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Libsndfile left 8 KB of the file, and called it a system error."""
    write = Path.write_bytes

    def fill(self: Path, content: bytes) -> int:
        write(self, content[:100])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", fill)
    audio = Audio(samples=np.zeros(10_000, np.float32), sample_rate=16000)
    with pytest.raises(ArtifactError, match=r"x\.wav': No space left on device"):
        write_wav(tmp_path / "x.wav", audio)
    assert not [*tmp_path.iterdir()]

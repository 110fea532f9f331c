"""Amphion's NaturalSpeech2: latent diffusion by a WaveNet, and EnCodec, run from a clone."""

"""CUDA kernels: a prebuilt file that fits, or else a build from source, once for each torch and kind of card."""

from __future__ import annotations

from albatross_plugin.kernel_loader.load import Loaded, load_kernels

__all__ = ["Loaded", "load_kernels"]

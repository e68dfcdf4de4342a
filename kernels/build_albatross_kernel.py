"""Builds kernel files for other machines: python kernels/build_albatross_kernel.py --arch sm80,sm90 --output-root DIR.

Each file goes to DIR/prebuilt/<torch>/<platform>/<python abi>/<arch>/, with rows for its machine code and its PTX in
DIR/manifest.json. It fits the torch, CUDA and Python that run this script. Neither needs a card, only a CUDA torch and the tools.
"""

from __future__ import annotations

import argparse
import logging
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
if __name__ == "__main__" and (HERE.parent / "albatross_plugin" / "kernel_loader").is_dir():
    # Run from a source tree: what is built and how it is built shall be of one version.
    sys.path.insert(0, str(HERE.parent))

from albatross_plugin.errors import DeviceError
from albatross_plugin.kernel_loader.build import LIBRARY, Job, build
from albatross_plugin.kernel_loader.context import TorchFacts, arch_of, card_arch, context_for
from albatross_plugin.kernel_loader.load import cuda_torch_facts
from albatross_plugin.kernel_loader.manifest import Entry, add_entries, sha256_of

logger = logging.getLogger("build_albatross_kernel")


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Build the CUDA kernels ahead of time and list them in a manifest.")
    add = parser.add_argument
    add("--arch", default="auto", help="smNN or computeNN (PTX alone), separated by commas; auto (default): this machine's card")
    add("--output-root", type=Path, default=HERE, help="folder of manifest.json and prebuilt/ (default: where this script lies)")
    add("--max-jobs", type=int, default=0, help="compilers that run at once; 0 (default): MAX_JOBS, else what ninja chooses")
    add("--timeout", type=float, default=1800.0, help="seconds that one build may take (default: 1800)")
    options = parser.parse_args(arguments)
    if options.max_jobs < 0 or options.timeout <= 0:
        parser.error("--max-jobs must be 0 or more, and --timeout more than 0")
    return options


def build_for(arch: str, facts: TorchFacts, output: Path, options: argparse.Namespace) -> list[Entry]:
    """Build one architecture; its file is in place when this returns."""
    context = context_for(facts, arch)
    target = Path("prebuilt", facts.version, context.platform, context.python_abi, arch, LIBRARY)
    # Not the user's cache: what is released must come from these sources and this run.
    folder = Path(tempfile.mkdtemp(prefix="albatross-kernels-"))
    library, _ = build(Job(HERE / "csrc", facts, (arch,), options.timeout, options.max_jobs), folder)
    (output / target).parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(library, output / target)
    # Only here: after a failure the log is in there, and the error names it.
    shutil.rmtree(folder, ignore_errors=True)
    digest = sha256_of(output / target)
    # The same file holds PTX, from which newer cards make their own code.
    archs = dict.fromkeys([arch, arch.replace("sm", "compute")])
    return [Entry(context_for(facts, each), target.as_posix(), digest) for each in archs]


def _own_arch() -> str:
    """Of this machine's card. Raises DeviceError where there is none to look at."""
    try:
        return card_arch()
    except (RuntimeError, AssertionError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DeviceError(f"no card tells what to build for ({reason}); say it with --arch, for example --arch sm80,sm90") from error


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_arguments(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        facts = cuda_torch_facts()
        archs = [_own_arch()] if options.arch == "auto" else list(dict.fromkeys(arch_of(each) for each in options.arch.split(",")))
        options.output_root.mkdir(parents=True, exist_ok=True)
        for arch in archs:
            added = build_for(arch, facts, options.output_root, options)
            add_entries(options.output_root, added)
            logger.info("%s: %s", ", ".join(entry.context.arch for entry in added), options.output_root / added[0].path)
    except (DeviceError, RuntimeError, OSError) as error:
        # The texts are those of a load, which has variables where this has options.
        text = str(error).replace("ALBATROSS_BUILD_TIMEOUT", "--timeout").replace("ALBATROSS_KERNEL_ARCH=", "--arch ")
        logger.error("%s", text)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

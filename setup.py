"""Builds the wheel: CMake makes the one native library, which has no Python symbols, so the tag is py3-none-<platform>.

CMAKE_ARGS in the environment is passed on to CMake, e.g. CMAKE_ARGS="-DL2PF_CUDA_ARCHS=120".
"""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
LIBRARY = "libdsv41_l2pf.so"


class CMakeBuild(build_ext):
    """Runs CMake with this python's torch, and puts the library where the wheel (or the checkout) expects it."""

    def run(self):
        build_dir = Path(self.build_temp).resolve()
        configure = ["cmake", "-S", ROOT, "-B", build_dir, f"-DL2PF_PYTHON={sys.executable}", "-DL2PF_BUILD_TESTS=OFF"]
        configure.append(f"-DL2PF_LIBRARY_DIR={self._library_dir()}")
        if not self.inplace:
            configure.append("-DCMAKE_SHARED_LINKER_FLAGS=-Wl,--strip-all")
        if shutil.which("ninja") and not (build_dir / "CMakeCache.txt").exists():
            configure += ["-G", "Ninja"]
        subprocess.run(configure + shlex.split(os.environ.get("CMAKE_ARGS", "")), check=True)
        subprocess.run(["cmake", "--build", build_dir, "--parallel", str(os.cpu_count())], check=True)

    def _library_dir(self) -> Path:
        package = ROOT / "dsv41_l2pf" if self.inplace else Path(self.build_lib).resolve() / "dsv41_l2pf"
        return package / "lib"

    def get_outputs(self):
        return [str(self._library_dir() / LIBRARY)]

    def get_output_mapping(self):
        return {}


class AnyPythonWheel(bdist_wheel):
    """Platform-specific, but for any Python 3."""

    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


setup(
    ext_modules=[Extension("dsv41_l2pf.lib.libdsv41_l2pf", sources=[])],
    cmdclass={"build_ext": CMakeBuild, "bdist_wheel": AnyPythonWheel},
)
